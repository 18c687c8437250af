"""Where the metrics of each step are written: a line of JSON, and TensorBoard.

Both tell one story: a run that went back to step N has no lines of the steps that it left behind.
Those go to `metrics.abandoned.jsonl` beside. Knows files; knows nothing of what metrics mean.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FLUSH_S: Final = 5
"""How long TensorBoard's writer may hold what it was given."""
ABANDONED: Final = ".abandoned.jsonl"
"""Ends the name of the file of lines that were left behind."""


class Recorder:
    """Writes metrics into the run directory.

    Args:
        metrics_file: gets a JSON object per line; appended to.
        tensorboard: directory of the TensorBoard logs; None = no such logs.
        purge_step: of a run that goes on: the first step that will be written. TensorBoard
            forgets it and later ones.

    """

    def __init__(
        self, metrics_file: Path, tensorboard: Path | None, *, purge_step: int | None = None
    ) -> None:
        self._file = metrics_file.open("a", encoding="utf-8")
        self._board = _board(tensorboard, purge_step) if tensorboard is not None else None

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


def packed_lines(metrics_file: Path, last_step: int) -> bytes:
    """Give the lines of the steps up to one, compressed: a checkpoint keeps them."""
    lines = [line for line in _lines(metrics_file) if _step(line) <= last_step]
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


def unpacked(packed: bytes) -> list[str]:
    """Give the lines that were packed.

    Raises:
        ValueError: they were not.

    """
    try:
        lines = gzip.decompress(packed).decode().splitlines()
    except (OSError, EOFError, zlib.error) as error:
        msg = f"no packed lines: {error}"
        raise ValueError(msg) from error
    for line in lines:
        _step(line)
    return lines


def rewind(metrics_file: Path, lines: Sequence[str]) -> list[tuple[int, dict[str, float]]]:
    """Make the file what it was: the lines of a checkpoint, or none. Others are left behind.

    A line that was cut short by a kill goes with them, or the next one would be written behind it.

    Returns:
        Steps with their metrics.

    """
    kept = set(lines)
    if left := [line for line in _lines(metrics_file) if line not in kept]:
        with metrics_file.with_suffix(ABANDONED).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in left)
    if lines or metrics_file.exists():
        _replace(metrics_file, lines)
    return [_parsed(line) for line in lines]


def _lines(file: Path) -> list[str]:
    """Read whole lines: one that was cut short by a kill is none."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    return [line for line in text[: text.rfind("\n") + 1].splitlines() if line]


def _step(line: str) -> int:
    return int(json.loads(line)["step"])


def _parsed(line: str) -> tuple[int, dict[str, float]]:
    values = json.loads(line)
    step = int(values.pop("step"))
    return step, {name: math.nan if value is None else value for name, value in values.items()}


def _replace(file: Path, lines: Iterable[str]) -> None:
    fresh = file.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as target:
        target.writelines(f"{line}\n" for line in lines)
        target.flush()
        os.fsync(target.fileno())
    fresh.replace(file)


def _board(directory: Path, purge_step: int | None) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # a second of imports

    return SummaryWriter(str(directory), flush_secs=FLUSH_S, purge_step=purge_step)
