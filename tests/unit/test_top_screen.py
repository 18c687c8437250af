"""What `headrace top` shows of a run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from headrace.cli.top.dialog import Dialog, Mode
from headrace.cli.top.screen import Shown, screen, table, window_bar
from headrace.cli.view import View
from headrace.client.steps import REWARD
from headrace.v1 import prompt_pb2, rollout_pb2, status_pb2
from headrace.v1 import replay_pb2 as pb

HEIGHT = 30


def counts(**values: int) -> prompt_pb2.StateCounts:
    return prompt_pb2.StateCounts(**values, dropped={"stale": 5, "filtered": 2})


@pytest.fixture
def view() -> View:
    found = View("sort", begun=0.0, now=200.0)
    found.replay = pb.GetReplayStatusResponse(
        counts=counts(fed=100, pending=4, running=8, finished=4, sampled=8, trained=69),
        committed_step=10,
        total_steps=40,
        target=24,
        occupancy=16,
        workers=[
            pb.WorkerSummary(
                worker_id="worker-0-11-ab", lease_count=8, weight_version=9, silent_s=0.5
            ),
            pb.WorkerSummary(
                worker_id="far-1-12-cd", lease_count=3, weight_version=8, failure_streak=2
            ),
        ],
    )
    found.workers["worker-0"] = rollout_pb2.GetWorkerStatusResponse(
        worker_id="worker-0-11-ab", weight_version=10, wasted_token_count=1234
    )
    for at, tokens in ((190.0, 0), (200.0, 4000)):
        found.worker_tokens["worker-0"].add("worker-0", tokens, 0, at)
    waits = [
        status_pb2.Wait(
            name="batch", owner="replay", elapsed_s=400, stalled=True, ends_when="soon"
        ),
        status_pb2.Wait(name="weights announced", owner="replay", elapsed_s=2),
    ]
    found.processes["trainer"] = status_pb2.ProcessStatus(process="trainer", waits=waits)
    demand = status_pb2.Wait(name="demand", owner="replay buffer", elapsed_s=500)
    found.processes["feeder"] = status_pb2.ProcessStatus(process="feeder", waits=[demand])
    for step in (9, 10):
        found.steps.add(step, {REWARD: step / 20}, now=step * 20.0)
    return found


def drawn(what: RenderableType, *, styles: bool = False) -> str:
    console = Console(file=io.StringIO(), width=120, height=HEIGHT, record=True)
    console.print(what)
    return console.export_text(styles=styles)


def whole(view: View, dialog: Dialog, where: pb.LocatePromptResponse | str | None = None) -> str:
    console = Console(file=io.StringIO(), width=120, height=HEIGHT, record=True)
    console.print(screen(Shown(view, dialog, where), console))
    return console.export_text()


def line_of(text: str, begin: str) -> str:
    [found] = [line for line in text.splitlines() if line.startswith(begin)]
    return " ".join(found.split())


def test_it_says_how_far_the_run_is(view: View) -> None:
    head = line_of(drawn(table(view)), "sort")

    assert head.startswith("sort step 10/40")
    assert head.endswith("10:00 left")


def test_the_window_is_shown_by_state_with_what_is_still_wanted() -> None:
    status = pb.GetReplayStatusResponse(
        counts=counts(pending=4, running=8, finished=4, sampled=8), target=24, occupancy=16
    )

    bar = window_bar(status, 32).plain

    assert bar.startswith("████████▓▓▓▓▒▒▒▒▒▒▒▒░░░░········")
    assert bar.endswith("█ sampled  ▓ finished  ▒ running  ░ pending")


def test_a_window_that_is_over_full_does_not_burst_its_bar() -> None:
    status = pb.GetReplayStatusResponse(counts=counts(pending=90), target=10, occupancy=90)

    assert window_bar(status, 20).plain.split()[0] == "░" * 20


def test_a_window_of_nothing_can_be_drawn() -> None:
    assert window_bar(pb.GetReplayStatusResponse(), 10).plain == "·" * 10


def test_dropped_prompts_are_shown_by_reason(view: View) -> None:
    assert "7 dropped (2 filtered, 5 stale)" in drawn(table(view))


def test_workers_are_shown_as_the_ledger_and_as_they_themselves_see_it(view: View) -> None:
    text = drawn(table(view))

    assert line_of(text, "worker-0") == "worker-0 8 v10 0 400 1,234 0.5 s ago"
    assert line_of(text, "far-1-12-cd") == "far-1-12-cd 3 v8 2 - - 0 s ago"


def test_a_worker_that_goes_home_says_so(view: View) -> None:
    view.workers["worker-0"].draining = True

    assert "worker-0 (draining)" in drawn(table(view))


def test_waits_are_shown_longest_first_and_stalled_ones_in_red(view: View) -> None:
    text = drawn(table(view))
    waits = text[text.index("ends when") :].splitlines()[1:]

    assert [line.split()[0] for line in waits] == ["demand", "batch", "weights"]
    assert " ".join(waits[1].split()) == "batch trainer replay STALLED 6:40 soon"
    [red] = [row for row in drawn(table(view), styles=True).splitlines() if "STALLED" in row]
    assert "\x1b[1;31m" in red


def test_an_open_circuit_and_a_pause_are_shown(view: View) -> None:
    assert view.replay is not None
    assert "paused" not in drawn(table(view))
    view.replay.circuit = pb.CIRCUIT_CAUSE_WORKERS_FAIL
    view.replay.circuit_error = "no GPU"
    view.replay.paused = True

    text = drawn(table(view))

    assert "open (workers fail): no GPU" in text
    assert "headrace resume" in text


def test_a_process_that_does_not_answer_is_a_wait_with_its_reason(view: View) -> None:
    view.asker = "headrace top"
    view.kept = frozenset({"store"})
    view.heard = {"store": 100.0}
    view.trouble = {"store": "Connection refused"}

    text = drawn(table(view))

    assert "an answer to headrace top  store" in text
    assert "store answers GetStatus (Connection refused)" in text


def test_a_wait_with_a_long_end_cuts_the_end_and_nothing_else(view: View) -> None:
    view.processes["trainer"].waits[0].ends_when = "x" * 500

    assert "batch trainer replay STALLED 6:40 xxx" in " ".join(drawn(table(view)).split())


def test_more_than_there_is_room_for_is_counted(view: View) -> None:
    assert view.replay is not None
    for number in range(100):
        view.replay.workers.add(worker_id=f"w{number}")

    text = whole(view, Dialog())

    assert "more" in text
    assert "demand" in text
    assert len(text.splitlines()) == HEIGHT


def test_a_run_of_which_nothing_is_known_can_be_drawn() -> None:
    text = whole(View("sort", begun=0.0, now=1.0), Dialog())

    assert "no workers" in text
    assert "nobody waits" in text


def test_the_uid_is_seen_while_it_is_typed(view: View) -> None:
    dialog = Dialog(mode=Mode.ASKING, typed="e0r")

    assert "where is prompt: e0r" in whole(view, dialog).splitlines()[-1]


def answer(events: int) -> pb.LocatePromptResponse:
    group = prompt_pb2.PromptGroup(uid="e0r7", state=prompt_pb2.PROMPT_STATE_TRAINED)
    history = [
        prompt_pb2.LedgerEvent(position=position, name=f"event_{position}")
        for position in range(1, events + 1)
    ]
    return pb.LocatePromptResponse(group=group, history=history)


def test_a_prompts_place_and_history_fill_the_screen(view: View) -> None:
    text = whole(view, Dialog(mode=Mode.WHERE, uid="e0r7"), answer(3))

    assert "trained" in text
    assert "event_3" in text
    assert "Esc back" in text


def test_a_long_history_can_be_moved_to_its_end_and_no_further(view: View) -> None:
    dialog = Dialog(mode=Mode.WHERE, uid="e0r7", scroll=1000)

    text = whole(view, dialog, answer(100))

    assert "event_100" in text.splitlines()[-2]
    assert dialog.scroll < 100


def test_why_there_is_no_answer_is_shown_in_its_place(view: View) -> None:
    dialog = Dialog(mode=Mode.WHERE, uid="e9r9")

    assert "e9r9: asking" in whole(view, dialog)
    assert "no prompt 'e9r9'" in whole(view, dialog, "no prompt 'e9r9' was ever fed")
