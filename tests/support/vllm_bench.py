"""The engine of vLLM servers, over servers that play one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from vllm_http import EOS, VllmServer

from headrace.config.vllm_server import VllmServerEngine as Config
from headrace.rollout.engines.base import SampleRequest
from headrace.rollout.engines.vllm_server.engine import VllmServerEngine
from headrace.rollout.engines.vllm_server.make import make
from headrace.rpc.waits import Waits

HASTE = 100
"""How much faster the engine's pauses pass than they would."""


async def hasty(seconds: float) -> None:
    await asyncio.sleep(seconds / HASTE)


class Clock:
    """Stands still until it is moved on, as it is by pauses that are its `sleep`."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await hasty(seconds)


def engine_of(
    servers: Sequence[VllmServer],
    *,
    partial: bool = False,
    drain_s: float = 20,
    waits: Waits | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = hasty,
    **settings: Any,
) -> VllmServerEngine:
    """Make an engine that has not been started."""
    urls = [server.url for server in servers]
    config = Config(
        **{"kind": "vllm_server", "base_urls": urls, "update_timeout_s": 20, **settings}
    )
    return make(
        config, eos_id=EOS, max_length=64, partial=partial, max_generation_s=drain_s,
        waits=waits or Waits(stall_after_s=60), now=now, sleep=sleep,
    )  # fmt: skip


@asynccontextmanager
async def running(
    servers: Sequence[VllmServer], *weights: Any, **settings: Any
) -> AsyncIterator[VllmServerEngine]:
    """Give an engine that has taken weights, if some are given."""
    engine = engine_of(servers, **settings)
    await engine.start()
    try:
        for each in weights:
            await engine.load(each)
        yield engine
    finally:
        await engine.close()


def request(uid: str = "e0r0", session: int = 0, *, limit: int = 12) -> SampleRequest:
    return SampleRequest(
        uid=uid, session=session, attempt=1, prompt_token_ids=[2, 3],
        temperature=0.7, max_response_length=limit,
    )  # fmt: skip


def spans(asked: SampleRequest) -> list[tuple[str, int, int, int]]:
    """The weights of a response, as tuples."""
    return [
        (span.lineage, span.version, span.begin, span.end) for span in asked.response.weight_spans
    ]
