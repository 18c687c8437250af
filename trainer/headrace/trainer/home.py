"""Where a trainer keeps what: its files in the run directory, and its room for checkpoints.

Creates what is needed; knows nothing of what is in the files.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.config.config import Config
from headrace.config.rundir import RunDirectory

SCRATCH: Final = "scratch"
"""The folder of a run directory for files that are on their way."""


@dataclass(frozen=True)
class Home:
    """The folders of one start of the trainer."""

    run: RunDirectory
    """The run directory."""
    scratch: Path
    """For parts of checkpoints on their way; gone with the trainer."""

    @classmethod
    def make(cls, config: Config, incarnation: int) -> Home:
        """Make it, and remove what killed trainers left behind."""
        run = run_directory(config)
        for left in (run.path / SCRATCH).glob("trainer-*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = run.path / SCRATCH / f"trainer-{incarnation}"
        scratch.mkdir(parents=True)
        return cls(run, scratch)

    @property
    def description(self) -> Path:
        """The files that describe the model."""
        return self.scratch / "model"

    @property
    def arriving(self) -> Path:
        """For a part that is being loaded."""
        return self.scratch / "loading"

    def remove(self) -> None:
        """Remove what is in the scratch folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def run_directory(config: Config) -> RunDirectory:
    """Give the run directory."""
    assert config.run.run_dir is not None  # filled in before any process is started
    return RunDirectory(config.run.run_dir)


def weights_root(config: Config) -> Path:
    """Give the folder of weights on their way to the workers."""
    return config.weights.dir or run_directory(config).weights


def checkpoint_storage(config: Config) -> str:
    """Give the URL or directory below which checkpoints lie."""
    return config.checkpoint.storage or str(run_directory(config).checkpoints)
