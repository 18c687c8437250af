"""Checkpoints and plans as tables for a terminal. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from headrace.client.tables import Fact, columns, facts
from headrace.client.words import counts_in_words, size
from headrace.v1 import checkpoint_pb2 as pb

_HEADER: Final = ("step", "line", "made", "size", "groups", "")

_ACTIONS: Final = {
    pb.RESUME_ACTION_BEGIN: "begin: there is nothing to go on from",
    pb.RESUME_ACTION_ROLL_BACK: "roll back: the journal is there",
    pb.RESUME_ACTION_RESTORE: "restore: the journal is lost, the ledger comes from the checkpoint",
    pb.RESUME_ACTION_FINISHED: "nothing: the run is finished",
    pb.RESUME_ACTION_START_OVER: "start over: all there is is left behind (resume.mode: disable)",
}
_GOING_BACK: Final = (
    pb.RESUME_ACTION_ROLL_BACK,
    pb.RESUME_ACTION_RESTORE,
    pb.RESUME_ACTION_START_OVER,
)
_ROWS: Final = {
    pb.STORE_ACTION_KEEP: "the store has them",
    pb.STORE_ACTION_RESTORE: "loaded from the checkpoint",
    pb.STORE_ACTION_REGENERATE: "lost, and generated again",
}


def checkpoints_table(checkpoints: Sequence[pb.Checkpoint]) -> Text:
    """List checkpoints; what is wrong with one stands below the table, a line each."""
    if not checkpoints:
        return Text("no checkpoints")
    table = columns(_HEADER, [_row(one) for one in checkpoints], right=("step", "size"))
    for line in _problems(checkpoints):
        table.append(f"\n{line}", style="red")
    return table


def _row(one: pb.Checkpoint) -> tuple[str, ...]:
    known = bool(one.unix_time_s)
    return (
        str(one.step),
        one.lineage or "?",
        f"{datetime.fromtimestamp(one.unix_time_s).astimezone():%Y-%m-%d %H:%M:%S}"
        if known
        else "?",
        size(one.size_bytes) if known else "?",
        counts_in_words(one.counts) if known else "?",
        ", ".join(_marks(one)),
    )


def _marks(one: pb.Checkpoint) -> Iterator[str]:
    yield "DAMAGED" if one.problem else "valid"
    if one.is_latest:
        yield "latest"
    if one.abandoned:
        yield "abandoned"


def _problems(checkpoints: Iterable[pb.Checkpoint]) -> Iterator[str]:
    for one in checkpoints:
        for problem in filter(None, one.problem.split("; ")):
            yield f"step {one.step}: {problem}"


def plan_table(plan: pb.ResumePlan) -> Text:
    """Show what a resume would do."""
    pairs: list[Fact] = [("plan", _ACTIONS[plan.action])]
    if plan.action in _GOING_BACK:
        origin = f"step {plan.step}" if plan.step else "the beginning, before step 1"
        pairs += [
            ("goes back to", f"{origin}, and trains step {plan.step + 1} next"),
            ("committed so far", f"step {plan.committed_step}"),
            ("trajectories", _ROWS[plan.store]),
        ]
    elif plan.action == pb.RESUME_ACTION_FINISHED:
        pairs.append(("committed so far", f"step {plan.committed_step}"))
    if plan.HasField("checkpoint"):
        one = plan.checkpoint
        made = datetime.fromtimestamp(one.unix_time_s).astimezone()
        pairs += [
            ("checkpoint", one.uri),
            ("made", f"{made:%Y-%m-%d %H:%M:%S}, {size(one.size_bytes)}, line {one.lineage}"),
            ("groups in it", counts_in_words(one.counts)),
        ]
    pairs += [("note", note) for note in plan.notes]
    pairs += [("skipped", Text(line, style="red")) for line in _problems(plan.skipped)]
    return facts(pairs)
