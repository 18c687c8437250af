"""Where the metrics of each step are written: a line of JSON, and TensorBoard.

Knows files; knows nothing of what the metrics mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH_S = 5
"""How long TensorBoard's writer may hold what it was given."""


class Recorder:
    """Writes metrics into the run directory.

    Args:
        metrics_file: gets a JSON object per line; appended to.
        tensorboard: directory of the TensorBoard logs; None = no such logs.

    """

    def __init__(self, metrics_file: Path, tensorboard: Path | None) -> None:
        self._file = metrics_file.open("a", encoding="utf-8")
        self._board = _board(tensorboard) if tensorboard is not None else None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics. What is no finite number becomes null in JSON."""
        values = {name: v if math.isfinite(v) else None for name, v in metrics.items()}
        self._file.write(json.dumps({"step": step, **values}, allow_nan=False) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _board(directory: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # a second of imports

    return SummaryWriter(str(directory), flush_secs=FLUSH_S)
