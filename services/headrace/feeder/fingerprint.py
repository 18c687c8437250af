"""What must stay the same while a run lives: the rows and their order."""

from __future__ import annotations

import hashlib
import json

from headrace.config.config import Config
from headrace.feeder.sources.source import Source
from headrace.feeder.sources.stream import StreamRows

ORDER_VERSION = 1
"""Goes up when `order.py` and `mixing.py` give other orders for the same seeds."""


def feed_fingerprint(source: Source | StreamRows, config: Config) -> str:
    """Digest content and order. Settings that change neither, such as G or epochs, are not in it."""
    told = {
        "content": source.fingerprint(),
        "row_count": None if isinstance(source, StreamRows) else len(source),
        "order": ORDER_VERSION,
        "shuffle": config.data.shuffle,
        "seed": config.data.seed if config.data.shuffle else None,
        "epochs": 1,  # any number does; runs that were begun when it was told have it
        "max_prompt_length": config.data.max_prompt_length,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
