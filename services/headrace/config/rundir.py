"""The run directory: what lies where on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDirectory:
    """Names the files of a run. Creates nothing."""

    path: Path
    """The run directory itself."""

    @property
    def config_file(self) -> Path:
        """The configuration as it was resolved, for the children and for `headrace status`."""
        return self.path / "config.yaml"

    @property
    def lock_file(self) -> Path:
        """Held by the `headrace run` that uses the directory."""
        return self.path / "lock"

    @property
    def journal(self) -> Path:
        """The ledger's journal."""
        return self.path / "journal"

    @property
    def store(self) -> Path:
        """The store's log of trajectories."""
        return self.path / "store"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, unless `checkpoint.storage` is another place."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """Weights on their way to the workers."""
        return self.path / "weights"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard logs."""
        return self.path / "tensorboard"

    @property
    def metrics_file(self) -> Path:
        """The metrics of each step, a JSON object per line."""
        return self.path / "metrics.jsonl"

    def endpoint_file(self, process: str) -> Path:
        """Where a process announces its address: `{"address": "host:port", "pid": 1}`."""
        return self.path / "endpoints" / f"{process}.json"

    def log_file(self, process: str) -> Path:
        """The log of a process."""
        return self.path / "logs" / f"{process}.log"
