"""What the processes write down while they run: JSON, one object per line, to stderr.

Messages of other packages (grpc, asyncio, transformers) come out in the same form. Knows
nothing of files: whoever starts a process decides where its stderr goes.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from io import FileIO
from typing import TYPE_CHECKING, Literal, TextIO, cast

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

Level = Literal["debug", "info", "warning", "error"]


def configure(process: str, run_id: str, *, level: Level = "info") -> None:
    """Set up logging for this process; every line then names `process` and `run_id`.

    Args:
        process: `feeder`, `replay`, `store`, `worker-0`, `trainer`.
        run_id: The run it belongs to.
        level: The least level written. `debug` has a line per call.

    """

    def identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["process"] = process
        event["run_id"] = run_id
        return event

    lines = cast("TextIO", _Lossy(sys.stderr.fileno()))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        identify,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(lines),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    # Other packages' chatter is below our own: they log one level up at the least.
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class _Lossy:
    """A file of which a full disk costs lines, and not the work that writes them.

    Keeps nothing back: what a full disk refused would be tried again when Python ends, and turn
    the exit code into 120.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = FileIO(descriptor, "w", closefd=False)

    def write(self, text: str) -> None:
        left = text.encode(errors="backslashreplace")
        with suppress(OSError):
            while left and (written := self._file.write(left)):
                left = left[written:]

    def flush(self) -> None:
        """There is nothing to be flushed."""


def get_logger() -> FilteringBoundLogger:
    """Return a logger: `log.info("event_name", key=value)`. May be made before `configure`."""
    return cast("FilteringBoundLogger", structlog.get_logger())
