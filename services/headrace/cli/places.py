"""Where the processes of a run listen, as they say themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.find import run_directory
from headrace.client.finding import absence_in_words, announced_address
from headrace.client.wire import WireLedger
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc import announce
from headrace.rpc.security import Security

REPLAY = "replay"
_ROLES = {"checkpoint": "checkpoint coordinator"}
"""What messages call a process, where its name is not what it is."""


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

    def find_process(self, name: str) -> str:
        """Give `host:port` of a process beside the replay buffer.

        Raises:
            UsageError: it is not running, or nobody has said where it listens.

        """
        if self.directory is not None:
            address = announced_address(self.directory, name)
            absent = absence_in_words(self.directory, name)
            where = f"{self.directory.path}: the {_ROLES.get(name, name)} {absent}"
        else:
            answer = WireLedger(self.replay, self.security).status()
            address = answer.addresses.get(name)
            where = (
                f"the replay buffer at {self.replay} does not know where the "
                f"{_ROLES.get(name, name)} listens: it has not called since that was started, or "
                f"endpoints.{name} is not configured there"
            )
        if address is None:
            raise UsageError(where)
        return address

    def gone(self, known: Iterable[str]) -> set[str]:
        """Name those of `known` that are not there any more, if they ever were on this machine."""
        if self.directory is None:
            return set()
        found = self._announced()
        return {name for name in known if name not in found or not found[name].lives}

    def _announced(self) -> dict[str, announce.Announcement]:
        if self.directory is None:
            return {}
        folder = self.directory.endpoint_file("any").parent
        found = {file.stem: announce.read(file) for file in sorted(folder.glob("*.json"))}
        return {name: each for name, each in found.items() if each is not None}
