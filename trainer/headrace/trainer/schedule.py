"""The learning rate over the run, as a share of its peak. Knows nothing of optimizers."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate_share(
    update: int,
    *,
    total: int,
    warmup: int,
    shape: Literal["constant", "linear", "cosine"],
    min_ratio: float,
) -> float:
    """Give the share of the peak learning rate for one update.

    Args:
        update: which, from 0.
        total: updates in the whole run; the last one gets `min_ratio`, unless constant.
        warmup: updates over which the rate rises from 0; the last of them has the peak.
        shape: of the way from the peak to `min_ratio`.
        min_ratio: the share at the end.

    """
    if update < warmup:
        return (update + 1) / warmup
    if shape == "constant":
        return 1.0
    progress = min(1.0, (update - warmup) / max(1, total - 1 - warmup))
    left = 1 - progress if shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return min_ratio + (1 - min_ratio) * left
