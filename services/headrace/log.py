"""What the processes write down while they run: JSON, one object per line, to stderr.

Messages of other packages (grpc, asyncio, transformers) come out in the same form. Knows
nothing of files: whoever starts a process decides where its stderr goes.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
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
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Lossy(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
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
    """A file of which a full disk costs lines, and not the work that writes them."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


def get_logger() -> FilteringBoundLogger:
    """Return a logger: `log.info("event_name", key=value)`. May be made before `configure`."""
    return cast("FilteringBoundLogger", structlog.get_logger())
