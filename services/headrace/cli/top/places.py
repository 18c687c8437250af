"""Where the processes of a run listen, as they say themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.find import run_directory
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc import announce
from headrace.rpc.security import Security

REPLAY = "replay"


@dataclass(frozen=True)
class Places:
    """A run, by its directory or by the address of its replay buffer."""

    name: str
    """What the run is called on the screen."""
    directory: RunDirectory | None
    replay: str
    """`host:port`, if there is no directory."""
    run_id: str
    """Who has to answer; empty = whoever does."""
    security: Security = field(default_factory=Security)

    @classmethod
    def find(cls, run: Path | None, replay: str | None, security: Security) -> Places:
        """Take the directory, or the address, or else the newest run.

        Raises:
            UsageError: there is no such run.

        """
        if replay is not None:
            if run is not None:
                raise UsageError("give either --run or --replay, not both")
            host, _, port = replay.rpartition(":")
            if not host or not port.isdecimal():
                raise UsageError(f"{replay!r} is not an address; write host:port")
            return cls(replay, None, replay, "", security)
        directory = run_directory(run)
        config = load_config(directory.config_file)
        return cls(
            directory.path.name, directory, "", config.run.run_id, Security.for_looking(config)
        )

    def addresses(self, passed_on: Mapping[str, str]) -> dict[str, str]:
        """Give `host:port` by process. `passed_on` is what the replay buffer knows of others."""
        if self.directory is None:
            return {**passed_on, REPLAY: self.replay}
        return {name: found.address for name, found in self._announced().items()}

    def gone(self) -> set[str]:
        """Name those whose process is not there any more, if it ever was on this machine."""
        return {name for name, found in self._announced().items() if not _lives(found.pid)}

    def _announced(self) -> dict[str, announce.Announcement]:
        if self.directory is None:
            return {}
        folder = self.directory.endpoint_file("any").parent
        found = {file.stem: announce.read(file) for file in sorted(folder.glob("*.json"))}
        return {name: each for name, each in found.items() if each is not None}


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
