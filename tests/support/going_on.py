"""Which responses were begun under one lease and ended under another, as the journal tells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from headrace.v1 import journal_pb2, prompt_pb2
from headrace.v1 import replay_pb2 as pb


@dataclass
class Begun:
    """A response under way."""

    token_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """By token."""
    attempt: int = 0
    """The last lease that added to it."""


@dataclass(frozen=True)
class GoneOnWith:
    """A response that was completed under a later lease than it was begun under."""

    uid: str
    session: int
    prefix: Sequence[int]
    """The tokens that were known when that lease was given."""
    versions: Sequence[int]
    record: prompt_pb2.SessionRecord


class Following:
    """Follows the journal."""

    def __init__(self) -> None:
        self.begun: dict[tuple[str, int], Begun] = {}
        self.ended: list[GoneOnWith] = []
        self._given: dict[str, dict[int, tuple[list[int], list[int]]]] = {}

    def follow(self, records: Iterable[journal_pb2.JournalRecord]) -> Following:
        for record in records:
            name = str(record.WhichOneof("event"))
            handler = getattr(self, f"_{name}", None)
            if handler is not None:
                handler(getattr(record, name))
        return self

    def _tokens_reported(self, event: journal_pb2.TokensReported) -> None:
        for progress in event.progress:
            for draft in progress.drafts:
                begun = self.begun.setdefault((progress.lease.uid, draft.session), Begun())
                assert draft.offset == len(begun.token_ids)
                begun.token_ids += draft.token_ids
                for span in draft.weight_spans:
                    begun.versions += [span.version] * (span.end - span.begin)
                begun.attempt = progress.lease.attempt

    def _prompts_leased(self, event: journal_pb2.PromptsLeased) -> None:
        for lease in event.leases:
            self._given[lease.uid] = {
                session: (list(begun.token_ids), list(begun.versions))
                for (uid, session), begun in self.begun.items()
                if uid == lease.uid
            }

    def _leases_ended(self, event: journal_pb2.LeasesEnded) -> None:
        failed = {e.lease.uid for e in event.leases if e.end == pb.LEASE_END_FAILED}
        self.begun = {key: begun for key, begun in self.begun.items() if key[0] not in failed}

    def _lineage_opened(self, event: journal_pb2.LineageOpened) -> None:
        assert event.drafts_kept
        fork = event.lineage.fork_step
        for key, begun in list(self.begun.items()):
            left = len(list(takewhile(lambda version: version <= fork, begun.versions)))
            del begun.token_ids[left:], begun.versions[left:]
            if not left:
                del self.begun[key]

    def _groups_dropped(self, event: journal_pb2.GroupsDropped) -> None:
        gone = set(event.uids)
        self.begun = {key: begun for key, begun in self.begun.items() if key[0] not in gone}

    def _drafts_dropped(self, event: journal_pb2.DraftsDropped) -> None:
        for uid, session in zip(event.uids, event.sessions, strict=True):
            del self.begun[uid, session]

    def _sessions_completed(self, event: journal_pb2.SessionsCompleted) -> None:
        for item in event.sessions:
            uid, session = item.lease.uid, item.record.session
            self.begun.pop((uid, session), None)
            given = self._given[uid].get(session)
            if given is not None:
                self.ended.append(GoneOnWith(uid, session, *given, item.record))
