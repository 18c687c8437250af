"""What people get to read of a run: plain lines, the live view, the summary."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.cli.display import checkpoint_in_words, one_line
from headrace.cli.ending import (
    DONE,
    INTERRUPTED,
    NO_CHECKPOINT,
    NOT_KEPT_ALIVE,
    USAGE,
    Ending,
)
from headrace.cli.live import panel
from headrace.cli.local import unless_all_was_dropped, was_refused
from headrace.cli.news import News
from headrace.cli.plain import PlainDisplay
from headrace.cli.summary import Summary
from headrace.cli.view import View
from headrace.client.history import detail_in_words
from headrace.client.resumes import resume_in_words
from headrace.client.steps import REWARD, STALENESS, STALENESS_MAX, TOKENS, Steps
from headrace.client.tables import columns, facts
from headrace.client.words import counts_in_words, duration, size
from headrace.config.rundir import RunDirectory
from headrace.v1 import (
    checkpoint_pb2,
    prompt_pb2,
    resume_pb2,
    rollout_pb2,
    status_pb2,
    trainer_pb2,
)
from headrace.v1 import replay_pb2 as pb

COUNTS = prompt_pb2.StateCounts(
    fed=100, pending=1, running=20, finished=9, trained=60, dropped={"stale": 8, "too_long": 2}
)


@pytest.fixture
def view() -> View:
    found = View("sort", begun=0.0, now=200.0)
    found.kept = frozenset({"replay"})
    found.heard = {"replay": 200.0}
    found.replay = pb.GetReplayStatusResponse(
        counts=COUNTS, total_steps=40, target=32, regenerated={"expired": 3, "failed": 5}
    )
    for step in range(1, 21):
        metrics = {REWARD: step / 20, STALENESS: 1.5, STALENESS_MAX: 3.0, TOKENS: 50.0}
        found.steps.add(step, metrics, now=step * 10.0)
    found.tokens.add("worker-0", 0, 0, now=190.0)
    found.tokens.add("worker-0", 4000, 100, now=200.0)
    found.workers["worker-0"] = rollout_pb2.GetWorkerStatusResponse(
        weight_version=19, groups_in_flight=7
    )
    wait = status_pb2.Wait(name="a batch", owner="replay", elapsed_s=400, stalled=True)
    found.processes["trainer"] = status_pb2.ProcessStatus(
        process="trainer", uptime_s=190, waits=[wait], waited_s={"a batch": 120, "brief": 0.1}
    )
    found.restarts = {"store": 2}
    found.deaths = {"store": "died (exit code 1): No space left on device"}
    found.warnings.append("store: warning rpc_ended")
    return found


def drawn(view: View) -> str:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(panel(view))
    return console.export_text()


def test_the_live_view_shows_all_that_matters(view: View) -> None:
    text = drawn(view)

    for expected in (
        "step 20/40",
        "3:20 left",
        "1.000  ▁",
        "pending 1 · running 20 · finished 9 of 32 wanted",
        "trained on 1.50 versions old",
        "400 per second, 4,000 in all, 100 wasted",
        "worker-0 v19 7 groups",
        "STALLED trainer: a batch (owner replay) for 6:40",
        "store 2, the last: died (exit code 1): No space left on device",
        "store: warning rpc_ended",
    ):
        assert expected in text


def test_the_live_view_can_be_drawn_before_anything_is_known() -> None:
    view = View("sort", begun=0.0, now=1.0)
    view.kept = frozenset({"store", "replay"})

    assert "starting replay, store" in drawn(view)


def test_an_open_circuit_is_shown_with_its_cause(view: View) -> None:
    assert view.replay is not None
    view.replay.circuit = pb.CIRCUIT_CAUSE_WORKERS_FAIL
    view.replay.circuit_error = "CUDA out of memory"

    assert "open (workers fail): CUDA out of memory" in drawn(view)


def test_plain_lines_say_why_nothing_goes_on(view: View) -> None:
    assert view.replay is not None
    assert "circuit" not in one_line(view)
    assert "paused" not in one_line(view)

    view.replay.paused = True
    view.replay.circuit = pb.CIRCUIT_CAUSE_WORKERS_FAIL
    view.replay.circuit_error = "ValueError: a score must be a number"

    assert one_line(view).endswith(
        "circuit open (workers fail): ValueError: a score must be a number"
    )
    assert "  paused  " in one_line(view)
    assert "nothing is fed or leased until `headrace resume`" in drawn(view)


def test_a_worker_has_no_version_before_its_first_weights_and_is_gone_when_it_went_home(
    view: View,
) -> None:
    view.workers["worker-0"].weight_version = -1
    assert "worker-0 - 7 groups" in drawn(view)

    view.workers["worker-0"].draining = True
    assert "worker-0" not in drawn(view)
    view.kept |= {"worker-0"}
    assert "worker-0 - 7 groups draining" in drawn(view)


def test_a_run_that_trained_on_nothing_is_a_mistake() -> None:
    done = Ending(DONE)
    dropped = prompt_pb2.StateCounts(fed=10, dropped={"too_long": 10})

    ending = unless_all_was_dropped(done, pb.AuditResponse(ok=True, counts=dropped))

    assert ending.exit_code == USAGE
    assert "10 dropped (10 too_long)" in ending.reasons[0]
    assert unless_all_was_dropped(done, pb.AuditResponse(ok=True, counts=COUNTS)) is done
    assert unless_all_was_dropped(done, None) is done


def test_plain_lines_come_at_each_tenth_step_and_never_too_rarely() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    view = View("sort", begun=0.0, now=0.0)
    view.replay = pb.GetReplayStatusResponse(total_steps=40)
    for second in range(31):  # a step a second, from the first second on
        view.now = float(second)
        if second:
            view.steps.add(second, {REWARD: 0.5}, now=view.now)
        display.update(view)

    steps = [line.split("  ")[0] for line in stream.getvalue().splitlines()]
    assert steps == ["step 0/40", "step 10/40", "step 20/40", "step 30/40"]


def test_a_stall_is_a_line_of_its_own_once(view: View) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)

    display.update(view)
    display.update(view)

    stalls = [line for line in stream.getvalue().splitlines() if line.startswith("STALLED")]
    assert stalls == ["STALLED trainer: a batch (owner replay) for 6:40"]


def test_the_summary_says_what_became_of_everything(view: View, tmp_path: Path) -> None:
    audit = pb.AuditResponse(ok=True, counts=COUNTS)

    text = Summary(view, audit, RunDirectory(tmp_path), tensorboard=True).text().plain

    lines = {line[:13].strip(): line[15:] for line in text.splitlines()}
    assert lines == {
        "steps": "20 of 40",
        "reward": "0.275 → 0.775 (means over the first and last 10 steps)",
        "prompts": "fed 100 = 1 pending + 20 running + 9 finished + 60 trained + 10 dropped "
        "(8 stale, 2 too_long)",
        "balance": "holds: every prompt is accounted for",
        "trained on": "1,000 tokens (prompts included)",
        "staleness": "1.50 versions old on average, 3 at most",
        "regenerated": "failed 5, expired 3",
        "time": "3:20 for 20 steps",
        "sampled": "4,000 tokens, 100 of them wasted, 20 per second",
        "waited": "trainer (of 3:10): a batch 2:00",
        "restarts": "store 2, the last: died (exit code 1): No space left on device",
        "run directory": str(tmp_path),
        "curves": f"tensorboard --logdir {tmp_path}/tensorboard",
        "questions": f"headrace audit --run {tmp_path}",
    }


def test_a_start_that_went_on_is_told_apart_from_the_whole_run(view: View, tmp_path: Path) -> None:
    summary = Summary(
        view,
        pb.AuditResponse(ok=True, counts=COUNTS),
        RunDirectory(tmp_path),
        tensorboard=False,
        began_before=True,
        resumed=[resumed(step=13), resumed(step=18)],
    )

    whole, this_start, places = summary.text().plain.split("\n\n")

    assert whole.startswith("the whole run\nsteps        20 of 40\n")
    assert "balance" in whole
    assert "trained on   1,000 tokens" in whole
    assert this_start.startswith("this start\ntime      3:20 for 7 steps\nsampled   4,000 tokens")
    assert "restarts" in this_start
    assert this_start.count("resumed from step") == 2
    assert places.startswith("run directory")


def summary_of(view: View, directory: Path, *, began_before: bool = False) -> Summary:
    run = RunDirectory(directory)
    return Summary(view, None, run, tensorboard=False, began_before=began_before)


def test_a_start_that_was_refused_is_not_summed_up(view: View, tmp_path: Path) -> None:
    unknown = View("sort", begun=0.0, now=0.0)
    fresh = summary_of(unknown, tmp_path)
    went_on, done = summary_of(view, tmp_path, began_before=True), summary_of(view, tmp_path)

    assert was_refused(Ending(USAGE, ("a file is missing",)), fresh)
    assert was_refused(Ending(NOT_KEPT_ALIVE, ("replay died",)), fresh)
    assert was_refused(Ending(NO_CHECKPOINT, ("all are damaged",)), went_on)
    assert not was_refused(Ending(INTERRUPTED), went_on)
    assert not was_refused(Ending(USAGE, ("a worker's GPU is gone",)), done)


def test_the_summary_of_a_run_that_never_began_can_be_read(tmp_path: Path) -> None:
    view = View("sort", begun=0.0, now=0.0)

    text = Summary(view, None, RunDirectory(tmp_path), tensorboard=False).text().plain

    assert "0 of ?" in text
    assert "not checked: nobody could be asked" in text


def test_a_broken_balance_is_said(view: View, tmp_path: Path) -> None:
    audit = pb.AuditResponse(ok=False, counts=COUNTS, violations=["e0r1 is trained twice"])

    text = Summary(view, audit, RunDirectory(tmp_path), tensorboard=False).text().plain

    assert "BROKEN: e0r1 is trained twice" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.123, "0.12 s"), (3.14, "3.1 s"), (42.4, "42 s"), (185, "3:05"), (3750, "1:02:30")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_have_a_unit() -> None:
    assert [size(n) for n in (12, 1536, 4 * 2**30)] == ["12 B", "1.5 KiB", "4.0 GiB"]


def test_counts_of_nothing_add_up_too() -> None:
    assert counts_in_words(prompt_pb2.StateCounts()) == "fed 0 = 0"


def test_tables_cut_nothing() -> None:
    long = "x" * 300

    assert long in facts([("a", long), ("longer", "b")]).plain
    assert columns(("n", "name"), [("1", long), ("22", "b")], right={"n"}).plain.splitlines() == [
        " n  name",
        f" 1  {long}",
        "22  b",
    ]


def test_an_events_detail_is_a_line_for_people() -> None:
    detail = (
        '{"worker_id": "w", "store_incarnation": "0123456789abcdef", "sessions": ['
        '{"lease": {"uid": "e0r1", "attempt": 2}, "record": {"reward": 0.5}},'
        '{"lease": {"uid": "e0r1", "attempt": 2}, "record": {"session": 3}}]}'
    )

    assert detail_in_words(detail) == (
        "worker_id w, store 01234567, sessions 0, 3 (attempt 2, rewards 0.5, 0)"
    )
    assert detail_in_words("") == ""
    assert detail_in_words("not json") == "not json"


def resumed(**changes: Any) -> resume_pb2.ResumeState:
    values: dict[str, Any] = {
        "resume_id": "a",
        "phase": resume_pb2.RESUME_PHASE_OPEN,
        "step": 5,
        "lineage": "l1",
        "counts": prompt_pb2.StateCounts(pending=2, running=1, finished=16),
        "reissued_count": 3,
        "sessions_kept_count": 2,
        "dropped_count": 4,
        "topped_up_count": 1,
    }
    return resume_pb2.ResumeState(**values | changes)


def test_a_resume_is_a_line() -> None:
    assert resume_in_words(resumed()) == (
        "resumed from step 5: 12 groups kept, 3 reissued (2 sessions kept), 4 dropped as stale, "
        "1 fed"
    )
    assert resume_in_words(
        resumed(step=0, dropped_count=0, topped_up_count=0, untrained_count=8)
    ) == (
        "resumed from the beginning: 16 groups kept, 3 reissued (2 sessions kept), "
        "8 to be trained on again"
    )
    assert resume_in_words(resumed(phase=resume_pb2.RESUME_PHASE_WARMUP)) == (
        "resuming from step 5: filling the window"
    )


def test_each_resume_is_said_once_and_one_of_before_is_no_news(view: View) -> None:
    said: list[str] = []
    news = News(said.append, known_resume="old")
    assert view.replay is not None
    under_way = resumed(phase=resume_pb2.RESUME_PHASE_STORE)
    for resume in (resumed(resume_id="old"), under_way, resumed(), resumed()):
        view.replay.resume.CopyFrom(resume)
        news.tell(view)

    assert said == [resume_in_words(resumed())]
    assert news.resumed == [resumed()]


def test_a_snapshot_that_failed_is_a_warning_each_time_and_stays_in_sight(view: View) -> None:
    said: list[str] = []
    news = News(said.append)
    assert view.replay is not None
    view.replay.saved_step = 10
    for error in ("", "no space left", "no space left", "", "no space left"):
        view.coordinator = checkpoint_pb2.GetCoordinatorStatusResponse(snapshot_error=error)
        news.tell(view)

    line = "warning: no checkpoint was made: no space left; that of step 10 stays the newest"
    assert said == [line, line]
    assert one_line(view).endswith("saved 10  NOT SAVED: no space left")
    assert "no space left" in drawn(view)


def test_the_newest_checkpoint_is_shown_with_what_it_cost(view: View) -> None:
    assert view.replay is not None
    assert "checkpoint" not in drawn(view)
    view.replay.saved_step = 10
    view.replay.snapshot.step = 20
    view.coordinator = checkpoint_pb2.GetCoordinatorStatusResponse(
        snapshot_bytes=3 * 2**20, snapshot_seconds=2.5
    )
    view.trainer = trainer_pb2.GetTrainerStatusResponse(snapshot_stall_s=0.05)

    assert checkpoint_in_words(view) == (
        "step 10, 3.0 MiB in 2.5 s, training stood still for 0.05 s, saving step 20"
    )
    assert "step 10, 3.0 MiB in 2.5 s" in drawn(view)


def test_the_end_is_told_as_it_goes(view: View) -> None:
    assert view.replay is not None
    stream = io.StringIO()
    display = PlainDisplay(stream)
    view.processes.clear()
    view.stopping = True
    view.leaving = ("trainer",)
    view.trainer = trainer_pb2.GetTrainerStatusResponse(
        step=12, phase=trainer_pb2.TRAINER_PHASE_UPDATING
    )
    display.update(view)
    display.update(view)
    view.replay.snapshot.step = 12
    display.update(view)
    view.leaving = ("worker-0", "worker-1")
    display.update(view)

    assert stream.getvalue().splitlines() == [
        "stopping: the trainer is at step 12",
        "saving step 12",
    ]


def test_who_is_at_home_or_gone_already_is_not_being_stopped(view: View) -> None:
    view.stopping = True
    view.leaving = ("worker-0", "worker-1")
    view.kept = frozenset({"worker-0", "replay"})
    assert one_line(view).startswith("stopping worker-0  ")

    view.kept = frozenset({"replay"})
    assert one_line(view).startswith("stopping  ")


def test_steps_of_a_run_that_went_back_are_those_of_the_last_time(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    rows = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25)]
    lines = [f'{{"step": {step}, "{REWARD}": {reward}}}\n' for step, reward in rows]
    file.write_text("".join(lines) + '{"step": 3, "crit')
    steps = Steps()

    steps.read(file)
    assert (steps.last, steps.series(REWARD)) == (2, [0.1, 0.25])

    steps.forget_after(1)
    assert (steps.last, steps.series(REWARD)) == (1, [0.1])
