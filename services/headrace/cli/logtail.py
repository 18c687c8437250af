"""Reads what a process has written to its log, and makes its lines readable.

Log lines are JSON objects (`headrace.log`); what is no JSON (a traceback, a library's
print) is kept as it is. Knows nothing of processes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

ERROR_PREFIX: Final = "error: "
"""How a line begins by which a headrace command says why it gives up."""

LONGEST_TAIL_BYTES: Final = 64 * 1024
"""The most that is read of a log's end."""

_COMMON = frozenset({"event", "level", "timestamp", "process", "run_id", "logger"})
_FAILED = frozenset({"error", "critical"})
_ALARMING = _FAILED | {"warning"}
_RAISED: Final = re.compile(r"(?:[ |]*\| )?([A-Za-z_][\w.]*(?:Error|Exception)(?:: .*)?)")
"""The line of a traceback that names the exception, or one of a group of them."""


class LogTail:
    """The part of a log after a position; remembers how far `new_warnings` has read."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self.path = path
        self._begin = begin
        self._read = begin

    def last_lines(self, count: int) -> list[str]:
        """Give the last lines, readable, without empty ones."""
        lines = [readable(line) for line in self._tail().splitlines() if line.strip()]
        return lines[-count:]

    def errors(self) -> list[str]:
        """Give what the process said with `error: ` when it gave up."""
        lines = self._tail().splitlines()
        return [line[len(ERROR_PREFIX) :] for line in lines if line.startswith(ERROR_PREFIX)]

    def last_error(self) -> str:
        """Give the last line that says what went wrong, readable; empty if there is none."""
        found = ""
        for line in self._tail().splitlines():
            found = _error_in(line) or found
        return found

    def new_warnings(self) -> list[str]:
        """Give the warnings and errors written since the last call."""
        data = self._bytes_from(self._read)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        entries = (_entry(line) for line in whole.decode(errors="replace").splitlines())
        return [_in_words(e) for e in entries if e and e.get("level") in _ALARMING]

    def _tail(self) -> str:
        size = self.path.stat().st_size if self.path.exists() else 0
        begin = max(self._begin, size - LONGEST_TAIL_BYTES)
        return self._bytes_from(begin).decode(errors="replace")

    def _bytes_from(self, position: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(position)
                return file.read()
        except FileNotFoundError:
            return b""


def readable(line: str) -> str:
    """Turn a JSON log line into words; leave any other as it is."""
    entry = _entry(line)
    return _in_words(entry) if entry else line.rstrip()


def _error_in(line: str) -> str:
    """Take the message of a command that gives up, of a logged error, or of a traceback's end."""
    if line.startswith(ERROR_PREFIX):
        return line[len(ERROR_PREFIX) :]
    if entry := _entry(line):
        if entry.get("level") not in _FAILED:
            return ""
        known = "error" in entry
        return f"{entry['event']}: {entry['error']}" if known else _in_words({**entry, "level": ""})
    raised = _RAISED.fullmatch(line)
    return _short(raised[1]) if raised else ""


def _entry(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "event" in entry else None


def _in_words(entry: dict[str, Any]) -> str:
    exception = entry.get("exception")
    if isinstance(exception, list) and exception:  # structlog's dict_tracebacks
        last = exception[0]
        entry = {**entry, "exception": f"{last.get('exc_type')}: {last.get('exc_value')}"}
    details = (f"{key}={_short(value)}" for key, value in entry.items() if key not in _COMMON)
    return " ".join([str(entry.get("level", "")), str(entry["event"]), *details]).strip()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:199] + "…"
