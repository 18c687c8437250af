"""What the launcher itself has to say, kept beside the logs of its processes.

JSON, one object per line, as `headrace.log` writes it. Knows nothing of what is said.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from headrace.cli.display import Display
from headrace.cli.ending import DONE, Ending
from headrace.cli.view import View
from headrace.client.words import wait_in_words

LAUNCHER = "launcher"
"""The name of its log."""


class Diary:
    """A display that hands everything on, and keeps its lines, stalls and the run's end.

    Args:
        display: Where it is shown.
        file: Where it is kept; appended to.
        run_id: The run.
        clock: The time, with its zone.

    """

    def __init__(
        self, display: Display, file: Path, *, run_id: str, clock: Callable[[], datetime]
    ) -> None:
        self._display = display
        self._file = file
        self._run_id = run_id
        self._clock = clock
        self._stalled: set[tuple[str, str]] = set()
        file.parent.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Begin to show."""
        self._keep("info", "the run begins")
        self._display.start()

    def stop(self) -> None:
        """Leave the terminal as it should be."""
        self._display.stop()

    def say(self, line: str) -> None:
        """Show a line, and keep it."""
        self._keep("warning", line)
        self._display.say(line)

    def update(self, view: View) -> None:
        """Show the view, and keep stalls that are new."""
        stalls = {(name, wait.name): wait for name, wait in view.stalls()}
        for (name, what), wait in stalls.items():
            if (name, what) not in self._stalled:
                self._keep("warning", f"stalled: {wait_in_words(name, wait)}")
        self._stalled = set(stalls)
        self._display.update(view)

    def end(self, ending: Ending) -> None:
        """Keep how the run ended."""
        done = ending.exit_code == DONE
        for reason in ending.reasons:
            self._keep("error", reason)
        self._keep("info" if done else "error", f"the run ended with exit code {ending.exit_code}")

    def _keep(self, level: str, line: str) -> None:
        entry = {
            "event": line,
            "level": level,
            "timestamp": self._clock().isoformat(),
            "process": LAUNCHER,
            "run_id": self._run_id,
        }
        # A full disk must not end the run: what cannot be kept was still shown.
        with contextlib.suppress(OSError), self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
