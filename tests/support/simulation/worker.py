"""A rollout worker: weights come on one thread; on the other groups are leased and seen through.

What its engine makes is a pure function of prompt and session, but for the weights it has then.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import KeyExistsError, WeightsUnknownError
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import prompt_pb2, trajectory_pb2
from headrace.v1 import replay_pb2 as pb
from simulation.engine import PAUSE, TICK_S, Party, Work
from simulation.store import Row

if TYPE_CHECKING:
    from simulation.world import World

POLL_TICKS = 150
LONG_POLL_TICKS = 600
ROW_BYTES = 10


class Worker(Party):
    """One life of the process. Its name is the place; its id is new with each life."""

    world: World

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self.name = name
        self.worker_id = f"{name}-{self.number}"
        self._weights: prompt_pb2.PublishedWeights | None = None

    def start(self) -> None:
        self.spawn(self._follow_weights())
        for _ in range(2):  # calls of one worker overtake each other
            self.spawn(self._work())

    def _follow_weights(self) -> Work:
        while True:
            request = pb.AwaitWeightsRequest(wait_s=POLL_TICKS * TICK_S)
            if self._weights:
                request.newer_than.CopyFrom(self._weights.id)
            answer = yield from self.ask("replay", "AwaitWeights", request, POLL_TICKS)
            if answer.ended:
                yield ("sleep", POLL_TICKS)
            elif answer.HasField("weights"):
                yield PAUSE  # the download
                self._weights = answer.weights
                self.world.judge.loaded_weights(self, answer.weights)

    def _work(self) -> Work:
        while True:
            weights = self._weights
            if weights is None:
                yield ("sleep", 5)
                continue
            ticks = LONG_POLL_TICKS if self.rng.random() < 0.3 else POLL_TICKS
            request = pb.LeasePromptsRequest(
                worker_id=self.worker_id,
                max_count=1 + int(self.rng.random() * 6),
                weights=weights.id,
                weights_checksum=weights.checksum,
                wait_s=ticks * TICK_S,
            )
            try:
                answer = yield from self.ask("replay", "LeasePrompts", request, ticks)
            except WeightsUnknownError:
                yield ("sleep", 5)
                continue
            if answer.ended:
                yield ("sleep", POLL_TICKS)
            elif answer.leases:
                yield from self._see_through(answer.leases, weights.id)

    def _see_through(self, leases: Any, leased_with: prompt_pb2.WeightsId) -> Work:
        """Generate, deliver, and end what failed or is not worth going on with."""
        held = list(leases)
        if self.rng.random() < 0.3:
            request = pb.RenewLeasesRequest(
                worker_id=self.worker_id, leases=[_ref(lease) for lease in held]
            )
            renewed = yield from self.ask("replay", "RenewLeases", request)
            held = [
                lease
                for lease, status in zip(held, renewed.statuses, strict=True)
                if status != pb.LEASE_STATUS_LOST
            ]
        ends: list[pb.EndedLease] = []
        while held:
            some = held[: 1 + int(self.rng.random() * len(held))]
            held = held[len(some) :]
            yield from self._deliver(some, leased_with, ends)
        if ends:
            ended = pb.EndLeasesRequest(worker_id=self.worker_id, leases=ends)
            yield from self.ask("replay", "EndLeases", ended)

    def _deliver(
        self, leases: list[Any], leased_with: prompt_pb2.WeightsId, ends: list[pb.EndedLease]
    ) -> Work:
        """Make the missing sessions of some leases, put them, complete them."""
        hands_back = self.world.faults_on and self.rng.random() < 0.03
        make = self._make_slowly if self.world.scenario.drafts else self._make
        rows: dict[str, Row] = {}
        items: list[pb.CompletedSession] = []
        for lease in leases:
            yield PAUSE
            weights = self._weights
            assert weights
            if not self.suits(weights.id, lease.lineage, leased_with):
                # The call had waited since older weights; a rollback has let it through.
                ends.append(pb.EndedLease(lease=_ref(lease), end=pb.LEASE_END_RETURNED))
                self.world.judge.counts["weights_of_another_line"] += 1
                continue
            failed = False
            for session in lease.missing_sessions:
                if hands_back and self.rng.random() < 0.5:
                    continue
                if self._fails(lease):
                    failed = True
                    continue
                made = yield from make(lease, session, leased_with)
                if made is None:
                    hands_back = True
                    continue
                key = TrajectoryKey(lease.uid, session, 0, lease.lineage, lease.attempt)
                line, version = made[-1]
                rows[str(key)] = Row(line, version, tuple(dict.fromkeys(made[:-1])))
                items.append(_completed(lease, session, made))
            if failed:
                end = pb.LEASE_END_FAILED
                ends.append(pb.EndedLease(lease=_ref(lease), end=end, error="the engine raised"))
                self.world.judge.engine_failed(lease.uid)
            elif hands_back:
                ends.append(pb.EndedLease(lease=_ref(lease), end=pb.LEASE_END_RETURNED))
        while items:
            try:
                incarnation = yield from self.ask("store", "put", rows)
            except KeyExistsError:
                return  # an earlier journal gave the same lease: it is lost
            request = pb.CompleteSessionsRequest(
                worker_id=self.worker_id, store_incarnation=incarnation, sessions=items
            )
            answer = yield from self.ask("replay", "CompleteSessions", request)
            if pb.LEASE_STATUS_STORE_CHANGED not in answer.statuses:
                return
            yield ("sleep", 10)

    def _make(self, lease: Any, session: int, leased_with: prompt_pb2.WeightsId) -> Work:
        """Make a response at once; give the weights, (lineage, version), of each token."""
        assert self._weights
        yield from ()
        return [(self._weights.id.lineage, self._weights.id.version)]

    def _make_slowly(self, lease: Any, session: int, leased_with: prompt_pb2.WeightsId) -> Work:
        """Go on with what there is, by whatever weights there are then; say how far it has come.

        Gives None if the lease was lost, or the weights are of another line.
        """
        [draft] = [each for each in lease.drafts if each.session == session] or [None]
        made = [(s.lineage, s.version) for s in _spans(draft) for _ in range(s.begin, s.end)]
        self.world.judge.goes_on(lease.uid, session, draft)
        kept = len(made)
        for _ in range(1 + int(self.rng.random() * 4)):
            yield PAUSE
            weights = self._weights
            assert weights
            if not self.suits(weights.id, lease.lineage, leased_with):
                return None
            made.append((weights.id.lineage, weights.id.version))
            if self.rng.random() < 0.4:
                # From time to time something is told twice.
                begin = max(0, kept - int(self.rng.random() * 2))
                piece = _piece(lease.uid, session, begin, made)
                progress = pb.LeaseProgress(
                    lease=_ref(lease), lineage=lease.lineage, drafts=[piece]
                )
                request = pb.RenewLeasesRequest(
                    worker_id=self.worker_id, leases=[_ref(lease)], progress=[progress]
                )
                answer = yield from self.ask("replay", "RenewLeases", request)
                if answer.statuses[0] == pb.LEASE_STATUS_LOST:
                    return None
                [kept] = answer.kept_counts
        yield PAUSE
        weights = self._weights
        assert weights
        if not self.suits(weights.id, lease.lineage, leased_with):
            return None
        made.append((weights.id.lineage, weights.id.version))  # the stop token is never reported
        return made

    @staticmethod
    def suits(
        weights: prompt_pb2.WeightsId, lineage: str, leased_with: prompt_pb2.WeightsId
    ) -> bool:
        """Whether the engine's weights may generate for a lease of this line."""
        return weights.lineage == lineage or weights == leased_with

    def _fails(self, lease: Any) -> bool:
        scenario = self.world.scenario
        out_of_order = self.world.tick < self.world.engines_fail_until
        if out_of_order or self.world.row(lease.ordinal) in scenario.bad_rows:
            return True
        return scenario.fails > 0 and self.rng.random() < scenario.fails


def reward_of(uid: str, session: int) -> float:
    """Score a session; about a sixth of the prompts have equal rewards."""
    flat = zlib.crc32(uid.encode()) % 6 == 0
    return 1.0 if flat else float(session)


def token(uid: str, session: int, place: int) -> int:
    """Give the token at a place of a session's response."""
    return zlib.crc32(f"{uid}:{session}:{place}".encode()) % 2**20


def _spans(draft: prompt_pb2.Draft | None) -> Sequence[trajectory_pb2.WeightSpan]:
    return draft.weight_spans if draft else ()


def _piece(uid: str, session: int, begin: int, made: Sequence[tuple[str, int]]) -> prompt_pb2.Draft:
    """Shape what a report says of a session from a place on: a span per token."""
    places = range(begin, len(made))
    return prompt_pb2.Draft(
        session=session,
        offset=begin,
        token_ids=[token(uid, session, place) for place in places],
        logprobs=[-1.0 for _ in places],
        weight_spans=[
            trajectory_pb2.WeightSpan(
                lineage=made[place][0], version=made[place][1], begin=place, end=place + 1
            )
            for place in places
        ],
    )


def _ref(lease: Any) -> pb.LeaseRef:
    return pb.LeaseRef(uid=lease.uid, attempt=lease.attempt)


def _completed(lease: Any, session: int, made: Sequence[tuple[str, int]]) -> pb.CompletedSession:
    return pb.CompletedSession(
        lease=_ref(lease),
        record=prompt_pb2.SessionRecord(
            session=session,
            lineage=lease.lineage,
            attempt=lease.attempt,
            trajectory_count=1,
            size_bytes=ROW_BYTES,
            token_count=len(made),
            reward=reward_of(lease.uid, session),
            min_version=min(version for _, version in made),
            max_version=max(version for _, version in made),
        ),
    )
