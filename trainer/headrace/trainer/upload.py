"""Brings a copy of the state to where checkpoints lie: files of this machine first, then there.

Blocks: runs in a thread of its own. Knows nothing of who puts a checkpoint together.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.checkpoint.storage import Storage, step_name, write_part
from headrace.trainer import part
from headrace.trainer.recorder import packed_lines
from headrace.trainer.state import StateCopy
from headrace.v1.resume_pb2 import CheckpointPart


@dataclass(frozen=True)
class SaverSettings:
    """What checkpoints are made by."""

    incarnation: int
    """The trainer's."""
    run_id: str
    """The run."""
    lineage: str
    """The time line of the steps."""
    storage: str
    """Where checkpoints lie: an fsspec URL."""
    facts: Mapping[str, str]
    """What a resume must agree with."""
    scratch: Path
    """A directory of this machine for a part that is being written."""
    description: Path
    """The files that describe the model."""
    metrics_file: Path
    """The metrics of each step."""
    save_freq: int
    """Steps between two checkpoints."""
    deadline_s: float
    """How long a snapshot may take."""


def upload(settings: SaverSettings, copy: StateCopy, step: int) -> CheckpointPart:
    """Write the part of a step, whose metrics are recorded; say what was written.

    Raises:
        OSError: it cannot be written.
        UsageError: there is no driver for the storage.

    """
    directory = settings.scratch / step_name(step)
    counters = part.Counters(
        step=step,
        updates=copy.updates,
        seen=copy.seen,
        run_id=settings.run_id,
        lineage=settings.lineage,
    )
    metrics = packed_lines(settings.metrics_file, step)
    try:
        part.write(directory, copy, counters, metrics=metrics, description=settings.description)
        return write_part(
            Storage(settings.storage).join(step_name(step)),
            name=part.NAME,
            owner="trainer",
            source=directory,
            # A trainer that was succeeded, and does not know yet, writes into a folder of its own.
            target=f"{part.NAME}/{settings.lineage}",
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
