"""Which journal the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.replay.journal.base import Journal
from headrace.replay.journal.file import FileJournal
from headrace.replay.journal.mark import JournalMark
from headrace.rpc.waits import Waits


def open_journal(config: Config, waits: Waits, is_stopping: Callable[[], bool]) -> Journal:
    """Open the run's journal as its writer. Blocks; waits for Redis.

    Raises:
        UsageError: it cannot be used as it is.
        JournalDamagedError: it is damaged, or an older copy.
        NotReadyError: stopped while waiting.

    """
    assert config.run.run_dir
    directory = RunDirectory(config.run.run_dir).journal
    settings = config.journal
    if settings.redis_url is None:
        return FileJournal(
            directory, fsync=settings.fsync == "always", segment_events=settings.compact_every
        )
    from headrace.replay.journal.redis import RedisJournal  # only where it is used

    password = None
    if settings.redis_password_file is not None:
        try:
            password = settings.redis_password_file.read_text().strip()
        except OSError as error:
            msg = f"journal.redis_password_file {settings.redis_password_file}: {error.strerror}"
            raise UsageError(msg) from error
    return RedisJournal(
        settings.redis_url,
        run_id=config.run.run_id,
        password=password,
        allow_weak_fsync=settings.allow_weak_fsync,
        mark=JournalMark(directory / "mark.json"),
        waits=waits,
        is_stopping=is_stopping,
    )
