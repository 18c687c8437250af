"""What an earlier `headrace run` left in a run directory, and whether there is more to do.

Reads files only; starts and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from headrace.checkpoint.storage import step_name
from headrace.cli.single import makes_checkpoints
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.config.wish import is_fulfilled, wish_of
from headrace.errors import HeadraceError, UsageError
from headrace.v1 import replay_pb2

ANOTHER = "to start another run: run.name=NAME or run.run_dir=DIR"
"""How to."""


@dataclass(frozen=True)
class Past:
    """A run directory before anything is started in it."""

    directory: RunDirectory
    """The directory."""
    began: bool
    """Whether a run has begun in it."""
    status: replay_pb2.GetReplayStatusResponse | None
    """What its journal says; None if that is lost, damaged, or in Redis."""
    saved: bool
    """Whether that run makes checkpoints."""
    storage: str
    """Where it has them: a URL or a directory."""
    goes_back: bool
    """Whether it is asked to go back or to begin again, and has not done that."""
    begins_again: bool
    """Whether it is that which it is asked for, if anything."""

    @classmethod
    def of(cls, directory: RunDirectory, config: Config) -> Self:
        """Look.

        Args:
            directory: The run directory.
            config: What the run is configured by now.

        """
        before = _before(directory) or config
        status = _status(directory, before)
        began = directory.config_file.exists() and (
            status is not None
            or directory.journal.exists()
            or directory.checkpoints.exists()
            or before.journal.kind == "redis"
        )
        saves = [makes_checkpoints(each) for each in (before, config)]
        goes_back = status is not None and not is_fulfilled(wish_of(config.resume), status.resume)
        begins_again = config.resume.mode == "disable"
        storage = before.checkpoint.storage or str(directory.checkpoints)
        return cls(directory, began, status, all(saves), storage, goes_back, begins_again)

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do."""
        status = self.status
        if status is None or not status.ended or self.goes_back:
            return False
        return not self.saved or status.saved_step == status.committed_step

    @property
    def last_resume(self) -> str:
        """The last resume's id; empty if there was none."""
        return self.status.resume.resume_id if self.status is not None else ""

    def finished_in_words(self) -> str:
        """Say that there is nothing to do, and what would be, in a line."""
        status = self.status
        assert status is not None
        words = f"{self.directory.path} is finished: "
        words += f"{status.committed_step} of {status.total_steps or '?'} steps; "
        if self.saved:
            last = f"{self.storage.rstrip('/')}/{step_name(status.saved_step)}"
            words += (
                f"to train on from its end: resume.mode=path resume.path={last} with more "
                "trainer.total_training_steps, and trainer.total_epochs where the data have ended; to "
                "go back: with an earlier checkpoint; "
            )
        return words + ANOTHER

    def going_on_in_words(self) -> str:
        """Say what is gone on with, in a line."""
        words = f"going on with {self.directory.path}"
        if self.status is None:
            return words
        steps = f"step {self.status.committed_step} of {self.status.total_steps or '?'}"
        saved = self.status.saved_step
        words += f": {steps}, " + (f"checkpoint {saved}" if saved else "no checkpoint yet")
        if self.goes_back and self.begins_again:
            return f"{words}; all of that is left behind, it begins again (resume.mode: disable)"
        if self.goes_back and self.status.ended:
            return f"{words}; it was finished, and goes back (resume.mode: path)"
        return words

    def check_can_go_on(self, config: Config) -> None:
        """Find early what the trainer would find when everything is started.

        Raises:
            UsageError: a trainer was here, and there are no checkpoints to go on from, or no steps
                to go on with.

        """
        status = self.status
        if status is None:
            return
        steps = config.trainer.total_training_steps
        if steps is not None and steps < status.committed_step and not self.goes_back:
            raise UsageError(
                f"trainer.total_training_steps: {steps} is fewer than the {status.committed_step} "
                f"steps that the run in {self.directory.path} has trained already: give "
                f"{status.committed_step} or more; to have the model of an earlier step: "
                f"`headrace export STEP DIR`; {ANOTHER}"
            )
        if makes_checkpoints(config):
            return
        if status.committed_step or status.HasField("latest_weights"):
            raise UsageError(
                f"{self.directory.path} holds a run that is at step {status.committed_step}, and "
                f"without checkpoints (trainer.save_freq = {config.trainer.save_freq}) a run cannot "
                f"go on; {ANOTHER}"
            )


def _before(directory: RunDirectory) -> Config | None:
    """Give the configuration of the run that was here; None if there was none, or it is of old."""
    try:
        return load_config(directory.config_file)
    except UsageError:
        return None


def _status(directory: RunDirectory, config: Config) -> replay_pb2.GetReplayStatusResponse | None:
    if config.journal.kind != "file" or not directory.journal.exists():
        return None
    # Imported here, as the first run of a directory has nothing to read.
    from headrace.replay.offline import open_ledger

    try:
        return open_ledger(directory.journal, config).status()
    except (HeadraceError, OSError):  # the replay buffer will say what is wrong with it
        return None
