"""All parts of the benchmark, and what a run of some of them needs."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace.bench import cycle, feed, rollout, sampling, store, wakeup, weights
from headrace.bench.findings import Findings
from headrace.bench.peer import running_peer
from headrace.bench.setting import Setting
from headrace.errors import UsageError
from headrace.log import configure


@dataclass(frozen=True)
class Part:
    """One part."""

    measure: Callable[[Setting], Awaitable[Findings]]
    needs_peer: bool = True
    packages: Sequence[str] = ()
    """What else it needs, all in the extra `local`."""


PARTS: Final[Mapping[str, Part]] = {
    "ledger": Part(cycle.measure),
    "feed": Part(feed.measure),
    "store": Part(store.measure),
    "weights": Part(weights.measure, needs_peer=False),
    "wakeup": Part(wakeup.measure),
    "sampling": Part(sampling.measure),
    "rollout": Part(
        rollout.measure, needs_peer=False, packages=("transfer_queue", "torch", "transformers")
    ),
}


def chosen(names: Sequence[str]) -> list[str]:
    """Give the parts to measure, in order: those named, or all.

    Raises:
        UsageError: one of them is no part, or a package that it needs is not installed.

    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise UsageError(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    parts = [name for name in PARTS if name in names or not names]
    compared = [name for name in parts if PARTS[name].needs_peer]
    if compared and find_spec("transfer_queue") is None:
        raise UsageError(
            f"{', '.join(compared)}: compared with TransferQueue, which is not installed: "
            "pip install 'headrace[store]'"
        )
    for name in parts:
        missing = [package for package in PARTS[name].packages if find_spec(package) is None]
        if missing:
            raise UsageError(
                f"{name}: needs {', '.join(missing)}, which is not installed: "
                "pip install 'headrace[local]'"
            )
    return parts


async def measure(
    parts: Sequence[str],
    findings: Findings,
    *,
    is_quick: bool,
    redis_url: str | None,
    tell: Callable[[str], None],
) -> None:
    """Measure parts, one after the other, beside one TransferQueue.

    Args:
        parts: Their names.
        findings: Where those of each part are added once it is measured.
        is_quick: Fewer rounds, smaller sizes.
        redis_url: The user's Redis; None = one of the benchmark's own.
        tell: Told how it goes.

    Raises:
        UsageError: a process does not come up.

    """
    configure("bench", "bench", level="error")
    task = asyncio.current_task()
    assert task
    # Its processes and files go with it, as after Ctrl-C.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-"))
        peer = None
        if any(PARTS[name].needs_peer for name in parts):
            tell("starting TransferQueue")
            peer = await stack.enter_async_context(running_peer())
        for name in parts:
            tell(f"measuring {name}")
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(dir=scratch) as own:
                setting = Setting(Path(own), is_quick=is_quick, peer=peer, redis_url=redis_url)
                findings += await PARTS[name].measure(setting)
            tell(f"measured {name} in {time.monotonic() - begun:.0f} s")
