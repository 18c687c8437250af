"""A run's ledger without its replay buffer: read from the journal, for looking only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.config.config import Config
from headrace.replay import history, load, report
from headrace.replay.events import to_ledger_event
from headrace.replay.journal.file import FileJournal
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb


class OfflineLedger:
    """Gives a finished or stopped run's answers, as the replay buffer would."""

    def __init__(self, journal: FileJournal, ledger: Ledger, settings: LedgerSettings) -> None:
        self._journal = journal
        self._ledger = ledger
        self._settings = settings

    def status(self) -> pb.GetReplayStatusResponse:
        """Say where the run is."""
        return report.status(self._ledger, self._settings)

    def locate(self, uid: str) -> pb.LocatePromptResponse:
        """Give a prompt's place and history. Raises PromptUnknownError."""
        return history.locate(self._ledger, self._journal, uid)

    def audit(self) -> pb.AuditResponse:
        """Check everything that must hold."""
        return report.audited(self._ledger, self._settings)

    def list_prompts(self, request: pb.ListPromptsRequest) -> pb.ListPromptsResponse:
        """Give a page of prompts."""
        return history.list_prompts(self._ledger.groups, request)

    def events(
        self, after: int = 0, *, until: int | None = None, for_s: float | None = None
    ) -> Iterator[prompt_pb2.LedgerEvent]:
        """Give what happened after a position, up to the journal's end or `until`."""
        del for_s  # nothing is waited for
        first = max(after + 1, self._journal.first_position)
        last = self._journal.position if until is None else min(until, self._journal.position)
        for position in range(first, last + 1):
            yield from map(to_ledger_event, self._journal.read([position]))


def open_ledger(directory: Path, config: Config) -> OfflineLedger:
    """Read a journal without becoming its writer.

    What the run was begun with is taken from the journal: a start with other values was refused,
    and looking is none.

    Raises:
        UsageError: there is no journal.
        JournalDamagedError: it is damaged.

    """
    settings = LedgerSettings.from_config(config)
    journal = FileJournal(directory, fsync=False, writable=False)
    if journal.position:
        ledger = load.load_until(journal, journal.position)
    else:
        ledger = load.open_ledger(journal, settings, run_id=config.run.run_id, new_lineage="")
    return OfflineLedger(journal, ledger, settings)
