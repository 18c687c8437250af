"""Makes run directories and keeps two launchers out of one."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.cli.find import RUNS
from headrace.config.config import Config
from headrace.config.load import dump_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError


def with_run_directory(config: Config) -> Config:
    """Fill in what a process needs to know of its run: the directory, made, and the run's id.

    Raises:
        UsageError: no directory is configured, or it cannot be made.

    """
    directory = config.run.run_dir
    if directory is None:
        raise UsageError(
            "run.run_dir is missing, the folder where this process keeps its files: add "
            "run.run_dir=DIR, the same for those of one machine, and on each machine a folder of "
            "its own (docs/machines.md); `headrace run` makes one by itself"
        )
    _make(directory)
    return _named(config, directory)


def make_run_directory(config: Config, *, below: Path = RUNS) -> tuple[Config, RunDirectory]:
    """Make the directory of a run if it is not there: `run.run_dir`, or one of the run's name.

    The same configuration leads to the same directory, so that a run is gone on with. Gives the
    configuration that knows of it, too.

    Raises:
        UsageError: it cannot be made or written.

    """
    directory = config.run.run_dir or below.absolute() / config.run.name
    _make(directory)
    return _named(config, directory), RunDirectory(directory)


def write_config(config: Config, directory: RunDirectory) -> None:
    """Write the resolved configuration into its run directory, in place of an earlier one.

    What may not change within a run is for its processes to refuse.

    Raises:
        UsageError: it cannot be written.

    """
    # Through a temporary file: `headrace status` may look at any moment.
    temporary = directory.config_file.with_suffix(".new")
    try:
        temporary.write_text(dump_config(config), encoding="utf-8")
        temporary.replace(directory.config_file)
    except OSError as error:
        raise UsageError(f"{temporary} cannot be written: {error.strerror}") from error


def forget_addresses(directory: RunDirectory) -> None:
    """Remove what processes of an earlier life of the run have announced."""
    for file in directory.endpoint_file("any").parent.glob("*.json"):
        file.unlink(missing_ok=True)


class RunLock:
    """Held by the `headrace run` that uses a directory; gone when its process is.

    Raises:
        UsageError: another process holds it; its id is in the message.

    """

    def __init__(self, directory: RunDirectory) -> None:
        try:
            self._file = directory.lock_file.open("a+", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{directory.lock_file} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "?"
            self._file.close()
            raise UsageError(
                f"{directory.path} is in use by another run (process {holder}); "
                "give another run.name or run.run_dir, or stop that one"
            ) from None
        try:
            self._file.truncate(0)
            self._file.write(f"{os.getpid()}\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(f"{directory.lock_file} cannot be written: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the run directory {directory} cannot be made: {error.strerror}; "
            "give another run.run_dir"
        ) from None
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(
            f"the run directory {directory} cannot be written; give another run.run_dir"
        )


def _named(config: Config, directory: Path) -> Config:
    run_id = config.run.run_id or re.sub(r"[^A-Za-z0-9-]", "-", directory.name)[:64]
    run = config.run.model_copy(update={"run_dir": directory.absolute(), "run_id": run_id})
    return config.model_copy(update={"run": run})
