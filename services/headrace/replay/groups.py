"""All groups, indexed so that every rule finds its candidates without a scan.

Knows states and orders, not the rules that move groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from sortedcontainers import SortedDict, SortedKeyList

from headrace.errors import PromptUnknownError
from headrace.replay.draft import grow
from headrace.replay.group import (
    DRAFTED,
    DROPPED,
    FAILED,
    FINISHED,
    LIVE,
    PENDING,
    RUNNING,
    SAMPLED,
    SETTLED,
    TRAINED,
    Group,
)
from headrace.v1 import prompt_pb2


def _by_age(group: Group) -> tuple[int, int]:
    return group.base, group.ordinal


def _by_turn(group: Group) -> tuple[int, int]:
    return group.failures, group.ordinal


class GroupTable:
    """Every group ever registered; each in exactly one state's index.

    Insert, remove and "the first k" cost O(log N) per group, whatever the table holds. Groups
    that settled long ago may be forgotten: they stay in the counts.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._by_uid: dict[str, Group] = {}
        self._settled: dict[str, None] = {}
        """Settled groups that are remembered, in the order of settling."""
        self.covered_step = 0
        """What was trained up to this step cannot be rolled back any more."""
        self._uncovered: dict[int, dict[str, Group]] = {}
        """Groups that can, by the step that trained them. They keep prompt and sessions."""
        self.by_ordinal: SortedDict = SortedDict()
        """Remembered groups by ordinal."""
        self.forgotten: Counter[int] = Counter()
        """Groups that are in the counts only, by state."""
        self.pending: SortedKeyList = SortedKeyList(key=_by_turn)
        """PENDING in the order of leasing: fewest failures first, then by ordinal."""
        self.pending_aged: SortedKeyList = SortedKeyList(key=_by_age)
        """Those of them that have a base, oldest first."""
        self.running: SortedKeyList = SortedKeyList(key=_by_age)
        """RUNNING, oldest base first."""
        self.finished: SortedKeyList = SortedKeyList(key=_by_age)
        """FINISHED in the order of sampling: oldest base first, then by ordinal."""
        self.failed: dict[str, Group] = {}
        self.sampled: dict[str, Group] = {}
        self.counts: Counter[int] = Counter()
        """Groups by state."""
        self.dropped: Counter[int] = Counter()
        """Groups in DROPPED by reason."""
        self.leases: Counter[str] = Counter()
        """RUNNING groups by worker."""
        self.held_bytes = 0
        """Recorded bytes of live groups in the store."""
        self.draft_token_count = 0
        """Tokens of the drafts of all groups."""
        self.running_missing = 0
        """Sessions that current leases are still to deliver."""

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.by_ordinal.values())

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def __getitem__(self, uid: str) -> Group:
        return self._by_uid[uid]

    @property
    def fed_count(self) -> int:
        """Groups ever registered."""
        return len(self._by_uid) + sum(self.forgotten.values())

    def get(self, uid: str) -> Group | None:
        """Return the group, or None if that uid was never fed."""
        return self._by_uid.get(uid)

    def find(self, uid: str) -> Group:
        """Return the group.

        Raises:
            PromptUnknownError: it was never fed, or is in the counts only.

        """
        group = self._by_uid.get(uid)
        if group is None:
            raise PromptUnknownError(
                f"no prompt {uid!r} was fed, or it settled so long ago that it was forgotten "
                "(journal.keep_settled)",
                uid=uid,
            )
        return group

    def live(self) -> list[Group]:
        """All groups that are not settled and not sampled."""
        return [*self.pending, *self.running, *self.finished, *self.failed.values()]

    def add(self, group: Group) -> None:
        """Take in a group that is not there yet."""
        assert group.uid not in self._by_uid
        assert group.ordinal not in self.by_ordinal
        self._by_uid[group.uid] = group
        self.by_ordinal[group.ordinal] = group
        self._insert(group)

    def trained_after(self, step: int) -> list[Group]:
        """Groups trained after a step, as far as they are remembered, in order of training."""
        later = sorted(number for number in self._uncovered if number > step)
        return [group for number in later for group in self._uncovered[number].values()]

    def cover(self, step: int) -> None:
        """Let go of the prompts of what was trained up to a step: no rollback comes there."""
        self.covered_step = max(self.covered_step, step)
        for number in [number for number in self._uncovered if number <= step]:
            for group in self._uncovered.pop(number).values():
                group.payload = None

    def is_uncovered(self, group: Group) -> bool:
        """Whether a rollback may make it live again."""
        return group.state == TRAINED and group.step > self.covered_step

    def forget_settled(
        self, keep: int, *, keep_uncovered: bool = False, most: int | None = None
    ) -> int:
        """Forget all but the last `keep` settled groups, and what settled since an uncovered one.

        Args:
            keep: How many stay.
            keep_uncovered: Whether groups that a rollback may make live again stay, too.
            most: Forget so many at once.

        Returns:
            How many were forgotten; fewer than `most` when it is done.

        """
        excess = max(0, len(self._settled) - keep)
        # In one pass: to look for a dict's first entry again and again costs its size each time.
        oldest = list(islice(self._settled, excess if most is None else min(excess, most)))
        for number, uid in enumerate(oldest):
            group = self._by_uid[uid]
            if keep_uncovered and self.is_uncovered(group):
                return number
            self._remove_settled(group)
            del self._by_uid[group.uid], self.by_ordinal[group.ordinal]
            self.forgotten[group.state] += 1
        return len(oldest)

    def recall_forgotten(self, trained: int, dropped: Mapping[int, int]) -> None:
        """Count groups that an earlier life forgot."""
        self.forgotten += Counter({TRAINED: trained, DROPPED: sum(dropped.values())})
        self.counts += Counter({TRAINED: trained, DROPPED: sum(dropped.values())})
        self.dropped += Counter(dict(dropped))

    def in_order_of_settling(self) -> Iterator[Group]:
        """Give the settled groups that are remembered, oldest first, then the live by ordinal."""
        yield from (self._by_uid[uid] for uid in self._settled)
        yield from (group for group in self if group.state in LIVE)

    @contextmanager
    def changing(self, group: Group) -> Iterator[Group]:
        """Let the body change the group; indexes follow."""
        self._remove(group)
        try:
            yield group
        finally:
            self._insert(group)

    def grow_draft(self, group: Group, piece: prompt_pb2.Draft) -> None:
        """Add to what there is of a session; no index depends on it."""
        draft = group.drafts.setdefault(piece.session, prompt_pb2.Draft(session=piece.session))
        grow(draft, piece)
        self.draft_token_count += len(piece.token_ids)

    def _indexes(self, group: Group) -> Iterator[SortedKeyList]:
        if group.state == PENDING:
            yield self.pending
            if group.base:
                yield self.pending_aged
        elif group.state == RUNNING:
            yield self.running
        elif group.state == FINISHED:
            yield self.finished

    def _insert(self, group: Group) -> None:
        self.counts[group.state] += 1
        for index in self._indexes(group):
            index.add(group)
        if group.state not in DRAFTED:
            group.drafts.clear()
        self.draft_token_count += group.draft_token_count
        if group.state == DROPPED:
            self.dropped[group.drop_reason] += 1
        elif group.state == FAILED:
            self.failed[group.uid] = group
        elif group.state == SAMPLED:
            self.sampled[group.uid] = group
        elif group.state == RUNNING:
            self.leases[group.worker_id] += 1
            self.running_missing += self._n - len(group.sessions)
        if group.state in SETTLED:
            self._settled[group.uid] = None
            if self.is_uncovered(group):
                self._uncovered.setdefault(group.step, {})[group.uid] = group
            else:
                group.payload = None
        else:
            self.held_bytes += group.held_bytes

    def _remove(self, group: Group) -> None:
        self.counts[group.state] -= 1
        for index in self._indexes(group):
            index.remove(group)
        self.draft_token_count -= group.draft_token_count
        if group.state == DROPPED:
            self.dropped[group.drop_reason] -= 1
        elif group.state == FAILED:
            del self.failed[group.uid]
        elif group.state == SAMPLED:
            del self.sampled[group.uid]
        elif group.state == RUNNING:
            self.leases[group.worker_id] -= 1
            if not self.leases[group.worker_id]:
                del self.leases[group.worker_id]
            self.running_missing -= self._n - len(group.sessions)
        if group.state in SETTLED:
            self._remove_settled(group)
        else:
            self.held_bytes -= group.held_bytes

    def _remove_settled(self, group: Group) -> None:
        del self._settled[group.uid]
        if self.is_uncovered(group):
            of_step = self._uncovered[group.step]
            del of_step[group.uid]
            if not of_step:
                del self._uncovered[group.step]

    def to_counts(self) -> prompt_pb2.StateCounts:
        """Shape the counts for the wire."""
        return prompt_pb2.StateCounts(
            fed=self.fed_count,
            pending=self.counts[PENDING],
            running=self.counts[RUNNING],
            finished=self.counts[FINISHED],
            failed=self.counts[FAILED],
            sampled=self.counts[SAMPLED],
            trained=self.counts[TRAINED],
            dropped={reason_name(key): count for key, count in self.dropped.items() if count},
        )


def reason_name(reason: int) -> str:
    """Name a drop reason as metrics and people do: `stale`, `too_long`."""
    name = prompt_pb2.DropReason.Name(prompt_pb2.DropReason.ValueType(reason))
    return name.removeprefix("DROP_REASON_").lower()


def state_name(state: int) -> str:
    """Name a state as metrics and people do: `pending`."""
    name = prompt_pb2.PromptState.Name(prompt_pb2.PromptState.ValueType(state))
    return name.removeprefix("PROMPT_STATE_").lower()
