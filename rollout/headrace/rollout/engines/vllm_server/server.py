"""One vLLM server as a worker sees it: whether it may be used, with what, and what it samples.

    out ──admitted: fit, has the weights, agrees with the trainer──► in use
     ▲                                                                 │
     └──k failures in a row; dead; other weights than it should have───┘

Knows nothing of other servers, and of who decides when to try again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence

from headrace.log import get_logger
from headrace.rollout.changes import Changes
from headrace.rollout.engines import probe
from headrace.rollout.engines.base import EngineError, Sample, SampleRequest
from headrace.rollout.engines.vllm_server.answer import Answer, OtherWeightsError
from headrace.rollout.engines.vllm_server.calls import Calls, ServerAnsweredError, ServerAwayError
from headrace.rollout.engines.vllm_server.facts import GENERATE, Facts, UnfitServerError, read_facts
from headrace.rollout.engines.vllm_server.figures import METRICS, Figures
from headrace.rollout.engines.vllm_server.streams import Streams
from headrace.rollout.engines.vllm_server.sync import Sync, WeightsRefusedError
from headrace.rollout.engines.vllm_server.tag import Tag
from headrace.rollout.engines.vllm_server.wire import (
    MalformedError,
    ServerFaultError,
    read_event,
    read_scores,
    sampling_body,
    scoring_body,
)
from headrace.v1 import prompt_pb2

HEALTH_S = 10.0
"""How long a server may take to say whether it lives, which it does without its engine."""
_NOT_THIS = frozenset({400, 413, 422})
"""Statuses that blame the request."""
_NOBODY = frozenset({401, 403, 404, 405})
"""Statuses that say that this is not the server it was."""

log = get_logger()


class Server:
    """One server.

    Args:
        calls: How it is reached.
        sync: How it gets weights.
        eos_id: The token that ends a response.
        interval: Tokens from one event of a stream to the next.
        eject_after: Failures in a row.
        confirm_s: How long a response waits until this worker, too, has taken the weights that
            another worker has brought.
        pause_s: How long it may be paused.
        need_positions: Tokens that the longest sequence has.
        tolerance: The largest mean gap of log-probabilities; None = by number formats.
        now: Seconds of a monotonic clock.

    """

    def __init__(
        self,
        calls: Calls,
        sync: Sync,
        *,
        eos_id: int,
        interval: int,
        eject_after: int,
        confirm_s: float,
        pause_s: float,
        need_positions: int,
        tolerance: float | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = calls.host
        self.in_flight = 0
        """Requests of this worker. Whoever gives them their seats counts them."""
        self.lock = asyncio.Lock()
        """Held by whoever brings weights."""
        self.why_out: str | None = "it has no weights yet"
        """Why it may not be used; None if it may."""
        self.generated_token_count = 0
        self.aborted_token_count = 0
        self.probe_gap: float | None = None
        """Of the weights that were tried last."""
        self.figures = Figures()
        """How busy it is, with what all workers have asked of it."""
        self._calls = calls
        self._sync = sync
        self._eos_id = eos_id
        self._interval = interval
        self._eject_after = eject_after
        self._confirm_s = confirm_s
        self._pause_s = pause_s
        self._need_positions = need_positions
        self._tolerance = tolerance
        self._now = now
        self._changes = Changes()
        """Of whether it may be used, and with what."""
        self._tell_changed: Callable[[], None] = lambda: None
        self._facts: Facts | None = None
        self._tag: Tag | None = None
        """What this worker has found it to have, last."""
        self._confirmed: set[Tag] = set()
        """What this worker has found it to compute with as the trainer does."""
        self._takes = 0
        """How often weights were brought, or tried to be; a look from before such a try is void."""
        self._failures = 0
        self._paused_since: float | None = None
        self._streams = Streams(now=now)
        self._answers: set[Answer] = set()
        """What comes of them."""

    @property
    def is_in_use(self) -> bool:
        """Whether requests may be sent to it."""
        return self.why_out is None

    def has_others(self, published: prompt_pb2.PublishedWeights) -> bool:
        """Whether it is in use with other weights, as far as this worker knows."""
        return self.is_in_use and self._tag != Tag.of(published)

    def when_changed(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when it may be used again, or no more."""
        self._tell_changed = tell

    async def close(self) -> None:
        """Give up the connections."""
        await self._calls.close()

    async def inspect(self) -> Facts:
        """Ask what it is.

        Raises:
            ServerAwayError: It does not answer.
            UnfitServerError: It was not started as it must be.

        """
        facts = await read_facts(self._calls)
        if facts.max_positions < self._need_positions:
            raise UnfitServerError(
                f"{self.name}: prompt and response take up to {self._need_positions} positions, the "
                f"server has {facts.max_positions}: start it with a larger --max-model-len, or "
                "lower data.max_prompt_length or data.max_response_length"
            )
        self._facts = facts
        return facts

    async def take(
        self, published: prompt_pb2.PublishedWeights, checked: probe.Probe | None
    ) -> None:
        """See that it has these weights, and computes with them what the trainer does.

        Raises:
            WeightsRefusedError: It has other weights, as before, and is used with them as before.
            EngineError: It is out.

        """
        tag, begun, begun_at = Tag.of(published), list(self._answers), self._now()
        self._takes += 1
        try:
            facts, found = self._facts, None
            if facts is None:  # it may be in its next life
                self._confirmed.clear()
            else:
                found = await self._sync.loaded()
            if facts is None or found is None:  # so it may, unnoticed
                facts = await self.inspect()
            if tag not in self._confirmed or found != tag:
                self._trust(begun, False)
                await self._sync.bring(published)
                await self._agree(checked, tag, facts)
        except WeightsRefusedError as error:
            if not self.is_in_use:
                self.why_out = str(error)
            raise  # answers are trusted again with the next look
        except UnfitServerError as error:
            self.leave(str(error))
            raise EngineError(str(error)) from error
        except EngineError as error:
            self.leave(str(error))
            raise
        if not self.is_in_use:
            log.info("server_admitted", server=self.name, version=tag.version)
        self._tag = tag
        self._confirmed.add(tag)
        self._failures = 0
        self.why_out = None
        self._paused_since = None
        self._streams.excuse(begun_at)
        self._trust(begun, True)
        self._changed()

    async def _agree(self, checked: probe.Probe | None, tag: Tag, facts: Facts) -> None:
        """See that these weights, and no others, compute what the trainer says."""
        if checked is None:
            return
        found = []
        for token_ids in checked.sequences:
            body = scoring_body(token_ids, request_id=_request_id("probe"))
            answer = await self._calls.post(GENERATE, body, timeout_s=self._confirm_s)
            found.append(read_scores(answer, token_ids))
        if await self._sync.loaded() != tag:
            raise WeightsRefusedError(
                f"{self.name} was brought other weights while version {tag.version} was tried"
            )
        try:
            self.probe_gap = checked.check(found, dtype=facts.dtype, tolerance=self._tolerance)
        except probe.ProbeError as error:
            self.probe_gap = error.mean
            raise

    def leave(self, why: str) -> None:
        """Be out: no request is sent to it until it was admitted again."""
        if self.is_in_use:
            log.warning("server_ejected", server=self.name, why=why)
        self.why_out = why
        self._facts = None
        self.figures.nothing_runs()
        self._changed()

    def _changed(self) -> None:
        self._changes.notify()
        self._tell_changed()

    async def look(self, *, silence_s: float) -> None:
        """See whether it is still what it was: alive, at work, and with the weights it had."""
        assert self._tag is not None, "it is in use"
        tag, takes, begun = self._tag, self._takes, list(self._answers)
        asked_at = self._now()
        try:
            await self._calls.get("/health", timeout_s=HEALTH_S)
            found = await self._sync.loaded()
            # While it loads what another worker has brought it answers nothing: that is no silence.
            self._streams.excuse(asked_at)
            is_silent = self._streams.are_silent(silence_s)
            if found is None or is_silent or self._paused_since is not None:
                if await self._sync.is_paused():
                    self._bear_pause()
                    return
                self._paused_since = None
                found = await self._sync.loaded()  # an update has just ended, perhaps
        except ServerAwayError as error:
            if self._streams.are_silent(silence_s):
                self._hang(f"it has sent nothing for {silence_s:g} s, and {error}")
            else:
                self._fail(error)
            return
        except EngineError as error:  # it answers, and not what it should
            self.leave(str(error))
            return
        if self._takes != takes or not self.is_in_use:  # it may have others meanwhile
            return
        if is_silent:
            self._hang(f"it has sent nothing for {silence_s:g} s")
        elif found is None or not (found == tag or found.is_after(tag)):
            self._hang(f"it has {found or 'weights of nobody'}, not {tag}: was it started again?")
        else:
            self._trust(begun, found == tag)

    def _trust(self, begun: Sequence[Answer], is_trusted: bool) -> None:
        """Tell answers, but for those that are over: somebody else makes their response by now."""
        for answer in self._answers.intersection(begun):
            answer.trust(is_trusted)

    async def read_figures(self) -> None:
        """Ask how busy it is. One that does not say is as good as any."""
        try:
            self.figures.take(await self._calls.text(METRICS, timeout_s=HEALTH_S))
        except EngineError as error:
            log.debug("server_without_figures", server=self.name, why=str(error))

    def end_silent(self, silence_s: float) -> None:
        """Give up what it was asked while it was in use, if nothing comes of that any more."""
        if self._streams.are_silent(silence_s):
            self._streams.end()

    def _bear_pause(self) -> None:
        """Let another worker bring it weights, unless that takes longer than it may."""
        self._streams.heard()
        now = self._now()
        self._paused_since = now if self._paused_since is None else self._paused_since
        if now - self._paused_since > self._pause_s:
            self._hang(f"it has been paused for {self._pause_s:g} s: whoever did it is gone")

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one sequence, the tokens going into its response as they come.

        Raises:
            EngineLostError: The server is gone, or has not the weights it should have.
            EngineError: It could not do this one.

        """
        assert self._tag is not None, "it is in use"
        answer = Answer(request, weights=self._tag.weights, eos_id=self._eos_id)
        try:
            await self._stream(request, answer)
            await self._confirm(answer.check())
        except BaseException as error:
            self.aborted_token_count += answer.token_count
            if isinstance(error, EngineError):
                raise await self._charge(error) from error
            raise
        self._failures = 0
        return answer.finish()

    async def _stream(self, request: SampleRequest, answer: Answer) -> None:
        name = f"{request.uid}-{request.session}-{request.attempt}"
        body = sampling_body(
            request, request_id=_request_id(name), eos_id=self._eos_id, interval=self._interval
        )
        self._answers.add(answer)
        try:
            async with self._streams.one(), self._calls.stream(GENERATE, body) as lines:
                await self._read(lines, answer)
        except TimeoutError as error:
            raise ServerAwayError(f"{self.name}: {self.why_out}") from error
        finally:
            self._answers.discard(answer)

    async def _read(self, lines: AsyncIterator[str], answer: Answer) -> None:
        async for line in lines:
            self._streams.heard()
            self._paused_since = None
            piece = read_event(line)
            if piece is not None:
                assert self._tag is not None, "it has one from its first use on"
                answer.add(piece, self._tag.weights)
                self.generated_token_count += len(piece.token_ids)

    async def _confirm(self, tag: Tag) -> None:
        """Wait until this worker has tried these weights, or later ones, at this server itself."""
        try:
            async with asyncio.timeout(self._confirm_s):
                while not any(known == tag or known.is_after(tag) for known in self._confirmed):
                    if not self.is_in_use:
                        raise OtherWeightsError(f"{self.name} is out: {self.why_out}")
                    await self._changes.wait()
        except TimeoutError as error:
            raise OtherWeightsError(
                f"{self.name} has version {tag.version}, which this worker has not"
            ) from error

    async def _charge(self, error: EngineError) -> EngineError:
        """Say whose failure it is, and draw the conclusions."""
        said = f"{self.name}: {error}"
        if isinstance(error, OtherWeightsError):
            if self.is_in_use:
                self.leave(str(error))
            return OtherWeightsError(said)
        if isinstance(error, MalformedError):
            self._fail(error)
            return MalformedError(said)
        if isinstance(error, ServerAnsweredError):
            if error.status in _NOT_THIS:
                return error
            if error.status in _NOBODY:
                self.leave(str(error))
                return ServerAwayError(str(error))
        if isinstance(error, ServerAnsweredError | ServerFaultError) and not await self._lives():
            self.leave(str(error))
            return ServerAwayError(said)
        self._fail(error)
        return error

    async def _lives(self) -> bool:
        try:
            await self._calls.get("/health", timeout_s=HEALTH_S)
        except EngineError:
            return False
        return True

    def _fail(self, error: EngineError) -> None:
        self._failures += 1
        if self._failures >= self._eject_after and self.is_in_use:
            self.leave(f"{self._failures} failures in a row, the last: {error}")

    def _hang(self, why: str) -> None:
        """End what waits for a server that does nothing any more."""
        self.leave(why)
        self._streams.end()


def _request_id(name: str) -> str:
    """Name a call as no other was named: a server takes no name twice."""
    return f"{name}-{secrets.token_hex(6)}"
