"""Work for a caller that may go away: it runs to its end all the same."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

_T = TypeVar("_T")


async def lasting(task: asyncio.Future[_T]) -> _T:
    """Wait for a task, and leave it running if whoever waits is cancelled.

    What it raises after that is nobody's any more: asyncio is not to report it as forgotten.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_seen)
        raise


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
