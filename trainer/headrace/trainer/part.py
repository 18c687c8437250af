"""The trainer's part of a checkpoint, as files.

    .metadata, __0_0.distcp   the state's tensors
    state.json                step, updates, time line
    metrics.jsonl.gz          the metrics of the steps up to this one
    model/                    configuration and tokenizer, so that it can be exported

Nothing in it is run when it is loaded. Knows nothing of where checkpoints lie.
"""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from headrace.errors import HeadraceError
from headrace.trainer import shards
from headrace.trainer.recorder import unpacked
from headrace.trainer.state import MODEL, StateCopy
from headrace.v1.resume_pb2 import CheckpointPart

NAME: Final = "trainer"
"""The part's name, and that of the folder of its folders in a checkpoint."""
SCHEMA_VERSION: Final = 1
STATE_FILE: Final = "state.json"
METRICS_FILE: Final = "metrics.jsonl.gz"
DESCRIPTION: Final = "model"


class PartDamagedError(HeadraceError):
    """The files are not what a trainer wrote."""


@dataclass(frozen=True)
class Counters:
    """What goes with the tensors."""

    step: int
    """Steps whose updates are in the weights."""
    updates: int
    """Optimizer updates in the weights."""
    run_id: str
    """The run."""
    lineage: str
    """The time line of the step."""
    seen: str = ""
    """The prompts that the weights have seen; see `headrace.trainer.seen`."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class LoadedPart:
    """A part in this machine's memory."""

    counters: Counters
    tensors: dict[str, torch.Tensor]
    metrics: list[str]
    """The lines of the metrics' file."""


def write(
    directory: Path, copy: StateCopy, counters: Counters, *, metrics: bytes, description: Path
) -> None:
    """Write a part into a directory, made anew.

    Raises:
        OSError: it cannot be written; the disk is full.

    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        shards.write(directory, copy.tensors)
    except RuntimeError as error:  # how torch says that a file ended early
        raise OSError(errno.EIO, f"torch could not write all of the state: {error}") from error
    text = json.dumps(asdict(counters), indent=1, sort_keys=True) + "\n"
    (directory / STATE_FILE).write_text(text, encoding="utf-8")
    (directory / METRICS_FILE).write_bytes(metrics)
    shutil.copytree(description, directory / DESCRIPTION)


def folder_of(stored: CheckpointPart) -> str:
    """Give the folder of a stored part, below the checkpoint's directory.

    Raises:
        PartDamagedError: it has none of the files.

    """
    for file in stored.files:
        folder, _, name = file.path.rpartition("/")
        if name == STATE_FILE:
            return folder
    raise PartDamagedError(f"{stored.uri}: the trainer's part has no {STATE_FILE}")


def read(directory: Path) -> LoadedPart:
    """Read a part.

    Raises:
        PartDamagedError: it is none, or of a version that is not known here.
        ShardsDamagedError: its tensors cannot be read.

    """
    counters = read_counters(directory)
    tensors = shards.read(directory)
    file = directory / METRICS_FILE
    try:
        return LoadedPart(counters, tensors, unpacked(file.read_bytes()))
    except (OSError, ValueError, KeyError) as error:
        raise PartDamagedError(f"{file}: not the metrics of a run: {error!r}") from error


def read_counters(directory: Path) -> Counters:
    """Read what goes with the tensors.

    Raises:
        PartDamagedError: it is not there, or of a version that is not known here.

    """
    file = directory / STATE_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        schema = values["schema_version"]
        if schema != SCHEMA_VERSION:
            raise PartDamagedError(
                f"{file}: schema version {schema} is not {SCHEMA_VERSION}, the one known here"
            )
        return Counters(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PartDamagedError(f"{file}: not a trainer's state: {error!r}") from error


def read_model(directory: Path) -> dict[str, torch.Tensor]:
    """Read the model's parameters alone, by the model's own names.

    Raises:
        ShardsDamagedError: they cannot be read.

    """
    found = shards.read(directory, lambda name: name.startswith(MODEL))
    return {name.removeprefix(MODEL): tensor for name, tensor in found.items()}
