"""Redis for a ledger's journal: the user's, or a server of the benchmark's own.

Its own keeps what it acknowledged through a kill, as the journal demands (`appendfsync always`).
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.errors import UsageError

BINARY: Final = "redis-server"
CALL_S: Final = 3.0
"""How long an answer may take."""
START_S: Final = 20.0
"""How long a server may take to come up."""


@dataclass(frozen=True)
class Redis:
    """A server that answers."""

    url: str
    cpu_s: Callable[[], float]
    """CPU seconds that it has used, as it says itself."""

    def forget(self, run_id: str) -> None:
        """Remove a run's keys."""
        with _client(self.url) as client:
            prefix = f"headrace:{{{run_id}}}"
            client.delete(*(f"{prefix}:{name}" for name in ("epoch", "journal", "base")))


class RedisMissingError(Exception):
    """There is none; the message says why, and what would help."""


@asynccontextmanager
async def running_redis(directory: Path, url: str | None) -> AsyncIterator[Redis]:
    """Give the server at the address; without one, start one whose files lie in the directory.

    Raises:
        RedisMissingError: there is none.
        UsageError: the address is none.

    """
    if url is not None:
        await asyncio.to_thread(_ping, url)
        yield Redis(url, _cpu_of(url))
        return
    binary = shutil.which(BINARY)
    if binary is None:
        raise RedisMissingError(
            f"no {BINARY} is installed here, and there is no --redis-url with the address of one"
        )
    directory.mkdir()  # noqa: ASYNC240 (nothing runs beside it)
    socket = directory / "redis.sock"
    settings = {
        "port": "0", "unixsocket": str(socket), "dir": str(directory), "save": "",
        "appendonly": "yes", "appendfsync": "always",
    }  # fmt: skip
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    process = await asyncio.to_thread(
        subprocess.Popen, [binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        own = f"unix://{socket}"
        await _until_up(own, process)
        yield Redis(own, _cpu_of(own))
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def _until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(int(START_S / 0.05)):
        if process.poll() is not None:
            raise RedisMissingError(f"{BINARY} ended at once (exit code {process.returncode})")
        try:
            await asyncio.to_thread(_ping, url)
        except RedisMissingError:
            await asyncio.sleep(0.05)
        else:
            return
    raise RedisMissingError(f"{BINARY} did not answer within {START_S:g} s")


def _client(url: str) -> Any:
    import redis

    try:
        return redis.Redis.from_url(url, socket_timeout=CALL_S, socket_connect_timeout=CALL_S)
    except ValueError as error:
        raise UsageError(f"--redis-url is not the address of a Redis server: {error}") from error


def _ping(url: str) -> None:
    import redis

    try:
        with _client(url) as client:
            client.ping()
    except redis.RedisError as error:
        where = url.partition("://")[2].rpartition("@")[2]
        raise RedisMissingError(f"Redis at {where} does not answer: {error}") from error


def _cpu_of(url: str) -> Callable[[], float]:
    client = _client(url)

    def used() -> float:
        found = client.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    return used
