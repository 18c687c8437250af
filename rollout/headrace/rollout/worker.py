"""The worker: what its loops have in common, and the way home.

| loop       | waits for                          | does                                         |
|------------|------------------------------------|----------------------------------------------|
| weights    | newer weights (`weights.py`)       | loads and confirms them                      |
| leases     | weights, room (`leases.py`)        | one call for as many groups as there is room |
| renewals   | time, or tokens (`renewals.py`)    | loses what the ledger says is lost           |
| deliveries | scored sessions (`delivery.py`)    | puts and completes many groups together      |
| endings    | groups that failed or go back      | ends many leases together                    |

What a group goes through is in `groups.py`. The worker holds nothing that the ledger does not
know: killed at any moment, it leaves leases that run out.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.log import get_logger
from headrace.rollout.ask import REFUSALS, Peer
from headrace.rollout.batcher import Batcher
from headrace.rollout.changes import Changes
from headrace.rollout.delivery import Deliveries
from headrace.rollout.direct import DirectWay
from headrace.rollout.download import Downloads
from headrace.rollout.engines.base import Engine
from headrace.rollout.groups import GroupLife, Outcome, Tools, one_line
from headrace.rollout.leases import Leases
from headrace.rollout.pause import Pause
from headrace.rollout.renewals import Renewals
from headrace.rollout.rewards.base import Rewards
from headrace.rollout.weights import Weights
from headrace.rpc.calls import Stopped
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2, replay_pb2

if TYPE_CHECKING:
    from headrace.v1 import replay_pb2_grpc, store_pb2_grpc

DRAIN_S: Final = 5.0
"""How long a worker that goes home waits for what is on its way into the store."""
FAREWELL_S: Final = 3.0
"""How long handing back may take after that."""
_MOST_ENDINGS: Final = 4096
_USUAL_GROUPS: Final = 64
"""Held at a time, if neither the configuration nor the engine says how many."""

MOST_LOSSES: Final = 3
"""How often an engine may be lost with a group before that is held against the group."""

log = get_logger()


@dataclass(frozen=True)
class WorkerSettings:
    """The worker's part of the configuration."""

    worker_id: str
    """Unique per life."""
    max_groups_in_flight: int | None
    """None = what the engine has room for."""
    group_size: int
    """Sessions of a group."""
    max_leases_per_call: int
    max_generation_s: float
    lease_s: float
    """Taken from the ledger's answers later on."""
    lease_wait_s: float = 1.0
    """How long one call waits for work; also the time that going home may take at least."""
    report_every: int | None = None
    """Tokens that a response grows by until it is reported; None = never."""
    idle_after_s: float | None = None
    """How long it is normal to have nothing to do; None = no longer than any wait."""


class _Situation(NamedTuple):
    """What the worker waits for as a whole."""

    name: str
    owner: str
    ends_when: str
    is_idle: bool


class Worker:
    """Pulls groups from the ledger and sees them through, until it is told to stop."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        engine: Engine,
        rewards: Rewards,
        decode: Callable[[list[int]], str],
        replay_stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        store_stub: store_pb2_grpc.TrajectoryStoreServiceAsyncStub,
        downloads: Downloads | None = None,
        direct: DirectWay | None = None,
        waits: Waits,
        stopping: asyncio.Event,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.completed_session_count = 0
        self._wasted_token_count = 0
        self._most_wasted = 0
        self._continued_token_count = 0
        self._ended_group_count = 0
        self._groups: dict[asyncio.Task[None], GroupLife] = {}
        self._lost_with: Counter[str] = Counter()
        """How often the engine was lost with a group, by uid, while that is not done."""
        self._stub = replay_stub
        self._waits = waits
        self._stopping = stopping
        self._sleep = sleep
        self._changes = Changes()
        self._pause = Pause(now=now, jitter=jitter)
        # Told to stop, a worker polls no more, has some time for deliveries, some more to hand back.
        self._late, self._gone = asyncio.Event(), asyncio.Event()
        polls, reports, self._farewells = (
            Peer("replay", waits=waits, stopping=until)
            for until in (stopping, self._late, self._gone)
        )
        self.weights = Weights(
            engine,
            replay=polls,
            stub=replay_stub,
            downloads=downloads,
            direct=direct,
            waits=waits,
            changes=self._changes,
            lost=self._lose_engine,
            pause=Pause(now=now, jitter=jitter),
            sleep=sleep,
        )
        engine.when_lost(self.weights.lose)
        self._leases = Leases(
            worker_id=settings.worker_id,
            weights=self.weights,
            room=self._room,
            most_per_call=settings.max_leases_per_call,
            wait_s=settings.lease_wait_s,
            accept=self._accept,
            go_home=stopping.set,
            replay=polls,
            stub=replay_stub,
            pause=self._pause,
            changes=self._changes,
            waits=waits,
            sleep=sleep,
        )
        self._deliveries = Deliveries(
            worker_id=settings.worker_id,
            replay=reports,
            replay_stub=replay_stub,
            store_stub=store_stub,
            waits=waits,
            stopping=self._late,
            sleep=sleep,
            jitter=jitter,
        )
        self._reports = reports
        self._renewals = Renewals(
            worker_id=settings.worker_id,
            lives=lambda: list(self._groups.values()),
            lease_s=settings.lease_s,
            report_every=settings.report_every,
            go_home=stopping.set,
            replay=polls,
            stub=replay_stub,
            sleep=sleep,
        )
        self._endings = Batcher(self._end_leases, most=_MOST_ENDINGS)
        self._tools = Tools(
            engine=engine,
            score=rewards.score,
            deliver=self._deliveries.deliver,
            decode=decode,
            now=now,
            max_generation_s=settings.max_generation_s,
        )

    @property
    def group_count(self) -> int:
        """Groups it holds leases for."""
        return len(self._groups)

    @property
    def wasted_token_count(self) -> int:
        """Sampled tokens whose session was lost, cancelled or failed, and that nobody has.

        It never falls, though a session's tokens are told of before the engine has counted them.
        """
        wasted = self._wasted_token_count + self.engine.status().aborted_token_count
        self._most_wasted = max(self._most_wasted, wasted)
        return self._most_wasted

    @property
    def continued_token_count(self) -> int:
        """Tokens that came with leases: they were gone on with, not made again."""
        return self._continued_token_count

    async def run(self) -> None:
        """Work until told to stop; then hand back what is unfinished."""
        async with asyncio.TaskGroup() as loops:
            tasks = [
                loops.create_task(work, name=name)
                for name, work in (
                    ("weights", self.weights.run()),
                    ("leases", self._leases.run()),
                    ("renewals", self._renewals.run()),
                    ("deliveries", self._deliveries.run()),
                    ("endings", self._endings.run()),
                    ("waits", self._name_waits()),
                )
            ]
            await self._stopping.wait()
            await self._go_home()
            for task in tasks:
                task.cancel()

    def _room(self) -> int:
        """Return for how many more groups there is room."""
        limits = [self.settings.max_groups_in_flight]
        sequences = self.engine.status().room
        if sequences is not None:
            limits.append(-(-sequences // self.settings.group_size))
        return min((limit for limit in limits if limit is not None), default=_USUAL_GROUPS) - len(
            self._groups
        )

    def _accept(self, leases: Sequence[prompt_pb2.Lease], weights: prompt_pb2.WeightsId) -> None:
        for lease in leases:
            self._renewals.lease_s = lease.expires_in_s or self._renewals.lease_s
            # The call was made before the worker was told to stop, or the engine lost its weights.
            if self._stopping.is_set() or self.weights.current is None:
                self._end(_ref(lease), replay_pb2.LEASE_END_RETURNED)
                continue
            life = GroupLife(lease, weights, self._tools)
            task = asyncio.create_task(self._see_through(life), name=f"group {lease.uid}")
            self._groups[task] = life
            task.add_done_callback(self._forget)

    def _lose_engine(self) -> None:
        """Give up all groups, blaming those that it happens with again and again.

        A loss may be told of twice: when it happens, and by the weights that were coming.
        """
        for life in self._groups.values():
            if life.is_revoked:
                continue
            uid = life.lease.uid
            self._lost_with[uid] += 1
            if self._lost_with[uid] > MOST_LOSSES:
                count = self._lost_with.pop(uid)
                life.errors.append(f"the engine was lost with this group under way, {count} times")
        self._hand_back()

    def _hand_back(self) -> None:
        """Give up all groups; what is on its way into the store goes on."""
        for life in self._groups.values():
            life.hand_back()

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._groups[task]
        self._ended_group_count += 1
        self._changes.notify()

    async def _see_through(self, life: GroupLife) -> None:
        await self._hold_back()
        try:
            outcome = await life.run()
        except Exception as error:  # a mistake of ours with this group must not end the others
            log.exception("group_broke", uid=life.lease.uid)
            life.errors.append(one_line(error))
            outcome = Outcome.FAILED
        self.completed_session_count += life.recorded_session_count
        self._continued_token_count += life.continued_token_count
        self._wasted_token_count += (
            life.generated_token_count - life.recorded_token_count - life.kept_token_count
        )
        if outcome is Outcome.DONE:
            self._lost_with.pop(life.lease.uid, None)
            self._pause.succeed()
        elif outcome is Outcome.LOST:
            log.info("lease_lost", uid=life.lease.uid, attempt=life.lease.attempt)
        elif outcome is Outcome.RETURNED:
            self._end(_ref(life.lease), replay_pb2.LEASE_END_RETURNED)
        elif outcome is Outcome.FAILED:
            self._pause.fail()
            log.warning("group_failed", uid=life.lease.uid, errors=life.errors[:3])
            self._end(_ref(life.lease), replay_pb2.LEASE_END_FAILED, life.errors[0])

    async def _hold_back(self) -> None:
        """Let a pause pass, for a lease that was granted to a call made before it."""
        if self._pause.left_s == 0:
            return
        waits = {
            asyncio.ensure_future(work)
            for work in (self._sleep(self._pause.left_s), self._stopping.wait())
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _end(
        self, lease: replay_pb2.LeaseRef, end: replay_pb2.LeaseEnd.ValueType, error: str = ""
    ) -> None:
        self._endings.add(replay_pb2.EndedLease(lease=lease, end=end, error=error))

    async def _end_leases(self, ended: list[replay_pb2.EndedLease]) -> None:
        if self._stopping.is_set():
            # A call that still waits would be granted what is handed back here.
            await self._leases.settle()
        request = replay_pb2.EndLeasesRequest(worker_id=self.settings.worker_id, leases=ended)
        try:
            await self._farewells.ask(self._stub.EndLeases, request)
        except Stopped:
            log.warning("leases_left_to_run_out", count=len(ended))
        except REFUSALS as error:
            log.warning("leases_left_to_run_out", count=len(ended), error=str(error))

    async def _go_home(self) -> None:
        """Hand back what is not done; what is on its way into the store gets `DRAIN_S`."""
        log.info("draining", groups=len(self._groups))
        await self._renewals.report(self._reports)
        self._hand_back()
        drained = asyncio.create_task(self._drain())
        for limit_s, limit in ((DRAIN_S, self._late), (FAREWELL_S, self._gone), (1.0, None)):
            await asyncio.wait([drained], timeout=limit_s)
            if limit is not None:
                limit.set()
        log.info("drained" if drained.done() else "left", groups=len(self._groups))
        for task in (drained, *self._groups):
            task.cancel()

    async def _drain(self) -> None:
        await self._leases.settle()
        while self._groups:
            await asyncio.gather(*self._groups, return_exceptions=True)
        await self._endings.idle()

    async def _name_waits(self) -> None:
        """Keep one named wait for the worker as a whole; progress begins a new one."""
        while True:
            situation = self._situation()
            if situation is None:
                await self._changes.wait()
                continue
            limit_s = self.settings.idle_after_s if situation.is_idle else None
            with self._waits.waiting(
                situation.name, owner=situation.owner, stall_after_s=limit_s
            ) as wait:
                begun = (situation[:2], self._ended_group_count)
                while situation is not None and begun == (situation[:2], self._ended_group_count):
                    wait.ends_when = situation.ends_when
                    await self._changes.wait()
                    situation = self._situation()

    def _situation(self) -> _Situation | None:
        """Say what the worker waits for; nothing once the run is over."""
        if self._groups:
            owner = f"{self.engine.kind} engine"
            return _Situation("engine", owner, "a group is generated, scored and stored", False)
        if self.weights.ended:
            return None
        if self.weights.current is None:
            ends_when = "weights are published and loaded"
            if why := self.weights.refused_as:
                engine = f"{self.engine.kind} engine"
                return _Situation("weights", engine, f"{ends_when}; last: {why}", False)
            return _Situation("weights", "trainer", ends_when, True)
        ends_when = "a prompt can be leased"
        if self._leases.blocked_by:
            ends_when += f" (now: {self._leases.blocked_by})"
        return _Situation("work", "replay", ends_when, True)


def _ref(lease: prompt_pb2.Lease) -> replay_pb2.LeaseRef:
    return replay_pb2.LeaseRef(uid=lease.uid, attempt=lease.attempt)
