"""What the launcher reads in the logs of its children."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.cli.logtail import LogTail, readable


def line(level: str, event: str, **details: object) -> str:
    return json.dumps({"event": event, "level": level, "timestamp": "t", "run_id": "r", **details})


def test_a_json_line_is_made_readable_and_any_other_is_kept() -> None:
    assert readable(line("warning", "leases_expired", count=3)) == "warning leases_expired count=3"
    assert readable("Traceback (most recent call last):") == "Traceback (most recent call last):"
    assert readable("{broken") == "{broken"


def test_of_a_logged_exception_the_type_and_message_are_shown() -> None:
    exception = [{"exc_type": "KeyError", "exc_value": "'x'", "frames": [1, 2, 3]}]

    assert readable(line("error", "died", exception=exception)) == (
        "error died exception=KeyError: 'x'"
    )


def test_warnings_are_given_once_and_only_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line("info", "ready") + "\n" + line("warning", "one") + "\n" + '{"event": "tw')
    tail = LogTail(log)

    assert tail.new_warnings() == ["warning one"]
    with log.open("a") as file:
        file.write('o", "level": "error"}\n')
    assert tail.new_warnings() == ["error two"]
    assert tail.new_warnings() == []


def test_only_what_was_written_in_this_life_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: of an earlier life\n")
    tail = LogTail(log, begin=log.stat().st_size)
    with log.open("a") as file:
        file.write("hello\n\nerror: one thing\nerror: another\n")

    assert tail.errors() == ["one thing", "another"]
    assert tail.last_lines(5) == ["hello", "error: one thing", "error: another"]


def test_what_a_process_died_of_is_what_it_said_last_of_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log)
    said = {
        "": line("info", "ready"),
        "balance_broken violations=1": line("error", "balance_broken", violations=1),
        "journal_failed: no space left": line("error", "journal_failed", error="no space left"),
        "no such data set": "error: no such data set",
        "KeyError: 'x'": "Traceback (most recent call last):\n  raise Error\nKeyError: 'x'",
        "redis.exceptions.ConnectionError: gone": (
            "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
            "  +-+---------------- 1 ----------------\n"
            "    | Traceback (most recent call last):\n"
            "    |     raise ConnectionError\n"
            "    | redis.exceptions.ConnectionError: gone\n"
            "    +------------------------------------"
        ),
    }
    for expected, lines in said.items():
        with log.open("a") as file:
            file.write(f"{lines}\n")
        assert tail.last_error() == expected
    with log.open("a") as file:
        file.write(line("warning", "stalled") + "\n")
    assert tail.last_error() == "redis.exceptions.ConnectionError: gone"


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert LogTail(tmp_path / "no").last_lines(3) == []
    assert LogTail(tmp_path / "no").new_warnings() == []
