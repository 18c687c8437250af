"""A run as plain lines, for logs and pipes: one every few seconds and at each tenth step."""

from __future__ import annotations

from typing import Final, TextIO

from headrace.cli.display import one_line, progress_in_words
from headrace.cli.view import View
from headrace.client.words import wait_in_words

LINE_EVERY_S: Final = 10.0
"""The longest silence."""
LINE_EVERY_STEPS: Final = 10
"""Steps after which there is a line in any case."""


class PlainDisplay:
    """Writes lines to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_s = float("-inf")
        self._last_tenth = 0
        self._stalled: set[tuple[str, str]] = set()
        self._leaving = ""

    def start(self) -> None:
        """Nothing to prepare."""

    def stop(self) -> None:
        """Nothing to put back."""

    def say(self, line: str) -> None:
        """Write a line."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def update(self, view: View) -> None:
        """Write a line if it is time for one."""
        self._say_stalls(view)
        if view.stopping:
            self._say_leaving(view)
            return
        tenth = view.steps.last // LINE_EVERY_STEPS
        if tenth > self._last_tenth or view.now - self._last_s >= LINE_EVERY_S:
            self._last_tenth, self._last_s = tenth, view.now
            self.say(one_line(view))

    def _say_leaving(self, view: View) -> None:
        """Say how far the trainer's end is, when it is another step of it; others go quickly."""
        words = progress_in_words(view)
        if words != self._leaving and "trainer" in view.leaving:
            self._leaving = words
            self.say(words)

    def _say_stalls(self, view: View) -> None:
        stalls = {(name, wait.name): wait for name, wait in view.stalls()}
        for (name, what), wait in stalls.items():
            if (name, what) not in self._stalled:
                self.say(f"STALLED {wait_in_words(name, wait)}")
        self._stalled = set(stalls)
