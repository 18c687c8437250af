"""What is made of the steps' metrics and the processes' answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.view import TokenCount, View
from headrace.client.steps import REWARD, STEP_S, Steps, sparkline
from headrace.v1 import rollout_pb2, status_pb2


def test_remaining_time_follows_from_the_last_steps() -> None:
    steps = Steps()
    for step in range(1, 31):  # slow at first: only the last 20 count
        steps.add(step, {REWARD: 0.1}, now=step * 10.0 if step <= 10 else 100 + (step - 10) * 2.0)

    assert steps.last == 30
    assert steps.seconds_per_step() == 2.0
    assert steps.remaining_s(40, now=140.0) == 20.0
    assert steps.remaining_s(40, now=141.0) == 19.0
    assert steps.remaining_s(0, now=140.0) is None


def test_before_two_steps_were_seen_the_trainer_says_how_long_one_takes(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": s, STEP_S: 30.0}) + "\n" for s in (1, 2)))
    steps = Steps()
    assert steps.remaining_s(10, now=0.0) is None
    steps.read(file)

    assert steps.remaining_s(10, now=0.0) == 240.0
    steps.add(3, {STEP_S: 30.0}, now=100.0)
    assert steps.remaining_s(10, now=110.0) == 200.0


def test_steps_that_were_missed_come_from_the_run_directory(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    rows = [{"step": step, REWARD: step / 10, "other": None} for step in (1, 2, 3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = Steps()
    steps.add(2, {REWARD: 0.5}, now=1.0)

    steps.read(file)
    steps.read(tmp_path / "none")

    assert steps.series(REWARD) == [0.1, 0.5, 0.3]
    assert steps.series("other") == []


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [([], 5, ""), ([1.0], 5, "▁"), ([0, 1], 5, "▁█"), ([0, 0, 1, 1, 2, 2], 3, "▁▅█")],
)
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int, drawn: str) -> None:
    assert sparkline(values, width) == drawn


def test_tokens_add_up_over_the_lives_of_a_worker() -> None:
    tokens = TokenCount()
    tokens.add("a", 100, 0, now=0.0)
    tokens.add("a", 300, 10, now=1.0)
    tokens.add("a", 50, 5, now=2.0)  # started again
    tokens.add("b", 40, 0, now=2.0)

    assert (tokens.generated, tokens.wasted) == (390, 15)
    assert tokens.per_second() == (390 - 100) / 2


def test_the_speed_is_that_of_the_last_seconds() -> None:
    tokens = TokenCount()
    assert tokens.per_second() is None
    for second in range(100):
        tokens.add("a", second * (10 if second < 50 else 20), 0, now=float(second))

    assert tokens.per_second() == 20


def view(**waits: float) -> View:
    found = View("run", begun=0.0, now=100.0, stall_after_s=50)
    found.kept = frozenset({"trainer", "store"})
    found.processes["trainer"] = status_pb2.ProcessStatus(
        process="trainer",
        waits=[
            status_pb2.Wait(name=name, owner="replay", elapsed_s=s, stalled=s > 50)
            for name, s in waits.items()
        ],
    )
    return found


def test_the_longest_wait_comes_first_and_the_stalled_are_known() -> None:
    found = view(short=1, long=60)

    assert [wait.name for _, wait in found.waits()] == ["long", "short"]
    assert [(name, wait.name) for name, wait in found.stalls()] == [("trainer", "long")]


def test_silence_is_a_wait_and_then_a_stall() -> None:
    found = view()
    found.heard = {"store": 90.0, "trainer": 99.0, "worker-9": 0.0}

    [(name, wait)] = found.waits()

    assert (name, wait.owner, wait.elapsed_s, wait.stalled) == ("store", "store", 10.0, False)
    found.now = 141.0
    assert [name for name, _ in found.stalls()] == ["store"]


def test_a_process_that_has_not_announced_itself_is_starting() -> None:
    found = view()
    found.heard = {"store": 90.0}

    assert found.starting == ["trainer"]


def stalled_view(now: float) -> View:
    view = View("run", begun=0.0, now=now)
    wait = status_pb2.Wait(name="batch", owner="replay", stall_after_s=300, stalled=True)
    view.processes["trainer"] = status_pb2.ProcessStatus(process="trainer", waits=[wait])
    return view


def test_what_was_waited_while_the_run_was_paused_is_no_stall() -> None:
    view = stalled_view(now=1000.0)
    assert [name for name, _ in view.stalls()] == ["trainer"]
    view.paused_until = 1000.0  # it still is
    assert view.stalls() == []
    assert [wait.name for _, wait in view.waits()] == ["batch"]

    view.now = 1299.0  # resumed meanwhile
    assert view.stalls() == []
    view.now = 1301.0
    assert [name for name, _ in view.stalls()] == ["trainer"]


def test_a_worker_that_goes_home_waits_for_nothing_and_is_not_waited_for() -> None:
    view = View("run", begun=0.0, now=100.0)
    view.kept = frozenset({"worker-1"})
    view.heard = {"worker-1": 50.0}
    wait = status_pb2.Wait(name="work", owner="replay", elapsed_s=60)
    view.processes["worker-1"] = status_pb2.ProcessStatus(process="worker-1", waits=[wait])
    view.workers["worker-1"] = rollout_pb2.GetWorkerStatusResponse()
    assert len(view.waits()) == 2

    view.workers["worker-1"].draining = True

    assert view.waits() == []
