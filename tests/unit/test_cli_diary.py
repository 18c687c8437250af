"""The launcher's own lines are kept beside the logs of its processes."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.cli.diary import Diary
from headrace.cli.ending import Ending
from headrace.cli.logtail import readable
from headrace.cli.plain import PlainDisplay
from headrace.cli.view import View
from headrace.v1 import status_pb2

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "launcher.log"


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def diary(log: Path, shown: io.StringIO) -> Diary:
    return Diary(PlainDisplay(shown), log, run_id="r", clock=lambda: NOON)


def lines(log: Path) -> list[str]:
    return [readable(line) for line in log.read_text().splitlines()]


def test_a_full_disk_takes_the_diary_and_nothing_else(shown: io.StringIO) -> None:
    diary = Diary(PlainDisplay(shown), Path("/dev/full"), run_id="r", clock=lambda: NOON)

    diary.say("store died")

    assert shown.getvalue() == "store died\n"


def test_what_is_said_is_shown_and_kept(diary: Diary, log: Path, shown: io.StringIO) -> None:
    diary.say("store died (exit code 1); started again after 0.1 s")

    assert shown.getvalue() == "store died (exit code 1); started again after 0.1 s\n"
    assert json.loads(log.read_text()) == {
        "event": "store died (exit code 1); started again after 0.1 s",
        "level": "warning",
        "timestamp": "2026-12-01T12:00:00+00:00",
        "process": "launcher",
        "run_id": "r",
    }


def test_a_stall_is_kept_once_and_again_when_it_comes_again(diary: Diary, log: Path) -> None:
    calm, stalled = View("sort", begun=0.0, now=1.0), View("sort", begun=0.0, now=1.0)
    wait = status_pb2.Wait(name="a batch", owner="replay", elapsed_s=400, stalled=True)
    stalled.processes["trainer"] = status_pb2.ProcessStatus(process="trainer", waits=[wait])
    for view in (calm, stalled, stalled, calm, stalled):
        diary.update(view)

    assert lines(log) == ["warning stalled: trainer: a batch (owner replay) for 6:40"] * 2


def test_the_end_is_kept_with_its_reasons(diary: Diary, log: Path) -> None:
    diary.end(Ending(4, ("trainer died (exit code 1)",)))
    diary.end(Ending(0))

    assert lines(log) == [
        "error trainer died (exit code 1)",
        "error the run ended with exit code 4",
        "info the run ended with exit code 0",
    ]
