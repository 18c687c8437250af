"""Which GPUs each worker of a run on one machine sees. Asks no driver; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.config.rollout import RolloutConfig
from headrace.errors import UsageError

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""By this CUDA shows a process some GPUs, which it counts from 0."""


def visible_gpus(rollout: RolloutConfig, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Deal `rollout.gpus` out, in order.

    Args:
        rollout: How many workers there are, and what they may have.
        environment: The launcher's own, which may show it some of the machine's GPUs only.

    Returns:
        For each worker the variables that show it its GPUs; empty ones if all see what the launcher does.

    Raises:
        UsageError: the launcher does not see one of them.

    """
    if rollout.gpus is None:
        return [{} for _ in range(rollout.workers)]
    shown = environment.get(VISIBLE)
    if shown is None:
        dealt = [str(gpu) for gpu in rollout.gpus]
    else:
        names = [name.strip() for name in shown.split(",") if name.strip()]
        if max(rollout.gpus) >= len(names):
            raise UsageError(
                f"rollout.gpus has GPU {max(rollout.gpus)}, and {VISIBLE}={shown} shows "
                f"{len(names)}, counted from 0"
            )
        dealt = [names[gpu] for gpu in rollout.gpus]
    each = len(rollout.gpus) // rollout.workers
    return [
        {VISIBLE: ",".join(dealt[first : first + each])} for first in range(0, len(dealt), each)
    ]
