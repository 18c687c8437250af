"""The replay buffer: the real rules behind the real service, over the simulated journal.

Requests and answers are the wire's messages. What is replaced: the event loop, the clock, the
journal's medium, the place of `ledger.pb`, and the source of random ids.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from headrace.errors import (
    CannotResumeError,
    HeadraceError,
    NotReadyError,
    SnapshotFailedError,
    WriterFencedError,
)
from headrace.replay import compactor
from headrace.replay.base import to_base
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.compactor import CompactionSettings, Compactor
from headrace.replay.deadlines import LeaseDeadlines
from headrace.replay.journal.base import Journal, JournalDamagedError
from headrace.replay.load import load_until, open_ledger
from headrace.replay.polls import Alike, Look, unlike_others
from headrace.replay.service import coordinator
from headrace.replay.service.service import ReplayService
from headrace.replay.workers import Workers
from headrace.v1 import journal_pb2, resume_pb2, status_pb2
from simulation.engine import TICK_S, Call, Party, Work
from simulation.journal import MemoryCommitter, OpenJournal, wait_for
from simulation.storage import DamagedError

if TYPE_CHECKING:
    from simulation.world import World

RUN_ID = "run"
LEASE_S = 60.0
WORKER_TIMEOUT_S = 120.0
EXPIRE_EVERY_TICKS = 60


class SimulatedBuffer(ReplayBuffer):
    """Long polls wait in the scheduler's pool instead of an event loop."""

    party: Replay

    async def until(self, look: Look[Any], wait_s: float, alike: Alike = unlike_others) -> Any:
        answer = self._asked(look)
        if answer is None and wait_s:
            state = SimpleNamespace(is_over=False)
            self.party.world.later(int(wait_s / TICK_S), lambda: self.party.end_poll(state))
            while answer is None and not state.is_over:
                await wait_for(("hold", lambda thread: self.party.hold_poll(thread, state)))
                answer = self._asked(look)
        return answer

    def _asked(self, look: Look[Any]) -> Any:
        try:
            return look()
        finally:
            self.commit()

    def wake(self) -> None:
        self.party.wake_polls()


class _Lock:
    """Like asyncio.Lock, for threads of the scheduler."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._is_held = False
        self._waiting: list[Any] = []

    async def __aenter__(self) -> None:
        while self._is_held:
            await wait_for(("hold", self._waiting.append))
        self._is_held = True

    async def __aexit__(self, *_: object) -> None:
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            self._party.world.go_on(thread)


class Replay(Party):
    """One life of the replay buffer."""

    name = "replay"
    world: World
    _stopping: ClassVar[asyncio.Event]

    def __init__(self, world: World) -> None:
        super().__init__(world)
        scenario = world.scenario
        self.journal = OpenJournal(world.journal)
        self._is_compacting = False
        self.serving: Party | None = None
        """Whose call is being served."""
        self.newest_trainer: Party | None = world.judge.newest_trainer
        """Who registered last, as far as this life knows."""
        self.registered: dict[int, Party | None] = {}
        """Who registered, by the event's position."""
        journal = cast("Journal", self.journal)
        ledger = open_ledger(journal, scenario.rules, run_id=RUN_ID, new_lineage=world.token()[:6])
        self.committer = MemoryCommitter(
            self.journal,
            written=self._written,
            enqueued=lambda: world.do(self._sync),
            go_on=world.go_on,
        )
        self._polls: dict[Any, Any] = {}
        self.buffer = SimulatedBuffer(
            ledger,
            scenario.rules,
            cast("Any", self.committer),
            deadlines=LeaseDeadlines(clock=world.now_s, lease_s=LEASE_S),
            workers=Workers(clock=world.now_s, timeout_s=WORKER_TIMEOUT_S),
            stopping=cast("Any", SimpleNamespace(is_set=lambda: False)),
            observe=self._happened,
        )
        self.buffer.party = self
        self.buffer.journal_reader = cast("Any", _Lock(self))
        self.buffer.cut_keeps_settled = scenario.keep_settled
        self._compactor = Compactor(
            self.buffer,
            journal,
            CompactionSettings(
                scenario.compact_every,
                scenario.keep_settled,
                keep_events=10,
                keep_uncovered=scenario.save_freq > 0,
            ),
        )
        self._service = ReplayService(lambda: _STATUS)
        self._service.open(self.buffer, journal)

    def start(self) -> None:
        self.world.judge.loaded(self)
        self.buffer.take_up()
        self._tick()

    def serve(self, method: str, request: Any, call: Call) -> Any:
        return self._served(method, request, call)

    async def _served(self, method: str, request: Any, call: Call) -> Any:
        """Serve, and show the judge what is answered as it leaves."""
        work = getattr(self._service, method)(request, None)
        try:
            answer = await _Relay(self, work, call.caller)
        except JournalDamagedError:
            if self.is_fenced:  # the newer life has compacted what this one looks for
                raise NotReadyError("fenced") from None
            raise
        self.world.judge.replied(self, call, method, request, answer)
        return answer

    def die(self) -> None:
        super().die()
        queued = self.committer.queued_count
        if queued and self.rng.random() < 0.5:
            self.committer.tear(self.rng.randrange(queued + 1))

    @property
    def is_fenced(self) -> bool:
        """Whether a newer life has the journal."""
        return self.journal.is_fenced

    # -- what the buffer wants

    def hold_poll(self, thread: Any, state: Any) -> None:
        """Keep a long poll until something changes, or its time is over."""
        if state.is_over:
            self.world.go_on(thread)
        else:
            self._polls[thread] = state

    def wake_polls(self) -> None:
        """Let all long polls look again, each at its turn."""
        polls, self._polls = self._polls, {}
        for thread in polls:
            self.world.go_on(thread)

    def end_poll(self, state: Any) -> None:
        """Let the long poll end."""
        state.is_over = True
        for thread, its in list(self._polls.items()):
            if its is state:
                del self._polls[thread]
                self.world.go_on(thread)

    # -- what happens by itself

    def _happened(self, _: Any, records: Sequence[journal_pb2.JournalRecord]) -> None:
        self.world.judge.enqueued(self, records)

    def _written(self, records: Sequence[journal_pb2.JournalRecord], digest: int) -> None:
        self.world.digest = zlib.crc32(b"%d" % digest, self.world.digest)
        if self.world.journal is self.journal.disk:
            self.world.judge.durable(self, records)

    def _sync(self) -> None:
        if not self.is_up:
            return
        frozen = self.frozen_until - self.world.tick
        if frozen > 0:
            self.world.later(frozen, self._sync)
            return
        try:
            self.committer.sync()
        except WriterFencedError:
            self.die()

    def _tick(self) -> None:
        """Expire leases, and compact when it is time to."""
        if not self.is_up:
            return
        frozen = max(0, self.frozen_until - self.world.tick)
        if not frozen:
            self.serving = None
            self.buffer.expire_leases()
            if self._compactor.is_due:
                self.spawn(self._compact())
        self.world.later(EXPIRE_EVERY_TICKS + frozen, self._tick)

    def _compact(self) -> Work:
        if self._is_compacting or not self._compactor.is_due:
            return
        self._is_compacting = True
        try:
            yield from self._compactor.compact().__await__()
        except (JournalDamagedError, WriterFencedError):
            if not self.is_fenced:
                raise
        finally:
            self._is_compacting = False


class _Relay:
    """Notes, each time the work goes on, whose call it is."""

    def __init__(self, party: Replay, work: Any, caller: Party) -> None:
        self._party = party
        self._work = work
        self._caller = caller

    def __await__(self) -> Work:
        value = None
        try:
            while True:
                self._party.serving = self._caller
                try:
                    wants = self._work.send(value)
                except StopIteration as stop:
                    return stop.value
                value = yield wants
        finally:
            self._work.close()


_STATUS = status_pb2.ProcessStatus()


def _itself(work: Any) -> Any:
    """Await it here: callers do not go away in the middle, their answers get lost."""
    return work


async def _sleep(_: float) -> None:
    await wait_for(("pause",))


async def _to_thread(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    await wait_for(("pause",))
    result = work(*args, **kwargs)
    await wait_for(("pause",))
    return result


@contextmanager
def bound(world: World) -> Iterator[None]:
    """Let the service's modules take what is not pure from this world, for a while.

    Only one world is bound at a time in a process.
    """
    threads = SimpleNamespace(to_thread=_to_thread, sleep=_sleep, ensure_future=_itself)
    changes: list[tuple[Any, str, Any]] = [
        (coordinator, "asyncio", threads),
        (coordinator, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=world.token()))),
        (coordinator, "time", SimpleNamespace(time=world.now_s)),
        (coordinator, "lasting", _itself),
        (coordinator, "reach", lambda _: None),
        (coordinator, "write_cut", partial(_write_cut, world)),
        (coordinator, "read_cut", partial(_read_cut, world)),
        (compactor, "asyncio", threads),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _write_cut(
    world: World, journal: Journal, position: int, *, uri: str, keep_settled: int
) -> resume_pb2.CheckpointPart:
    if world.write_fails():
        raise SnapshotFailedError("the disk is full")
    base = to_base(load_until(journal, position), keep_settled=keep_settled, keep_uncovered=True)
    world.storage.write(uri, "ledger", base.SerializeToString(deterministic=True))
    return resume_pb2.CheckpointPart(name="ledger", owner="replay", uri=uri)


def _read_cut(world: World, part: resume_pb2.CheckpointPart) -> journal_pb2.LedgerBase:
    try:
        return journal_pb2.LedgerBase.FromString(world.storage.read(part.uri, "ledger"))
    except (DamagedError, HeadraceError) as error:
        raise CannotResumeError(f"the ledger in {part.uri} cannot be read: {error}") from error
