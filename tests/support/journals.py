"""Both kinds of journal, as often as a test opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from redis_server import RedisServer

from headrace.replay.journal.base import Journal
from headrace.replay.journal.file import FileJournal
from headrace.replay.journal.redis import RedisJournal
from headrace.rpc.waits import Waits

OpenJournal: TypeAlias = Callable[[], Journal]


@contextmanager
def journals(kind: str, directory: Path) -> Iterator[OpenJournal]:
    """Give what opens the journal, `file` or `redis`."""
    if kind == "file":
        yield lambda: FileJournal(directory, fsync=False)
        return
    directory.mkdir(exist_ok=True)
    server = RedisServer(directory)
    made: list[RedisJournal] = []

    def opened() -> RedisJournal:
        made.append(
            RedisJournal(
                server.url, run_id="r", waits=Waits(stall_after_s=60), is_stopping=lambda: False
            )
        )
        return made[-1]

    try:
        server.start()
        yield opened
    finally:
        for journal in made:
            journal.close()
        server.stop()
