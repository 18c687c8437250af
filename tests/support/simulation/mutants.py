"""Bugs put back on purpose, one at a time. The simulation has to find each within some seeds.

Each mutant changes one rule of the real code, or one habit of another party, in place; `applied`
puts it back. The invariant named is the one that should notice first; another one may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest.mock import patch

from headrace.errors import WeightsUnknownError
from headrace.replay import (
    base,
    cutting,
    draft,
    drafts,
    feeding,
    groups,
    leasing,
    resuming,
    rows,
    sampling,
    timeline_events,
)
from headrace.replay import ledger as ledger_module
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.group import RUNNING
from headrace.replay.groups import GroupTable
from headrace.replay.ledger import Ledger
from headrace.replay.service.feeder import FeederCalls
from headrace.v1 import replay_pb2 as pb
from simulation import storage, store

Patch = tuple[object, str, Any]


@dataclass(frozen=True)
class Mutant:
    """One bug."""

    name: str
    invariant: str
    patches: Callable[[], list[Patch]]
    shown_by: int = 0
    """The seed to begin with: one that shows it soon, where few do."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Put the bug back for a while."""
    with ExitStack() as stack:
        for target, name, value in mutant.patches():
            stack.enter_context(patch.object(target, name, value))
        yield


def _handled(event: str, wrong: Callable[[Any, Any], None]) -> Patch:
    return (ledger_module, "HANDLERS", {**ledger_module.HANDLERS, event: wrong})


def _untrained_forgotten() -> list[Patch]:
    right = resuming._reopened
    return [
        (resuming, "_reopened", lambda ledger, how, step, _: right(ledger, how, step, [])),
    ]


def _later_sessions_kept() -> list[Patch]:
    right = resuming._kept

    def wrong(ledger: Any, how: Any, step: int, group: Any) -> Any:
        return right(ledger, how, step + 1, group)

    return [(resuming, "_kept", wrong)]


def _open_at_once() -> list[Patch]:
    return [(Ledger, "is_resuming", property(lambda self: False))]


def _repeats_registered() -> list[Patch]:
    right: Any = feeding.register_prompts

    def wrong(ledger: Any, settings: Any, *, first_ordinal: int, prompts: Any, **more: Any) -> Any:
        if first_ordinal < ledger.cursor:
            prompts = [pb.NewPrompt(uid=f"{p.uid}x{ledger.cursor}") for p in prompts]
        return right(ledger, settings, first_ordinal=ledger.cursor, prompts=prompts, **more)

    return [(feeding, "register_prompts", wrong)]


def _any_attempt() -> list[Patch]:
    def wrong(ledger: Any, worker_id: str, ref: Any) -> Any:
        group = ledger.groups.get(ref.uid)
        return group if group and group.state == RUNNING else None

    return [(leasing, "holder", wrong)]


def _answered_before_durable() -> list[Patch]:
    async def wrong(self: Any) -> None:
        return None

    return [(ReplayBuffer, "settled", wrong)]


def _a_whole_window_more() -> list[Patch]:
    right: Any = feeding.demand

    def wrong(ledger: Any, settings: Any) -> Any:
        count = right(ledger, settings)
        resume = ledger.resume
        if resume and resume.phase == resuming.WARMUP and not resume.topped_up_count:
            left = ledger.feed.ordinal_count - ledger.cursor
            return min(settings.window_size, left)
        return count

    return [(feeding, "demand", wrong)]


def _weights_of_any_line() -> list[Patch]:
    def wrong(ledger: Any, weights: Any, checksum: str) -> None:
        if not any(version == weights.version for _, version in ledger.weights):
            raise WeightsUnknownError("never published")

    return [(leasing, "check_weights", wrong)]


def _old_trainers_heard() -> list[Patch]:
    return [(sampling, "check_trainer", lambda ledger, incarnation: None)]


def _newest_first() -> list[Patch]:
    right = islice
    return [(sampling, "islice", lambda groups, need: right(reversed(list(groups)), need))]


def _stale_kept() -> list[Patch]:
    return [
        (sampling, "drop_stale", lambda *_: []),
        (resuming, "drop_stale", lambda *_: []),
    ]


def _lost_rows_not_believed() -> list[Patch]:
    return [(resuming, "report_lost", lambda *_: 0)]


def _store_change_not_believed() -> list[Patch]:
    def wrong(ledger: Any, event: Any) -> None:
        ledger.store_incarnation = event.store_incarnation
        ledger.store_capacity = event.capacity_bytes

    return [_handled("store_registered", wrong)]


def _former_rows_completed() -> list[Patch]:
    right = leasing.complete_sessions

    def wrong(ledger: Any, settings: Any, *, store_incarnation: str, **more: Any) -> Any:
        return right(ledger, settings, store_incarnation=ledger.store_incarnation, **more)

    return [(leasing, "complete_sessions", wrong)]


def _former_stores_heard() -> list[Patch]:
    return [(rows, "check_life", lambda *_, **__: None)]


def _covered_too_early() -> list[Patch]:
    def wrong(ledger: Any, *, snapshot_id: str, committed: bool, **more: Any) -> None:
        under_way = ledger.snapshot
        if committed and under_way:
            more["oldest_step"] = under_way.step
        cutting_end(ledger, snapshot_id=snapshot_id, committed=committed, **more)

    cutting_end = cutting.end_cut
    return [(cutting, "end_cut", wrong)]


def _uncovered_forgotten() -> list[Patch]:
    right = GroupTable.forget_settled

    def wrong(self: Any, keep: int, *, keep_uncovered: bool = False, **more: Any) -> int:
        return right(self, keep, keep_uncovered=False, **more)

    return [(GroupTable, "forget_settled", wrong)]


def _deletions_not_held() -> list[Patch]:
    return [(store.Store, "_is_held", property(lambda self: False)), (store.Store, "save", _save)]


def _save(self: Any, request: tuple[str, str]) -> Any:
    uri, _ = request
    yield ("sleep", 40)
    content = (self.disk.incarnation, tuple(sorted(self.rows.items(), key=lambda row: row[0])))
    self.world.storage.write(uri, "store", content)
    return content[0]


def _damage_not_seen() -> list[Patch]:
    right = storage.Storage.look
    return [(storage.Storage, "look", lambda self, step, read=True: right(self, step, read=False))]


def _feeder_not_told() -> list[Patch]:
    async def wrong(self: Any, request: Any, context: Any) -> Any:
        if not self._ledger.feed.total_steps:
            await self._buffer.until(lambda: None, request.wait_s)
            return pb.AwaitDemandResponse()
        return await right(self, request, context)

    right = FeederCalls.AwaitDemand
    return [(FeederCalls, "AwaitDemand", wrong)]


def _attempt_not_counted() -> list[Patch]:
    right = leasing.lease

    def wrong(ledger: Any, settings: Any, *, worker_id: str, weights: Any, count: int) -> Any:
        for group in list(ledger.groups.pending)[:count]:
            with ledger.groups.changing(group):
                group.attempt = 0
        return right(ledger, settings, worker_id=worker_id, weights=weights, count=count)

    return [(leasing, "lease", wrong)]


def _commit_twice() -> list[Patch]:
    right = sampling.commit_step

    def wrong(ledger: Any, settings: Any, step: int) -> None:
        right(ledger, settings, step if step > ledger.committed_step else ledger.current_step)

    return [(sampling, "commit_step", wrong)]


def _window_ignored() -> list[Patch]:
    right = leasing.allowance

    def wrong(ledger: Any, settings: Any, **more: Any) -> Any:
        allowed = right(ledger, settings, **more)
        if allowed.blocked_by.startswith("the window is full"):
            return leasing.Allowance(1)
        return allowed

    return [(leasing, "allowance", wrong)]


def _sampled_stay_sampled() -> list[Patch]:
    def wrong(ledger: Any, event: Any) -> None:
        if ledger.trainer_id:
            ledger.former_trainers.add(ledger.trainer_id)
        ledger.trainer_id = event.trainer_id
        ledger.trainer_incarnation = event.incarnation

    return [_handled("trainer_registered", wrong)]


def _restored_cursor_kept() -> list[Patch]:
    kept = (*timeline_events._OF_THIS_JOURNAL, "cursor")
    return [(timeline_events, "_OF_THIS_JOURNAL", kept)]


def _same_incarnations() -> list[Patch]:
    return [(sampling, "_first_incarnation", lambda ledger: 0)]


def _drafts_outlive_their_line() -> list[Patch]:
    return [(timeline_events, "cut_drafts", lambda ledger, newest: None)]


def _repeated_tokens_kept() -> list[Patch]:
    def wrong(piece: Any, begin: int, end: int) -> Any:
        return piece

    def grow(known: Any, piece: Any) -> None:
        known.MergeFrom(piece)

    return [(draft, "stretch", wrong), (groups, "grow", grow)]


def _old_drafts_gone_on_with() -> list[Patch]:
    return [(drafts, "drop_unusable", lambda ledger, settings, chosen, **more: None)]


def _drafts_not_compacted() -> list[Patch]:
    right = base._to_stored

    def wrong(table: Any, group: Any) -> Any:
        stored = right(table, group)
        stored.ClearField("drafts")
        return stored

    return [(base, "_to_stored", wrong)]


MUTANTS = (
    Mutant("un-training is forgotten", "I3", _untrained_forgotten),
    Mutant("sessions of later weights are kept", "I14", _later_sessions_kept),
    Mutant("leasing and sampling do not wait for OPEN", "I5", _open_at_once),
    Mutant("a repeat of RegisterPrompts is taken as new", "I12", _repeats_registered),
    Mutant("any attempt and any worker may complete", "I6", _any_attempt),
    Mutant("answers leave before they are durable", "I10", _answered_before_durable),
    Mutant("warm-up adds a whole window", "I5", _a_whole_window_more),
    Mutant("weights of any time line may lease", "I14", _weights_of_any_line),
    Mutant("trainers that were succeeded are heard", "I6", _old_trainers_heard),
    Mutant("the newest are sampled first", "I12", _newest_first),
    Mutant("nothing is dropped as stale", "I7", _stale_kept),
    Mutant("rows that the store lacks are not forgotten", "I8", _lost_rows_not_believed),
    Mutant("a new store is taken for the old one", "I8", _store_change_not_believed),
    Mutant("rows of a former store are recorded", "I8", _former_rows_completed),
    Mutant("lives of the store that are over are heard", "I11", _former_stores_heard),
    Mutant("what was trained is let go of too early", "I3", _covered_too_early),
    Mutant("compaction forgets what a rollback needs", "I3", _uncovered_forgotten),
    Mutant("the store deletes while it is saved", "I9", _deletions_not_held),
    Mutant("a damaged checkpoint is gone on from", "I9", _damage_not_seen),
    Mutant("the feeder is not told that the feed is not open", "I11", _feeder_not_told),
    Mutant("attempts begin again with each lease", "I6", _attempt_not_counted),
    Mutant("a repeated commit commits the next step", "I3", _commit_twice),
    Mutant("the window does not hold leases back", "I5", _window_ignored),
    Mutant("what a dead trainer had sampled stays sampled", "I3", _sampled_stay_sampled),
    Mutant("a restored ledger keeps the lost journal's cursor", "I12", _restored_cursor_kept),
    Mutant("trainers of two journals have the same number", "I6", _same_incarnations),
    Mutant("drafts outlive their time line", "I14", _drafts_outlive_their_line),
    Mutant("tokens that are reported twice are kept twice", "I6", _repeated_tokens_kept),
    Mutant("drafts past the threshold are gone on with", "I7", _old_drafts_gone_on_with, 3176),
    Mutant("compaction forgets drafts", "I1", _drafts_not_compacted),
)
