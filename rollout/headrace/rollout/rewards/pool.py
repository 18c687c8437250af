"""Scores in processes of their own, which are killed when a scoring takes too long.

Knows nothing of sessions and leases. Many scorings travel in one call, since a call costs more
than most scorings; yet the limit holds for each: a process hands back what it has after
`_SHARE_S`, and if a call is cut off, its scorings are tried again one by one, so that only the
guilty one fails.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from pebble import ProcessExpired, ProcessPool

from headrace.config.rollout import RewardConfig
from headrace.errors import UsageError
from headrace.log import get_logger
from headrace.rollout.rewards import child
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import RewardSpec, Score, Scoring

_SHARE_S: Final = 1.0
"""After this long a call takes up no further scoring."""
_MOST_PER_CALL: Final = 256
_IMPORT_TIMEOUT_S: Final = 120.0
"""For importing the user's function when a process starts."""
_LOOK_EVERY_S: Final = 1.0
_TRIES: Final = 3
"""For calls that were given up with all others, as a process ended before it was known at which."""

log = get_logger()


class RewardPool:
    """The scoring processes of one worker. They stay alive, with everything imported."""

    def __init__(self, config: RewardConfig) -> None:
        self._spec = RewardSpec(config.kind, config.function, config.options, config.answer_tag)
        self._limit_s = config.timeout_s
        self._processes = config.processes
        # Neither is a copy of this process, with its threads of torch and gRPC.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([child.__name__])
        self._pool = self._make_pool()

    def _make_pool(self) -> Any:
        return ProcessPool(
            max_workers=self._processes,
            context=self._context,
            initializer=child.initialize,
            initargs=[self._spec, _IMPORT_TIMEOUT_S],
        )

    async def start(self) -> None:
        """Start a process and see whether the function can be used.

        Raises:
            UsageError: It cannot.

        """
        try:
            async with asyncio.timeout(_IMPORT_TIMEOUT_S):
                why = await self._call(child.check, timeout_s=_IMPORT_TIMEOUT_S)
        except TimeoutError:
            why = f"importing reward.function took longer than {_IMPORT_TIMEOUT_S:g} s"
        except (ProcessExpired, BrokenProcessPool) as error:
            why = f"importing reward.function ended its process: {error}"
        if why:
            raise UsageError(why)

    async def close(self) -> None:
        """End the processes, whatever they do."""
        self._pool.stop()
        await asyncio.to_thread(self._pool.join)

    async def score(self, scorings: Sequence[Scoring]) -> list[Score | RewardError]:
        """Score, in order. One that fails does not hurt the others."""
        size = min(_MOST_PER_CALL, -(-len(scorings) // self._processes))
        calls = [scorings[at : at + size] for at in range(0, len(scorings), size)]
        found = await asyncio.gather(*map(self._score_call, calls))
        return [score for scores in found for score in scores]

    async def _score_call(self, scorings: Sequence[Scoring]) -> list[Score | RewardError]:
        found: list[Score | RewardError] = []
        while len(found) < len(scorings):
            rest = scorings[len(found) :]
            if len(rest) == 1:
                found.append(await self._score_one(rest[0]))
                continue
            try:
                # The last one begins before `_SHARE_S` is over and has its whole limit.
                found += await self._run(rest, timeout_s=_SHARE_S + self._limit_s)
            except (TimeoutError, ProcessExpired, BrokenProcessPool) as error:
                log.warning("scored_one_by_one", scorings=len(rest), why=str(error))
                found += await asyncio.gather(*map(self._score_one, rest))
        return found

    async def _score_one(self, scoring: Scoring) -> Score | RewardError:
        try:
            [score] = await self._run([scoring], timeout_s=self._limit_s)
        except TimeoutError:
            return RewardError(f"scoring took longer than {self._limit_s:g} s and was killed")
        except ProcessExpired as error:
            return RewardError(f"scoring ended its process: exit code {error.exitcode}")
        except BrokenProcessPool:
            return RewardError("the scoring processes end before they score")
        return score

    async def _run(
        self, scorings: Sequence[Scoring], *, timeout_s: float
    ) -> list[Score | RewardError]:
        found = await self._call(child.score_some, list(scorings), _SHARE_S, timeout_s=timeout_s)
        return [RewardError(each) if isinstance(each, str) else each for each in found]

    async def _call(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Call in a process. Pebble gives the pool up when one dies that it knows no call of."""
        tries = 0
        while True:
            while not self._pool.active:
                log.warning("scoring_pool_restarted")
                broken, self._pool = self._pool, self._make_pool()
                await asyncio.to_thread(broken.join)
            tries += 1
            try:
                return await _answered(self._pool, function, self._spec, *args, timeout_s=timeout_s)
            except BrokenProcessPool:
                if tries == _TRIES:
                    raise


async def _answered(
    pool: ProcessPool, function: Callable[..., Any], *args: Any, timeout_s: float
) -> Any:
    """Call, and wait while the pool is not given up: it forgets a call that came just then.

    Raises:
        BrokenProcessPool: It was.

    """
    try:
        call = asyncio.wrap_future(pool.schedule(function, args=args, timeout=timeout_s))
    except RuntimeError as error:
        raise BrokenProcessPool(str(error)) from error
    try:
        is_active = True
        while not call.done() and is_active:
            is_active = pool.active
            await asyncio.wait([call], timeout=_LOOK_EVERY_S)
        if not call.done():
            raise BrokenProcessPool("the call was forgotten")
        return call.result()
    finally:
        call.cancel()
