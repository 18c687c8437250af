"""Scores by a service of the user's, over HTTP.

Responses that wait together travel together, those of one group always. A call that finds nobody,
or a 429 or 5xx, is made again, a few times; a service that keeps failing is left alone but for
probes (`circuit.py`). Any other answer is final: if several groups shared the call, each is sent
once more by itself, so that only the guilty one fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

import httpx

from headrace.config.rollout import RewardConfig
from headrace.errors import HeadraceError, UsageError
from headrace.log import get_logger
from headrace.rollout.batcher import Batcher
from headrace.rollout.rewards.access import check, read_certificates, read_token
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.circuit import Circuit
from headrace.rollout.rewards.functions import Score, Scoring
from headrace.rollout.rewards.retry_after import retry_after_s
from headrace.rollout.rewards.wire import MalformedError, decode, encode
from headrace.rpc.waits import Waits

GATHER_S: Final = 0.05
"""How long a call waits for responses that are done at nearly the same time."""
CONNECT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
LONGEST_QUOTE: Final = 300
"""Characters of an answer that an error quotes."""

_TOO_MANY_REQUESTS: Final = 429

log = get_logger()


class _UnansweredError(HeadraceError):
    """The call may be made again."""

    def __init__(self, why: str, hold_s: float = 0.0) -> None:
        super().__init__(why)
        self.hold_s = hold_s


class _FinalError(HeadraceError):
    """The same call would have the same end."""


class _LateError(_FinalError):
    """There was no answer in time."""


@dataclass(frozen=True, eq=False)
class _Parcel:
    """What one caller wants to be scored."""

    scorings: Sequence[Scoring]
    scores: asyncio.Future[list[Score | RewardError]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    alone: bool = False
    """Travels with nobody else."""


class HttpRewards:
    """The calls of one worker to its reward service.

    Args:
        config: The reward's section.
        waits: Where it is registered that calls are held back.
        now: Seconds of a monotonic clock.
        wall: Seconds since 1970, for what a service says with a date.
        sleep: How time passes.
        limit: Ends what takes longer than so many seconds by a TimeoutError.
        jitter: Uniform in [0, 1).

    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        waits: Waits,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        limit: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        assert config.url is not None, "checked with the configuration"
        self._config = config
        self._url = config.url
        parts = urlsplit(config.url)
        host = parts.netloc.rpartition("@")[2]
        self._shown_url = f"{parts.scheme}://{host}{parts.path}"
        """Without what should not be in a log."""
        self._wall = wall
        self._sleep = sleep
        self._limit = limit
        self._jitter = jitter
        self._circuit = Circuit(
            "reward service",
            owner=host,
            open_after=config.http.open_after,
            waits=waits,
            now=now,
            sleep=sleep,
            jitter=jitter,
        )
        self._parcels: Batcher[_Parcel] = Batcher(
            self._start_call, most=config.http.max_batch, size=self._size, before=self._gather
        )
        self._calls: set[asyncio.Task[None]] = set()
        self._client: httpx.AsyncClient | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Get ready to call.

        Raises:
            UsageError: The token or the certificates cannot be read.

        """
        check(self._config)
        self._client = httpx.AsyncClient(
            verify=read_certificates(self._config),
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=self._config.http.max_calls),
        )
        self._running = asyncio.create_task(self._parcels.run(), name="reward calls")

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [*self._calls, *([self._running] if self._running else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def score(self, scorings: Sequence[Scoring]) -> list[Score | RewardError]:
        """Score, in order."""
        parcel = _Parcel(scorings)
        self._parcels.add(parcel)
        return await parcel.scores

    def _size(self, parcel: _Parcel) -> int:
        return self._config.http.max_batch if parcel.alone else len(parcel.scorings)

    async def _gather(self) -> None:
        await self._sleep(GATHER_S)
        while len(self._calls) >= self._config.http.max_calls:
            await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)

    async def _start_call(self, parcels: list[_Parcel]) -> None:
        call = asyncio.create_task(self._settle(parcels), name="reward call")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _settle(self, parcels: list[_Parcel]) -> None:
        """See that each parcel has its scores, or its error."""
        try:
            with self._circuit.caller():
                await self._call(parcels)
        except _FinalError as error:
            waiting = _waiting(parcels)
            for parcel in waiting:
                if len(waiting) > 1:
                    self._parcels.add(replace(parcel, alone=True))
                else:
                    _fail(parcel, str(error))
        except Exception as error:  # a mistake of ours must not leave anybody waiting
            log.exception("reward_call_broke")
            for parcel in _waiting(parcels):
                _fail(parcel, f"{type(error).__name__}: {error}")

    async def _call(self, parcels: list[_Parcel]) -> None:
        """Call until there is an answer, or enough of it.

        Raises:
            _FinalError: The answer is no scores, or there was none in time.

        """
        pause_s = FIRST_PAUSE_S
        for left in reversed(range(self._config.http.max_tries)):
            number = await self._circuit.enter()
            wanted = _waiting(parcels)
            if not wanted:  # all given up meanwhile
                self._circuit.leave()
                return
            try:
                scores = await self._post([each for one in wanted for each in one.scorings])
            except _UnansweredError as error:
                self._circuit.fail(number, str(error), hold_s=error.hold_s)
                log.warning("reward_service_failed", error=str(error), tries_left=left)
                if not left:
                    for parcel in wanted:
                        _fail(parcel, f"{error}, {self._config.http.max_tries} times")
                    return
            except _LateError as error:
                self._circuit.fail(number, str(error))
                raise
            except _FinalError:
                self._circuit.succeed()  # whatever it is, more of the same would not help
                raise
            else:
                self._circuit.succeed()
                _hand_out(wanted, scores)
                return
            await self._sleep(pause_s * (0.5 + 0.5 * self._jitter()))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _post(self, scorings: Sequence[Scoring]) -> list[Score | RewardError]:
        assert self._client is not None, "started before the first call"
        headers = {"Content-Type": "application/json", **await self._authorization()}
        limit_s = self._config.timeout_s
        try:
            async with self._limit(limit_s):
                answer = await self._client.post(
                    self._url, content=encode(scorings), headers=headers
                )
        except TimeoutError as error:
            raise _LateError(f"{self._shown_url} did not answer within {limit_s:g} s") from error
        except httpx.TransportError as error:
            what = str(error) or "no answer"
            raise _UnansweredError(f"{self._shown_url}: {type(error).__name__}: {what}") from error
        except httpx.HTTPError as error:
            raise _FinalError(f"{self._shown_url}: {type(error).__name__}: {error}") from error
        return self._read(answer, len(scorings))

    async def _authorization(self) -> dict[str, str]:
        try:
            token = await asyncio.to_thread(read_token, self._config)  # it may have been renewed
        except UsageError as error:
            raise _FinalError(str(error)) from error
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _read(self, answer: httpx.Response, count: int) -> list[Score | RewardError]:
        if answer.is_success:
            try:
                return decode(answer.content, count)
            except MalformedError as error:
                raise _FinalError(f"{self._shown_url}: {error}") from error
        quote = " ".join(answer.text.split())[:LONGEST_QUOTE]
        said = f"{self._shown_url} answered {answer.status_code} {answer.reason_phrase}: {quote}"
        if answer.is_server_error or answer.status_code == _TOO_MANY_REQUESTS:
            given = answer.headers.get("Retry-After")
            raise _UnansweredError(said, hold_s=retry_after_s(given, wall=self._wall()))
        raise _FinalError(said)


def _waiting(parcels: Sequence[_Parcel]) -> list[_Parcel]:
    return [parcel for parcel in parcels if not parcel.scores.done()]


def _hand_out(parcels: Sequence[_Parcel], scores: Sequence[Score | RewardError]) -> None:
    at = 0
    for parcel in parcels:
        end = at + len(parcel.scorings)
        if not parcel.scores.done():
            parcel.scores.set_result(list(scores[at:end]))
        at = end


def _fail(parcel: _Parcel, why: str) -> None:
    if not parcel.scores.done():
        parcel.scores.set_result([RewardError(why) for _ in parcel.scorings])
