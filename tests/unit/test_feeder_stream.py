from __future__ import annotations

import json
from typing import Any

import pytest
import stream_rows

from headrace.config.data import DataConfig, StreamSource
from headrace.errors import UsageError
from headrace.feeder.sources.load import open_data
from headrace.feeder.sources.source import Row
from headrace.feeder.sources.stream import StreamRows


def opened(function: str, **options: Any) -> StreamRows:
    source = StreamSource(kind="stream", function=f"stream_rows:{function}", options=options)
    stream = open_data(DataConfig(source=source, train_batch_size=4))
    assert isinstance(stream, StreamRows)
    return stream


def take(stream: StreamRows, count: int = 100) -> list[tuple[Row, str]]:
    taken: list[tuple[Row, str]] = []
    while len(taken) < count and (got := stream.next_row(len(taken))) is not None:
        taken.append(got)
    return taken


def answers(taken: list[tuple[Row, str]]) -> list[str]:
    return [row.answer for row, _ in taken]


def test_rows_come_in_order_each_with_the_state_after_it() -> None:
    stream = opened("numbers", count=3)
    stream.begin()
    taken = take(stream)

    assert taken[0][0] == Row("0", "0", "numbers", {})
    assert [json.loads(state)["next"] for _, state in taken] == [1, 2, 3]
    assert stream.next_row(3) is None


def test_opening_a_stream_takes_nothing_off_it() -> None:
    stream_rows.made.clear()
    opened("numbers", count=3)

    [made] = stream_rows.made
    assert made.given == []


@pytest.mark.parametrize("function", ["numbers", "Generator"])
def test_after_any_state_comes_exactly_the_next_row(function: str) -> None:
    options = {"count": 5} if function == "numbers" else {}
    stream = opened(function, **options)
    stream.begin()
    whole = take(stream)
    assert len(whole) == 5
    for place, (_, state) in enumerate(whole):
        stream.begin(state)
        assert [row for row, _ in take(stream)] == [row for row, _ in whole[place + 1 :]]
        other_process = opened(function, **options)
        other_process.begin(state)
        assert take(other_process) == whole[place + 1 :]
    stream.begin()
    assert take(stream) == whole


def test_the_fingerprint_is_that_of_function_and_arguments() -> None:
    first = opened("numbers", count=3).fingerprint()

    assert opened("numbers", count=3).fingerprint() == first
    assert opened("numbers", count=4).fingerprint() != first
    assert opened("odd", what="fine").fingerprint() != first


def test_what_is_no_stream_says_what_it_lacks() -> None:
    with pytest.raises(UsageError, match=r"list has no state_dict, load_state_dict"):
        opened("odd", what="list")
    with pytest.raises(UsageError, match=r"has no function 'absent'"):
        opened("absent")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("iter", r"stream_rows:odd: __iter__: OSError: no line \(.*stream_rows\.py:"),
        ("next", r"stream_rows:odd, row 1: KeyError: 'torn' \(.*stream_rows\.py:"),
        ("row", r"row 0: no column 'prompt'; the columns are: question"),
        ("state", r"row 0: state_dict\(\): ZeroDivisionError: .*stream_rows\.py:"),
        ("set", r"row 0: state_dict\(\) cannot be written as JSON: .*set"),
        ("nan", r"row 0: state_dict\(\) cannot be written as JSON: "),
        ("tuple", r"row 0: state_dict\(\) comes back from JSON as something else: use lists"),
        ("key", r"row 0: state_dict\(\) comes back from JSON as something else"),
        ("big", r"row 0: state_dict\(\) has 70014 bytes as JSON; at most 65536 are allowed"),
    ],
)
def test_a_stream_that_goes_wrong_is_one_clear_error(what: str, message: str) -> None:
    stream = opened("odd", what=what)
    with pytest.raises(UsageError, match=message) as raised:
        take_from_the_beginning(stream)
    assert "\n" not in str(raised.value)


def take_from_the_beginning(stream: StreamRows) -> None:
    stream.begin()
    take(stream)


def test_a_state_that_is_refused_is_shown() -> None:
    stream = opened("odd", what="load")

    with pytest.raises(UsageError, match=r"refuses the state .*\{\"a\": 1\}: ValueError: another"):
        stream.begin('{"a": 1}')
