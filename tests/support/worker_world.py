"""Real servers with what a rollout worker needs of the replay buffer and the store.

The ledger hands out prompts under attempts and records sessions; the store keeps bytes in
memory. Both do what the protos say, misbehave when told to, and remember every call.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from headrace.errors import KeyExistsError, WeightsUnknownError
from headrace.rpc.server import bind, create_server
from headrace.trajectory.chunks import Joiner, verify
from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2_grpc, store_pb2, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trajectory_pb2 import Trajectory

HELD, LOST, DONE, STORE_CHANGED = (
    pb.LEASE_STATUS_HELD,
    pb.LEASE_STATUS_LOST,
    pb.LEASE_STATUS_DONE,
    pb.LEASE_STATUS_STORE_CHANGED,
)


class TinyLedger(replay_pb2_grpc.ReplayBufferServiceServicer):
    """The workers' side of the replay buffer."""

    def __init__(self, *, n: int = 2, temperature: float = 1.0, max_response_length: int = 8):
        self.n = n
        self.sampling = prompt_pb2.SamplingParams(
            temperature=temperature, max_response_length=max_response_length
        )
        self.lease_s = 60.0
        self.pending: deque[tuple[str, feeder_pb2.PromptPayload]] = deque()
        self.leased: dict[str, tuple[int, str]] = {}
        self.attempts: Counter[str] = Counter()
        self.sessions: dict[str, dict[int, prompt_pb2.SessionRecord]] = {}
        self.drafts: dict[str, dict[int, prompt_pb2.Draft]] = {}
        self.keeps = 10**9
        """Tokens of a draft that it keeps at most."""
        self.payloads: dict[str, feeder_pb2.PromptPayload] = {}
        self.ended_leases: list[pb.EndedLease] = []
        self.store_incarnation = "s1"
        self.weights: prompt_pb2.PublishedWeights | None = None
        self.published: list[prompt_pb2.PublishedWeights] = []
        self.oldest_version = 0
        self.ended = False
        self.refuse: Callable[[str], None] = lambda method: None
        self.held: dict[str, asyncio.Event] = {}
        """What calls of a method wait for, before they are answered."""
        self.calls: list[tuple[str, Any]] = []
        self.changed = asyncio.Condition()

    def feed(self, *uids: str, token_ids: tuple[int, ...] = (2, 3), answer: str = "") -> None:
        for uid in uids:
            payload = feeder_pb2.PromptPayload(
                token_ids=token_ids, text="ab", answer=answer, metadata_json='{"row": 1}'
            )
            self.payloads[uid] = payload
            self.pending.append((uid, payload))

    def take_back(self, uid: str) -> None:
        del self.leased[uid]

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], object], timeout_s: float = 20) -> None:
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(condition)

    async def _long_poll(self, condition: Callable[[], object], wait_s: float) -> None:
        try:
            await self.until(condition, wait_s)
        except TimeoutError:
            return

    async def _note(self, method: str, request: Any) -> None:
        self.calls.append((method, request))
        await self.notify()
        if method in self.held:
            await self.held[method].wait()
        self.refuse(method)

    async def AwaitWeights(self, request: pb.AwaitWeightsRequest, context: Any) -> Any:
        await self._note("AwaitWeights", request)

        def newer() -> bool:
            have = request.newer_than if request.HasField("newer_than") else None
            return self.ended or (self.weights is not None and self.weights.id != have)

        await self._long_poll(newer, request.wait_s)
        return pb.AwaitWeightsResponse(
            weights=self.weights if newer() and not self.ended else None, ended=self.ended
        )

    async def LeasePrompts(self, request: pb.LeasePromptsRequest, context: Any) -> Any:
        await self._note("LeasePrompts", request)
        if request.weights_checksum not in [each.checksum for each in self.published]:
            raise WeightsUnknownError("never published")

        def ready() -> bool:
            usable = request.weights.version >= self.oldest_version
            return self.ended or bool(self.pending and usable)

        await self._long_poll(ready, request.wait_s)
        count = min(request.max_count, len(self.pending)) if ready() else 0
        granted = [self._lease(request.worker_id) for _ in range(count)]
        await self.notify()
        return pb.LeasePromptsResponse(
            leases=granted, ended=self.ended, blocked_by="" if granted else "the window is full"
        )

    def _lease(self, worker_id: str) -> prompt_pb2.Lease:
        uid, payload = self.pending.popleft()
        self.attempts[uid] += 1
        self.leased[uid] = (self.attempts[uid], worker_id)
        have = self.sessions.setdefault(uid, {})
        return prompt_pb2.Lease(
            uid=uid,
            attempt=self.attempts[uid],
            lineage="main",
            expires_in_s=self.lease_s,
            payload=payload,
            missing_sessions=[session for session in range(self.n) if session not in have],
            sampling=self.sampling,
            drafts=self.drafts.get(uid, {}).values(),
        )

    def _status(self, worker_id: str, ref: pb.LeaseRef) -> pb.LeaseStatus.ValueType:
        if self.leased.get(ref.uid) == (ref.attempt, worker_id):
            return HELD
        whole = len(self.sessions.get(ref.uid, {})) == self.n
        return DONE if whole and self.attempts[ref.uid] == ref.attempt else LOST

    async def RenewLeases(self, request: pb.RenewLeasesRequest, context: Any) -> Any:
        await self._note("RenewLeases", request)
        kept = [
            self._keep(each.lease.uid, draft)
            if self._status(request.worker_id, each.lease) == HELD
            else 0
            for each in request.progress
            for draft in each.drafts
        ]
        await self.notify()
        return pb.RenewLeasesResponse(
            statuses=[self._status(request.worker_id, ref) for ref in request.leases],
            expires_in_s=self.lease_s,
            kept_counts=kept,
        )

    def _keep(self, uid: str, piece: prompt_pb2.Draft) -> int:
        """Add a piece to what is known; pieces come without holes and repeats here."""
        draft = self.drafts.setdefault(uid, {}).setdefault(
            piece.session, prompt_pb2.Draft(session=piece.session)
        )
        known = len(draft.token_ids)
        assert piece.offset == known
        count = min(len(piece.token_ids), self.keeps - known)
        draft.token_ids.extend(piece.token_ids[:count])
        draft.logprobs.extend(piece.logprobs[:count])
        if count:
            draft.weight_spans.extend(piece.weight_spans)
            draft.weight_spans[-1].end = known + count
        return known + count

    async def CompleteSessions(self, request: pb.CompleteSessionsRequest, context: Any) -> Any:
        await self._note("CompleteSessions", request)
        changed = request.store_incarnation != self.store_incarnation
        for item in request.sessions:
            if not changed and self._status(request.worker_id, item.lease) == HELD:
                self.sessions[item.lease.uid][item.record.session] = item.record
        statuses = []
        for item in request.sessions:
            if len(self.sessions[item.lease.uid]) == self.n:
                self.leased.pop(item.lease.uid, None)
            status = self._status(request.worker_id, item.lease)
            statuses.append(STORE_CHANGED if changed and status == HELD else status)
        await self.notify()
        return pb.CompleteSessionsResponse(statuses=statuses)

    async def EndLeases(self, request: pb.EndLeasesRequest, context: Any) -> Any:
        await self._note("EndLeases", request)
        statuses = []
        for ended in request.leases:
            current = self._status(request.worker_id, ended.lease) == HELD
            statuses.append(DONE if current else LOST)
            if current:
                uid = ended.lease.uid
                del self.leased[uid]
                self.ended_leases.append(ended)
                self.pending.append((uid, self.payloads[uid]))
        await self.notify()
        return pb.EndLeasesResponse(statuses=statuses)

    async def publish(self, weights: prompt_pb2.PublishedWeights) -> None:
        self.weights = weights
        self.published.append(weights)
        await self.notify()

    def is_whole(self, *uids: str) -> bool:
        return all(len(self.sessions.get(uid, {})) == self.n for uid in uids)


class TinyStore(store_pb2_grpc.TrajectoryStoreServiceServicer):
    """Rows in memory."""

    def __init__(self) -> None:
        self.incarnation = "s1"
        self.rows: dict[str, bytes] = {}
        self.put_count = 0
        self.answers = asyncio.Event()
        """Whether puts are answered, or wait."""
        self.answers.set()

    @property
    def trajectories(self) -> dict[str, Trajectory]:
        return {key: Trajectory.FromString(value) for key, value in self.rows.items()}

    def die(self, incarnation: str) -> None:
        """Come back as another life, without rows."""
        self.rows.clear()
        self.incarnation = incarnation

    async def PutTrajectories(self, request_iterator: Any, context: Any) -> Any:
        joiner = Joiner()
        confirmed = 0
        self.put_count += 1
        async for request in request_iterator:
            for chunk in request.chunks:
                value = joiner.add(chunk)
                if value is not None:
                    verify(value)
                    if self.rows.setdefault(value.key, value.data) != value.data:
                        raise KeyExistsError(f"{value.key} is there with other bytes")
                    confirmed += 1
        joiner.finish()
        await self.answers.wait()
        return store_pb2.PutTrajectoriesResponse(
            store_incarnation=self.incarnation, confirmed_count=confirmed
        )


@asynccontextmanager
async def serving(add: Callable[[grpc.aio.Server], None], port: int = 0) -> AsyncIterator[str]:
    """Serve on loopback; gives the address."""
    server = create_server(CollectorRegistry())
    add(server)
    address = bind(server, "127.0.0.1", port)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
