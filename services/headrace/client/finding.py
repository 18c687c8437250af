"""Finds a run by its directory, and somebody who can answer for it.

That is the replay buffer while the run lives, and its journal, read without changing it, once
the run is over.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from headrace.client.asking import AwayError, Pauses
from headrace.client.ledger import Ledger, LiveLedger
from headrace.client.wire import WireLedger
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc import announce
from headrace.rpc.failures import UNWELCOME
from headrace.rpc.security import Security
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb

Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S: Final = 1.0
"""How long a connection may take before nobody is there."""


def newest_run(folder: Path) -> Path | None:
    """Give the run directory below `folder` that was started last; None if there is none."""
    found = list(folder.glob("*/config.yaml"))
    return max(found, key=lambda file: file.stat().st_mtime).parent if found else None


def announced_address(directory: RunDirectory, process: str) -> str | None:
    """Give the address a process of a run listens on; None if it does not."""
    announced = announce.read(directory.endpoint_file(process))
    if announced is None or not listens(announced.address):
        return None
    return announced.address


def absence_in_words(directory: RunDirectory, process: str) -> str:
    """Say that a process is not running, and of one that nobody has stopped, that it is gone."""
    announced = announce.read(directory.endpoint_file(process))
    if announced is None or announced.lives:
        return "is not running"
    return f"is not running (its process {announced.pid} is gone)"


def listens(address: str) -> bool:
    """Try whether anybody listens on `host:port`.

    Raises:
        UsageError: it is no such address.

    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is not an address; write host:port")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def launcher_lives(directory: RunDirectory) -> bool:
    """Whether the `headrace run` of a directory still runs, and starts again what dies."""
    try:
        os.kill(int(directory.lock_file.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def same_machine(answer: pb.GetReplayStatusResponse) -> RunDirectory | None:
    """Give the run directory that the replay buffer names, if it is here and of the same run."""
    if not answer.run_dir:
        return None
    directory = RunDirectory(Path(answer.run_dir))
    try:
        config = load_config(directory.config_file)
    except UsageError:
        return None
    return directory if config.run.run_id == answer.process.run_id else None


class DirectoryLedger:
    """The ledger of the run in a directory.

    Args:
        directory: The run directory.
        security: What calls carry.
        patience_s: How long a replay buffer that is being started again is waited for, before
            its journal is read instead.

    """

    def __init__(
        self, directory: RunDirectory, security: Security | None = None, *, patience_s: float = 0.0
    ) -> None:
        self.directory = directory
        self._security = security
        self._patience_s = patience_s
        self._reached: WireLedger | None = None

    def status(self) -> pb.GetReplayStatusResponse:
        """Say where the run is."""
        return self._ask(lambda ledger: ledger.status())

    def locate(self, uid: str) -> pb.LocatePromptResponse:
        """Give one prompt's place and history."""
        return self._ask(lambda ledger: ledger.locate(uid))

    def audit(self) -> pb.AuditResponse:
        """Check everything that must hold."""
        return self._ask(lambda ledger: ledger.audit())

    def list_prompts(self, request: pb.ListPromptsRequest) -> pb.ListPromptsResponse:
        """List a page of prompts."""
        return self._ask(lambda ledger: ledger.list_prompts(request))

    def events(
        self, after: int = 0, *, until: int | None = None, for_s: float | None = None
    ) -> Iterator[prompt_pb2.LedgerEvent]:
        """Give events from the replay buffer, and what is missing then from its journal."""
        live = self.live()
        if live is not None:
            patient = WireLedger(live.target, self._security, patience_s=self._patience_s)
            try:
                for event in patient.events(after, until=until, for_s=for_s):
                    after = event.position
                    yield event
            except AwayError:
                pass  # the run has ended; the journal has the rest
            else:
                return
        yield from self.journal().events(after, until=until)

    def pause(self) -> None:
        """Stop feeding and leasing."""
        self._control(lambda live: live.pause())

    def resume(self) -> None:
        """Go on."""
        self._control(lambda live: live.resume())

    def drop_stale(self, step: int) -> list[str]:
        """Drop what is too old for a step; name it."""
        return self._control(lambda live: live.drop_stale(step))

    def close_circuit(self) -> bool:
        """Close an open circuit; say whether it was open."""
        return self._control(lambda live: live.close_circuit())

    def drop(self, uids: Sequence[str]) -> list[str]:
        """Drop prompts; name those that were not dropped before."""
        return self._control(lambda live: live.drop(uids))

    def live(self) -> WireLedger | None:
        """Give the run's replay buffer; None if it does not answer."""
        address = announced_address(self.directory, "replay")
        if address is None:
            return None
        if self._reached is None or self._reached.target != address:
            ledger = WireLedger(address, self._security)
            try:
                run_id = ledger.status().process.run_id
            except AwayError:
                return None
            except (UsageError, *UNWELCOME):  # something else has the port by now
                return None
            if run_id != self._config().run.run_id:
                return None
            self._reached = ledger
        return self._reached

    def _ask(self, question: Callable[[Ledger], Answer]) -> Answer:
        answer = self._ask_live(question)
        return question(self.journal()) if answer is None else answer

    def _control(self, wish: Callable[[LiveLedger], Answer]) -> Answer:
        done = self._ask_live(lambda live: (wish(live),))
        if done is None:
            raise UsageError(
                f"{self.directory.path}: the run was stopped or is over, its replay buffer "
                "does not answer; only a running one can be controlled"
            )
        return done[0]

    def _ask_live(self, question: Callable[[WireLedger], Answer]) -> Answer | None:
        """Ask the replay buffer, waiting for it while somebody starts it again."""
        pauses = Pauses(self._patience_s)
        while True:
            live = self.live()
            if live is not None:
                try:
                    return question(live)
                except AwayError:
                    pass
            if not launcher_lives(self.directory) or not pauses.wait():
                return None

    def journal(self) -> Ledger:
        """Read the journal, which nobody writes any more.

        Raises:
            UsageError: there is none, or it is not in the run directory.

        """
        # Imported here, as a question to a running replay buffer needs none of its code.
        from headrace.replay.offline import open_ledger

        config = self._config()
        absent = absence_in_words(self.directory, "replay")
        where = f"the replay buffer of {self.directory.path} {absent}, and"
        if config.journal.kind != "file":
            raise UsageError(
                f"{where} its journal is in Redis: start it with `headrace serve replay`"
            )
        if not self.directory.journal.exists():
            raise UsageError(f"{where} there is no journal yet")
        return open_ledger(self.directory.journal, config)

    def _config(self) -> Config:
        return load_config(self.directory.config_file)
