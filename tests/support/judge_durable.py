"""What was acknowledged, against what whoever keeps the journal still had when it was killed.

    recorder's history ── each answer ──► the position that it depends on ─┐
    journal on the dead one's disk ──────────────────────────────────────► is it there?

An answer that came before the dead one was started again must lie on its disk: so nothing that was
acknowledged is lost, and nothing was acknowledged while it was away - the callers waited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from history import Entry

from headrace.v1 import journal_pb2, replay_pb2

Records = Sequence[journal_pb2.JournalRecord]


@dataclass(frozen=True)
class Kill:
    """What one kill left."""

    victim: str
    heard: int
    """Entries of the recorder's history from before the victim was started again."""
    length: int
    """Events of the journal that were there."""


@dataclass
class Witness:
    """Looks at the journal after each kill of its keeper."""

    kills: list[Kill] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    _last: Records = ()

    def saw(self, victim: str, heard: int, records: Records) -> None:
        """Take note of what a killed keeper has."""
        self.kills.append(Kill(victim, heard, len(records)))
        self._compare(records)
        self._last = records

    def _compare(self, records: Records) -> None:
        """Whatever was there once is there for good."""
        for before, now in zip(self._last, records, strict=False):
            if before != now:
                self.found.append(f"durable: position {before.position} has changed: {now}")
        if len(records) < len(self._last):
            self.found.append(f"durable: {len(records)} events, there were {len(self._last)}")

    def findings(self, records: Records, history: Sequence[Entry]) -> Iterator[str]:
        """Say what was lost, or acknowledged before it was there."""
        self._compare(records)
        yield from self.found
        needed = _Needed(records)
        positions = [needed.by(entry) for entry in history]
        for kill in self.kills:
            said = max(positions[: kill.heard], default=0)
            if said > kill.length:
                yield (
                    f"durable: position {said} was acknowledged, "
                    f"but {kill.victim}, killed, had {kill.length} events"
                )


class _Needed:
    """Finds the position that must be durable before an answer may be given."""

    def __init__(self, records: Records) -> None:
        self._at: dict[tuple[Any, ...], int] = {}
        """By what happened: where it stands in the journal, first of all."""
        for record in records:
            for key in _happened(record):
                self._at.setdefault(key, record.position)

    def by(self, entry: Entry) -> int:
        """0 for an answer that depends on nothing, or on what is not in the journal at all."""
        return max((self._at.get(key, 0) for key in _told(entry)), default=_position(entry))


def _happened(record: journal_pb2.JournalRecord) -> Iterator[tuple[Any, ...]]:
    match record.WhichOneof("event"):
        case "trainer_registered":
            yield "RegisterTrainer", record.trainer_registered.incarnation
        case "weights_published":
            yield "PublishWeights", record.weights_published.weights.checksum
        case "batch_sampled":
            sampled = record.batch_sampled
            yield from (("SampleBatch", sampled.step, sampled.part, uid) for uid in sampled.uids)
        case "groups_returned":
            yield from (("ReturnGroups", uid) for uid in record.groups_returned.uids)
        case "step_committed":
            yield "CommitStep", record.step_committed.step


def _told(entry: Entry) -> Iterator[tuple[Any, ...]]:
    if entry.answer is None:
        return
    request, answer = entry.request, entry.answer
    match entry.call:
        case "RegisterTrainer":
            yield entry.call, answer.incarnation
        case "PublishWeights":
            yield entry.call, request.weights.checksum
        case "SampleBatch" if answer.status == replay_pb2.SAMPLE_STATUS_READY:
            for group in answer.groups:
                yield entry.call, request.step, request.part, group.uid
        case "ReturnGroups":
            yield from ((entry.call, uid) for uid in request.uids)
        case "CommitStep":
            yield entry.call, request.step


def _position(entry: Entry) -> int:
    """Of answers that name it."""
    if entry.answer is None:
        return 0
    if entry.call == "Audit":
        return int(entry.answer.position)
    if entry.call == "WatchEvents":
        return max((int(event.position) for event in entry.answer.events), default=0)
    return 0
