"""Makes the engine out of its section of the configuration."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from headrace.config.vllm_server import VllmServerEngine as VllmServerEngineConfig
from headrace.rollout.engines.vllm_server.access import read_access
from headrace.rollout.engines.vllm_server.calls import Calls
from headrace.rollout.engines.vllm_server.engine import VllmServerEngine
from headrace.rollout.engines.vllm_server.server import Server
from headrace.rollout.engines.vllm_server.sync import Sync
from headrace.rpc.waits import Waits


def make(
    config: VllmServerEngineConfig,
    *,
    eos_id: int,
    max_length: int,
    partial: bool,
    max_generation_s: float,
    waits: Waits,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> VllmServerEngine:
    """Make the engine.

    Args:
        config: The engine's section.
        eos_id: The token that ends a response.
        max_length: The most tokens of a prompt with its response.
        partial: Whether sequences under way go on with newer weights.
        max_generation_s: The longest that a sequence may take.
        waits: Where it is named what is waited for.
        now: Seconds of a monotonic clock.
        sleep: How time passes.

    Raises:
        UsageError: The key or the certificates cannot be read.

    """
    key, certificates = read_access(config)
    owner = secrets.token_hex(8)

    def server(url: str) -> Server:
        calls = Calls(url, certificates=certificates, api_key=key)
        sync = Sync(
            calls,
            owner=owner,
            drains=not partial,
            drain_s=max_generation_s,
            update_s=config.update_timeout_s,
            sleep=sleep,
        )
        return Server(
            calls,
            sync,
            eos_id=eos_id,
            interval=config.stream_interval,
            eject_after=config.eject_after,
            confirm_s=config.update_timeout_s,
            pause_s=max_generation_s + config.update_timeout_s,
            need_positions=max_length,
            tolerance=config.logprob_tolerance,
            now=now,
        )

    servers = [server(url) for url in config.base_urls]
    return VllmServerEngine(config, servers, waits=waits, now=now, sleep=sleep)
