"""The scheduler: everything that can happen next is in one pool, and the seed picks.

    pool ──pick──► run a thread of a party · deliver a request or an answer · sync the journal · …
      ▲                                        │
      └──────── what follows from it ◄─────────┘      timers ──(due)──► pool

One pick is one transition and one tick. A thread is a generator, or a coroutine of the real
service: it yields what it waits for. A party that crashes loses its threads and so its memory;
what it has sent is still under way. Knows nothing of what parties do.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import NotReadyError, WireError

if TYPE_CHECKING:
    from simulation.scenario import Scenario

Work: TypeAlias = Generator[Any, Any, Any]

TICK_S = 0.1
CALL_TICKS = 400
"""How long a call is waited for, beyond what it asks for itself."""
PAUSE: Any = ("pause",)
"""Yielded: anything may happen in between."""


class Lost:
    """The answer to a call that was given up."""


LOST = Lost()


class ViolationError(Exception):
    """An invariant does not hold."""


class Thread:
    """Something that a party is doing."""

    __slots__ = ("call", "done", "party", "serves", "work")

    def __init__(self, party: Party, work: Work, serves: Call | None = None) -> None:
        self.party = party
        self.work = work
        self.serves = serves
        self.call: Call | None = None
        """What it waits for."""
        self.done = False


class Call:
    """One call of one party to another. What was sent to a process goes to that very process."""

    __slots__ = ("caller", "is_over", "method", "request", "server", "thread")

    def __init__(self, thread: Thread, server: Party | None, method: str, request: Any) -> None:
        self.thread = thread
        self.caller = thread.party
        self.server = server
        self.method = method
        self.request = request
        self.is_over = False


class Party:
    """One life of a process."""

    name = ""

    def __init__(self, world: Engine) -> None:
        self.world = world
        self.rng = world.rng
        self.threads: dict[Thread, None] = {}
        self.is_up = True
        self.frozen_until = 0
        self.number = world.next_number()

    def start(self) -> None:
        """Begin."""

    def spawn(self, work: Work) -> Thread:
        """Do something beside."""
        thread = Thread(self, work)
        self.threads[thread] = None
        self.world.put(_RUN, thread, None)
        return thread

    def cancel(self, thread: Thread) -> None:
        """Have a thread do no more."""
        if not thread.done:
            thread.done = True
            self.threads.pop(thread, None)
            thread.work.close()

    def serve(self, method: str, request: Any, call: Call) -> Any:
        """Answer a call: with an answer, or with work that returns one."""
        return getattr(self, method)(request)

    def die(self) -> None:
        """Stop, and forget everything."""
        self.is_up = False
        for thread in list(self.threads):
            thread.done = True
            thread.work.close()
        self.threads.clear()

    def ended(self, thread: Thread, error: BaseException | None) -> None:
        """Told that a thread came to its end by itself."""
        if error is not None:
            raise ViolationError(f"{self.name} broke: {error!r}") from error

    # -- for the work of threads

    def ask(self, server: str, method: str, request: Any, wait_ticks: int = 0) -> Work:
        """Call until there is an answer; raises what the other refuses with."""
        while True:
            answer = yield ("call", server, method, request, CALL_TICKS + wait_ticks)
            if answer is LOST or type(answer) is NotReadyError:
                yield ("sleep", 2 + int(self.rng.random() * 30))
            elif isinstance(answer, WireError):
                raise answer
            else:
                return answer


_RUN, _REQUEST, _ANSWER, _DO = range(4)


class Engine:
    """Pool, timers, time, and who is there."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"run {scenario.seed}")
        self.tick = 0
        self.transitions = 0
        self.pool: list[tuple[int, Any, Any]] = []
        self.parties: dict[str, Party] = {}
        self.digest = 0
        """Of everything that happened."""
        self.faults_on = True
        self.trace: Callable[[str], None] | None = None
        self._timers: list[tuple[int, int, tuple[int, Any, Any]]] = []
        self._timer_number = 0
        self._number = 0

    # -- time

    def now_s(self) -> float:
        """Seconds of everybody's monotonic clock."""
        return self.tick * TICK_S

    def next_number(self) -> int:
        """Give a number that was not given before."""
        self._number += 1
        return self._number

    def token(self) -> str:
        """Give a random id, as uuid4 does in the real processes."""
        return f"{int(self.rng.random() * 2**32):08x}{self.next_number():x}"

    def put(self, kind: int, what: Any, value: Any) -> None:
        """Let this be one of the things that can happen next."""
        self.pool.append((kind, what, value))

    def do(self, action: Callable[[], None]) -> None:
        """Let this action happen some time soon."""
        self.pool.append((_DO, action, None))

    def later(self, ticks: int, action: Callable[[], None]) -> None:
        """Let this action happen after so many ticks."""
        self._at(ticks, (_DO, action, None))

    def _at(self, ticks: int, item: tuple[int, Any, Any]) -> None:
        self._timer_number += 1
        heappush(self._timers, (self.tick + ticks, self._timer_number, item))

    # -- the loop

    def step(self) -> None:
        """Make one transition."""
        self.transitions += 1
        self.tick += 1
        timers, pool = self._timers, self.pool
        if not pool and timers and timers[0][0] > self.tick:
            self.tick = timers[0][0]
        while timers and timers[0][0] <= self.tick:
            pool.append(heappop(timers)[2])
        if not pool:
            raise ViolationError("I11: nothing can happen any more, and the run is not at its end")
        index = int(self.rng.random() * len(pool))
        item = pool[index]
        pool[index] = pool[-1]
        pool.pop()
        kind, what, value = item
        self.digest = zlib.crc32(b"%d %d %d" % (kind, index, self.tick), self.digest)
        if kind == _DO:
            what()
            return
        party: Party = (
            what.party if kind == _RUN else what.server if kind == _REQUEST else what.caller
        )
        if party is not None and party.frozen_until > self.tick and party.is_up:
            self._at(party.frozen_until - self.tick, item)
        elif kind == _RUN:
            self.run(what, value)
        elif kind == _REQUEST:
            self._deliver(what)
        else:
            self._answer(what, value)

    def run(self, thread: Thread, value: Any) -> None:
        """Let a thread go on to its next wait."""
        if thread.done:
            return
        party = thread.party
        party.world = self
        try:
            wants = thread.work.send(value)
        except StopIteration as stop:
            self._finish(thread, stop.value)
        except WireError as error:
            self._finish(thread, error)
        else:
            self._wait(thread, wants)

    def _finish(self, thread: Thread, result: Any) -> None:
        thread.done = True
        thread.party.threads.pop(thread, None)
        if thread.serves is not None:
            self.reply(thread.serves, result)
        else:
            thread.party.ended(thread, result if isinstance(result, WireError) else None)

    def _wait(self, thread: Thread, wants: Any) -> None:
        what = wants[0]
        if what == "pause":
            self.pool.append((_RUN, thread, None))
        elif what == "sleep":
            self._at(wants[1], (_RUN, thread, None))
        elif what == "call":
            _, server, method, request, ticks = wants
            call = Call(thread, self.parties.get(server), method, request)
            thread.call = call
            self._send((_REQUEST, call, None))
            self._at(ticks, (_DO, lambda: self._give_up(call), None))
        else:
            wants[1](thread)  # the party knows when it goes on

    def go_on(self, thread: Thread, value: Any = None) -> None:
        """Let a thread that a party held back go on."""
        self.pool.append((_RUN, thread, value))

    # -- messages

    def _send(self, message: tuple[int, Any, Any]) -> None:
        if self.faults_on:
            faults, dice = self.scenario.faults, self.rng.random()
            if dice < faults.lost:
                return
            if dice < faults.lost + faults.late:
                self._at(int(50 + 1500 * self.rng.random()), message)
                return
            if dice < faults.lost + faults.late + faults.repeated:
                self._at(int(1 + 300 * self.rng.random()), message)
        self.pool.append(message)

    def _deliver(self, call: Call) -> None:
        server = call.server
        if self.trace:
            self.trace(
                f"{self.tick} {call.caller.name}#{call.caller.number} ► "
                f"{server.name if server else '?'}.{call.method} {_short(call.request)}"
            )
        if server is None or not server.is_up:
            self.reply(call, NotReadyError("it is not there"))
            return
        try:
            answer = server.serve(call.method, call.request, call)
        except WireError as error:
            answer = error
        if hasattr(answer, "send"):
            thread = Thread(server, answer, call)
            server.threads[thread] = None
            self.run(thread, None)
        else:
            self.reply(call, answer)

    def reply(self, call: Call, answer: Any) -> None:
        """Send an answer on its way."""
        self._send((_ANSWER, call, answer))

    def _answer(self, call: Call, answer: Any) -> None:
        if call.is_over:
            return
        call.is_over = True
        if self.trace:
            self.trace(
                f"{self.tick} {call.caller.name}#{call.caller.number} ◄ {call.method} {_short(answer)}"
            )
        self.run(call.thread, answer)

    def _give_up(self, call: Call) -> None:
        if call.is_over or call.thread.done:
            return
        frozen = call.caller.frozen_until - self.tick
        if frozen > 0:
            self._at(frozen, (_DO, lambda: self._give_up(call), None))
        else:
            self._answer(call, LOST)


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, Exception) else str(value)
    return " ".join(text.split())[:300]
