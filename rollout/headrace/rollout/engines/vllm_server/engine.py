"""Samples at vLLM servers that run already, of which any may come and go.

All servers that are in use have the same weights: what is published is brought to each of them, by
whichever worker comes first. A server that fails is left alone, and looked after until it can be
used again. With the last one that is in use the weights are lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.config.vllm_server import VllmServerEngine as VllmServerEngineConfig
from headrace.errors import UsageError
from headrace.log import get_logger
from headrace.rollout.engines import probe
from headrace.rollout.engines.base import (
    EngineError,
    EngineLostError,
    EngineStatus,
    Sample,
    SampleRequest,
)
from headrace.rollout.engines.probe import ProbeError
from headrace.rollout.engines.vllm_server.facts import UnfitServerError
from headrace.rollout.engines.vllm_server.figures import together
from headrace.rollout.engines.vllm_server.seats import Seats
from headrace.rollout.engines.vllm_server.server import Server
from headrace.rollout.engines.weights import confirm_manifest
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2
from headrace.weights.manifest import MANIFEST_NAME, parse
from headrace.weights.probe import PROBE_NAME

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0

log = get_logger()


@dataclass(frozen=True)
class _Target:
    """What every server is to have."""

    published: prompt_pb2.PublishedWeights
    probe: probe.Probe | None


class VllmServerEngine:
    """Asks servers.

    Args:
        config: The engine's section.
        servers: One for each of its URLs.
        waits: Where it is named what is waited for.
        now: Seconds of a monotonic clock.
        sleep: How time passes.
        jitter: Uniform in [0, 1).

    """

    kind = "vllm_server"

    def __init__(
        self,
        config: VllmServerEngineConfig,
        servers: Sequence[Server],
        *,
        waits: Waits,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._servers = servers
        self._waits = waits
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        # Each server may be asked, and one that is alone until it is out.
        self._most_tries = max(config.eject_after, len(servers))
        self._seats = Seats(servers, per_server=config.max_requests_in_flight)
        self._target: _Target | None = None
        self._under_way: set[asyncio.Task[Sample]] = set()
        self._watches: list[asyncio.Task[None]] = []
        self._tell_lost: Callable[[], None] = lambda: None
        for server in servers:
            server.when_changed(self._settle)
        self._had_any = False
        self._bringing_since: float | None = None
        self._brought_s = 0.0

    async def start(self) -> None:
        """Ask what the servers are, and begin to look after them.

        A server that does not answer is waited for.

        Raises:
            UsageError: One of them cannot be used as it was started.

        """
        with self._waits.waiting("servers to say what they are", owner=self.kind):
            outcomes = await asyncio.gather(
                *(server.inspect() for server in self._servers), return_exceptions=True
            )
        unfit = [str(each) for each in outcomes if isinstance(each, UnfitServerError)]
        if unfit:
            raise UsageError("\n".join(unfit))
        for server, outcome in zip(self._servers, outcomes, strict=True):
            if isinstance(outcome, EngineError):
                server.leave(str(outcome))
                log.warning("server_not_there", server=server.name, why=str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                log.info("server_found", server=server.name, vllm=outcome.version)
        self._watches = [
            asyncio.create_task(self._watch(server), name=f"watch of {server.name}")
            for server in self._servers
        ]

    async def close(self) -> None:
        """Abort what is under way at the servers."""
        tasks = [*self._under_way, *self._watches]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            await server.close()

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the last server has gone."""
        self._tell_lost = tell

    def status(self) -> EngineStatus:
        """Say what was done so far, at all servers."""
        since = self._bringing_since
        loads = [server.figures.load for server in self._servers]
        gaps = [server.probe_gap for server in self._servers if server.probe_gap is not None]
        return EngineStatus(
            generated_token_count=sum(server.generated_token_count for server in self._servers),
            aborted_token_count=sum(server.aborted_token_count for server in self._servers),
            probe_gap=max(gaps, default=None),
            held_back_s=self._brought_s + (0 if since is None else self._now() - since),
            room=self._seats.room,
            load=together([load for load in loads if load is not None]),
        )

    async def load(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Bring the weights to all servers that are in use, or to all if none is.

        Those that cannot have them are left out. One that is out is not waited for: whoever looks
        after it brings them.

        Raises:
            EngineError: None has them. Servers that have the old ones go on with those, if any do.

        """
        target = _Target(weights, await asyncio.to_thread(_read_probe, weights))
        before, self._target = self._target, target
        servers = [server for server in self._servers if server.is_in_use] or self._servers
        ends_when = f"each has version {weights.id.version}, or is left out"
        with self._waits.waiting("servers to take weights", owner=self.kind, ends_when=ends_when):
            outcomes = await self._bring_all(servers)
        failed: list[EngineError] = []
        for outcome in outcomes:
            if isinstance(outcome, EngineError):
                failed.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        if len(failed) == len(outcomes):
            self._target = before
            raise self._as_one(weights, failed)
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, EngineError):
                log.warning("server_without_weights", server=server.name, why=str(outcome))
                if server.has_others(weights):  # it may have been admitted since
                    server.leave(str(outcome))

    async def _bring_all(self, servers: Sequence[Server]) -> list[BaseException | None]:
        self._bringing_since = self._now()
        try:
            return await asyncio.gather(
                *(self._bring(server) for server in servers), return_exceptions=True
            )
        finally:
            self._brought_s += self._now() - self._bringing_since
            self._bringing_since = None

    async def _bring(self, server: Server) -> None:
        """Bring what is wanted in the end, which may be other than it was when this was begun."""
        target = None
        async with server.lock:
            while target is not self._target:
                target = self._target
                assert target is not None, "called with something to bring"
                await server.take(target.published, target.probe)

    def _as_one(
        self, weights: prompt_pb2.PublishedWeights, failed: Sequence[EngineError]
    ) -> EngineError:
        """Make one error of those of all servers; one of a probe says most."""
        disagreed = [each for each in failed if isinstance(each, ProbeError)]
        said = "; ".join(dict.fromkeys(map(str, disagreed or failed)))
        error = (
            ProbeError(said, mean=disagreed[0].mean)
            if disagreed
            else EngineError(f"no server has version {weights.id.version}: {said}")
        )
        error.weights_lost = not any(server.is_in_use for server in self._servers)
        return error

    def generate(self, requests: Sequence[SampleRequest]) -> list[asyncio.Future[Sample]]:
        """Send each to a server as there is room."""
        futures: list[asyncio.Future[Sample]] = []
        for request in requests:
            task = asyncio.create_task(self._sample(request))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            futures.append(task)
        return futures

    async def _sample(self, request: SampleRequest) -> Sample:
        """Sample at one server; if that is lost before a token was seen, at another."""
        begin = len(request.response.token_ids)
        failed: list[Server] = []
        while True:
            async with self._seats.taken(request.uid, failed) as server:
                try:
                    return await server.sample(request)
                except EngineLostError:
                    failed.append(server)
                    # What was seen of it is of use to whoever goes on behind.
                    was_seen = len(request.response.token_ids) > begin
                    if was_seen or len(failed) == self._most_tries:
                        raise

    def _settle(self) -> None:
        """See to those who wait, now that a server has come or gone."""
        self._seats.hand_out()
        has_any = any(server.is_in_use for server in self._servers)
        if self._had_any and not has_any:
            self._tell_lost()
        self._had_any = has_any

    async def _watch(self, server: Server) -> None:
        """Look after one server for as long as the engine lives."""
        while True:
            try:
                await self._look_after(server)
            except Exception:  # a mistake of ours must not leave the server to itself
                log.exception("watch_broke", server=server.name)
                await self._sleep(_LONGEST_PAUSE_S)

    async def _look_after(self, server: Server) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            if server.is_in_use:
                pause_s = _FIRST_PAUSE_S
                await self._sleep(self._config.look_every_s)
                if server.is_in_use and not server.lock.locked():
                    await server.look(silence_s=self._config.silence_s)
                if server.is_in_use:
                    await server.read_figures()
                continue
            await self._sleep(pause_s * (0.5 + 0.5 * self._jitter()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if server.is_in_use or server.lock.locked():  # somebody has brought, or brings, weights
                continue
            server.end_silent(self._config.silence_s)
            if self._target is not None:
                await self._admit(server)

    async def _admit(self, server: Server) -> None:
        try:
            await self._bring(server)
        except EngineError as error:
            log.warning("server_still_out", server=server.name, why=str(error))


def _read_probe(published: prompt_pb2.PublishedWeights) -> probe.Probe | None:
    """Read the trainer's probe of published weights; the servers check the rest of the files.

    Raises:
        EngineError: These are other weights, or the probe is not what was published.

    """
    confirm_manifest(published)
    directory = Path(published.uri)
    found = probe.read(directory)
    if found is not None:
        manifest = parse((directory / MANIFEST_NAME).read_bytes(), source=published.uri)
        data = (directory / PROBE_NAME).read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest.files[PROBE_NAME].sha256:
            raise EngineError(f"{directory / PROBE_NAME}: has other bytes than were published")
    return found
