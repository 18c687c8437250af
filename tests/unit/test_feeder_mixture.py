from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.data import DataConfig
from headrace.errors import UsageError
from headrace.feeder.mixing import MixedOrder
from headrace.feeder.schedule import Schedule, whole_shares
from headrace.feeder.sources.load import open_source
from headrace.feeder.sources.mixture import MixtureRows

WEIGHTS = st.lists(
    st.one_of(st.integers(1, 40), st.sampled_from([0.1, 0.25, 0.5, 1.5, 0.3])),
    min_size=1,
    max_size=7,
)


def order(sizes: Sequence[int], weights: Sequence[float], **settings: Any) -> MixedOrder:
    return MixedOrder(sizes, Schedule(weights), **{"seed": 1, "shuffle": True} | settings)


def part_of(row: int, sizes: Sequence[int]) -> int:
    part = 0
    while row >= sizes[part]:
        row -= sizes[part]
        part += 1
    return part


# -- the schedule


def test_shares_are_the_smallest_whole_numbers_in_the_weights_proportion() -> None:
    assert whole_shares([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert whole_shares([3, 1.5]) == [2, 1]
    assert whole_shares([4.0]) == [1]
    assert whole_shares([1e-3, 1]) == [1, 1000]


@given(WEIGHTS)
def test_at_every_moment_everybody_has_had_his_share_to_within_one_turn(
    weights: list[float],
) -> None:
    schedule = Schedule(weights)
    had = [0] * len(weights)
    for turns in range(1, min(2 * schedule.cycle, 4000) + 1):
        who, before = schedule.turn(turns - 1)
        assert before == had[who]
        had[who] += 1
        for count, quota in zip(had, schedule.quotas, strict=True):
            assert abs(count * schedule.cycle - turns * quota) < schedule.cycle


def test_a_turn_far_away_is_as_near_as_the_first() -> None:
    schedule = Schedule([0.7, 0.2, 0.1])
    far = 10**12
    who, before = schedule.turn(far * schedule.cycle + 3)

    assert (who, before) == (
        schedule.turn(3)[0],
        far * schedule.quotas[who] + schedule.turn(3)[1],
    )


def test_weights_that_come_out_even_too_late_are_refused_with_what_to_do() -> None:
    assert Schedule([0.33333, 0.66667]).cycle == 100_000
    with pytest.raises(ValueError, match=r"0\.333333, 0\.666667 .* after 1000000 rows.*round them"):
        Schedule([0.333333, 0.666667])


# -- the order


@given(
    WEIGHTS, st.lists(st.integers(1, 9), min_size=7, max_size=7), st.booleans(), st.integers(0, 3)
)
def test_a_part_gives_all_its_rows_before_it_gives_one_again(
    weights: list[float], sizes: list[int], shuffle: bool, seed: int
) -> None:
    sizes = sizes[: len(weights)]
    mixed = order(sizes, weights, shuffle=shuffle, seed=seed)
    places = [mixed.place(i) for i in range(300)]

    assert len({place.uid for place in places}) == 300
    for part, size in enumerate(sizes):
        own = [place for place in places if part_of(place.row, sizes) == part]
        first = sum(sizes[:part])
        for start in range(0, len(own), size):
            one_pass = own[start : start + size]
            assert {place.epoch for place in one_pass} == {start // size}
            rows = [place.row - first for place in one_pass]
            assert len(set(rows)) == len(rows)
            if not shuffle:
                assert rows == list(range(len(rows)))


def test_an_epoch_has_as_many_ordinals_as_all_parts_have_rows() -> None:
    sizes = [100, 10, 90]
    mixed = order(sizes, [1, 1, 2])
    assert mixed.row_count == 200
    epoch = [mixed.place(i) for i in range(200)]
    parts = Counter(part_of(place.row, sizes) for place in epoch)

    assert parts == {0: 50, 1: 50, 2: 100}
    # the small one was gone through five times; the large one is half done and goes on
    assert Counter(p.row for p in epoch if 100 <= p.row < 110) == dict.fromkeys(range(100, 110), 5)
    following = [mixed.place(i) for i in range(200, 400)]
    first_half, second_half = (
        {place.row for place in places if place.row < 100} for places in (epoch, following)
    )
    assert first_half | second_half == set(range(100))
    assert not first_half & second_half
    assert {place.epoch for place in following if place.row < 100} == {0}


def test_with_weights_as_the_sizes_an_epoch_has_every_row_once() -> None:
    mixed = order([30, 10], [3, 1])
    for epoch in range(3):
        places = [mixed.place(i) for i in range(40 * epoch, 40 * (epoch + 1))]
        assert {place.row for place in places} == set(range(40))
        assert {place.epoch for place in places} == {epoch}


def test_seed_and_purpose_choose_the_order_and_nothing_else_does() -> None:
    def rows(**settings: Any) -> list[int]:
        return [order([50, 50], [2, 1], **settings).place(i).row for i in range(90)]

    assert rows() == rows()
    assert rows() != rows(seed=2)
    assert rows() != rows(purpose="warm start")
    # parts of one size are not in one order
    first = [row for row in rows() if row < 50]
    second = [row - 50 for row in rows() if row >= 50]
    assert first[: len(second)] != second


# -- the rows


def mixture(folder: Path, **parts: dict[str, Any]) -> DataConfig:
    return DataConfig.model_validate(
        {"source": {"kind": "mixture", "parts": parts}, "train_batch_size": 1}
    )


def jsonl(path: Path, *prompts: str) -> dict[str, Any]:
    path.write_text("".join(json.dumps({"prompt": p, "answer": ""}) + "\n" for p in prompts))
    return {"kind": "jsonl", "path": str(path)}


def test_rows_are_counted_through_the_parts_and_bear_their_names(tmp_path: Path) -> None:
    digits = {
        "kind": "python",
        "function": "headrace.feeder.sources.digits:digit_rows",
        "options": {"task": "sort", "digits": 2, "size": 3, "seed": 1},
    }
    source = open_source(
        mixture(
            tmp_path,
            words={"source": jsonl(tmp_path / "a.jsonl", "a", "b"), "weight": 3},
            sums={"source": digits},
        )
    )

    assert isinstance(source, MixtureRows)
    assert len(source) == 5
    assert [source[i].data_source for i in range(5)] == ["words"] * 2 + ["sums"] * 3
    assert source[1].prompt == "b"
    assert source.schedule.quotas == [3, 1]
    assert source.name == "mixture of words, sums"


def test_the_fingerprint_has_parts_names_and_shares(tmp_path: Path) -> None:
    one, two = jsonl(tmp_path / "a.jsonl", "a"), jsonl(tmp_path / "b.jsonl", "b")

    def digest(**parts: dict[str, Any]) -> str:
        return open_source(mixture(tmp_path, **parts)).fingerprint()

    first = digest(x={"source": one, "weight": 1}, y={"source": two, "weight": 2})
    assert digest(x={"source": one, "weight": 0.5}, y={"source": two, "weight": 1}) == first
    assert digest(x={"source": one, "weight": 1}, y={"source": two, "weight": 3}) != first
    assert digest(x={"source": one, "weight": 1}, z={"source": two, "weight": 2}) != first
    assert digest(x={"source": two, "weight": 1}, y={"source": two, "weight": 2}) != first
    assert digest(y={"source": two, "weight": 2}, x={"source": one, "weight": 1}) != first


def test_a_bad_part_is_one_clear_error_that_names_it(tmp_path: Path) -> None:
    good = {"source": jsonl(tmp_path / "a.jsonl", "a")}
    empty = {"source": jsonl(tmp_path / "empty.jsonl")}
    other = {"source": jsonl(tmp_path / "b.jsonl", "a") | {"prompt_key": "q"}}
    gone = {"source": {"kind": "jsonl", "path": str(tmp_path / "gone.jsonl")}}
    for parts, message in (
        ({"x": good, "y": empty}, r"data\.source\.parts\.y: .*empty\.jsonl has no rows; leave"),
        (
            {"x": good, "y": other},
            r"^data\.source\.parts\.y: .*b\.jsonl:1: no column 'q'; .*; "
            r"set data\.source\.parts\.y\.source\.prompt_key and data",
        ),
        ({"x": good, "y": gone}, r"^data\.source\.parts\.y\.source\.path: cannot read"),
        (
            {"x": good | {"weight": 0.333333}, "y": good | {"weight": 0.666667}},
            r"data\.source\.parts: the weights .* round them",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            open_source(mixture(tmp_path, **parts))
