"""Notices that TransferQueue has stopped answering.

Its controller and units are threads of this process: if one is gone, nothing brings it back but a
new process with a new incarnation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.errors import NotReadyError
from headrace.log import get_logger
from headrace.store.queue import RowsUnreadableError, TransferQueue

PROBE_EVERY_S = 3.0
FAILURES_ALLOWED = 3
"""Probes in a row without an answer, after which TransferQueue counts as dead."""

_log = get_logger()


async def until_dead(
    queue: Callable[[], TransferQueue | None],
    *,
    every_s: float = PROBE_EVERY_S,
    failures: int = FAILURES_ALLOWED,
) -> None:
    """Probe controller and units again and again; return when they count as dead.

    Args:
        queue: Gives the TransferQueue that is in use; None while it is busy with a checkpoint.
        every_s: Seconds between two probes.
        failures: Probes in a row that may fail.

    """
    failed = 0
    while failed < failures:
        probed = queue()
        try:
            if probed is not None:
                await probed.probe()
        except (NotReadyError, RowsUnreadableError) as error:
            if probed is not queue():
                continue  # It has been replaced, or has begun a checkpoint meanwhile.
            failed += 1
            _log.warning("probe_failed", error=str(error), in_a_row=failed)
        else:
            failed = 0
            await asyncio.sleep(every_s)
    _log.error("transfer_queue_dead", probes=failures)
