"""Has a vLLM, if there is one: sees whether it lives, and ends with it what waits for its answers.

    none ──have──► alive ──died, is silent, given up──► none

A dead vLLM does not answer all that it was asked. Knows nothing of weights and sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.log import get_logger
from headrace.rollout.engines.base import EngineLostError
from headrace.rpc.waits import Waits

if TYPE_CHECKING:
    from headrace.rollout.engines.vllm_life import Life

_Result = TypeVar("_Result")

_LOOK_EVERY_S: Final = 0.1

log = get_logger()


class Keeper:
    """Has one life of vLLM at a time.

    Args:
        kind: The engine's name.
        silence_s: A vLLM that gives no token for so long, though it should, is dead.
        waits: Where it is named what is waited for.

    """

    def __init__(self, kind: str, *, silence_s: float, waits: Waits) -> None:
        self.life: Life | None = None
        """What there is."""
        self._kind = kind
        self._silence_s = silence_s
        self._waits = waits
        self._tell_lost: Callable[[], None] = lambda: None
        self._watch: asyncio.Task[None] | None = None
        self._inside: set[asyncio.Task[Any]] = set()
        """What waits for an answer."""
        self._ending: asyncio.Task[None] | None = None
        """The end of a life that was given up."""

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when a life is over by itself."""
        self._tell_lost = tell

    def have(self, life: Life) -> None:
        """Have a life, now that there is none, and watch it."""
        assert self.life is None, "there is one at a time"
        self.life = life
        self._watch = asyncio.create_task(self._keep_watch(life), name="vllm watch")

    async def _keep_watch(self, life: Life) -> None:
        while not life.is_dead and life.silent_s < self._silence_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        self.lose(life, "died" if life.is_dead else "is silent")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have the task that runs the block cancelled if the life is over meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self._inside.add(task)
        try:
            yield
        finally:
            self._inside.discard(task)

    async def within(self, life: Life, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do something that ends if the life does.

        Raises:
            EngineLostError: It has.

        """
        task = asyncio.create_task(work, name="vllm update")
        self._inside.add(task)
        if life is not self.life:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if life is not self.life:
                raise EngineLostError("vLLM died with its new weights") from None
            raise
        finally:
            self._inside.discard(task)

    def lose(self, life: Life, why: str) -> None:
        """Note that a life is over, whoever sees it first."""
        if life is self.life:
            log.error("engine_lost", engine=self._kind, why=why)
            self._give_up()
            self._tell_lost()

    def _give_up(self) -> None:
        """Have none any more: what is inside ends, and its processes do."""
        life, self.life = self.life, None
        if life is None:
            return
        for task in self._inside:
            task.cancel()
        self._ending = asyncio.create_task(life.close(), name="vllm end")

    async def end(self) -> None:
        """Give up the life, if there is one, and see it to its end."""
        if self.life is not None and self.life.is_dead:
            self.lose(self.life, "died")  # who gives it up has seen it first
        self._give_up()
        if self._watch is not None:
            self._watch.cancel()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the life that was given up last has come to its end."""
        if self._ending is None:
            return
        ends_when = "its processes have ended, or were killed"
        with self._waits.waiting("vLLM to end", owner=self._kind, ends_when=ends_when):
            await asyncio.shield(self._ending)
