"""The one thread that computes, so that the event loop stays free to answer and to wait.

Knows nothing of what is computed. Torch keeps its number of threads per calling thread, so all
of it runs here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ComputeThread:
    """Runs functions one after the other.

    Args:
        threads: torch's threads; None = its own choice.
        seed: of torch's random numbers.

    """

    def __init__(self, *, threads: int | None, seed: int) -> None:
        def prepare() -> None:
            if threads is not None:
                torch.set_num_threads(threads)
            torch.manual_seed(seed)

        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute", initializer=prepare)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function, and return what it returns or raise what it raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    async def close(self) -> None:
        """Wait for what is running, and stop."""
        await asyncio.to_thread(self._executor.shutdown)
