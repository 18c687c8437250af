"""What keys lead to. Pure: knows neither terminal nor run.

table ── w ──► asking for a uid ── Enter ──► where that prompt is
  ▲               │ Esc                           │ Esc
  └───────────────┴───────────────────────────────┘        q, Ctrl-D: over
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

ESCAPE: Final = "\x1b"
ENTER: Final = ("\r", "\n")
BACKSPACE: Final = ("\x7f", "\b")
END: Final = "\x04"
DOWN: Final = ("j", "\x1b[B", "\x1bOB")
UP: Final = ("k", "\x1b[A", "\x1bOA")
PAGE_DOWN: Final = (" ", "\x1b[6~")
PAGE_UP: Final = ("b", "\x1b[5~")
PAGE: Final = 10
"""Lines that a page key moves."""
LONGEST_UID: Final = 64

_KEY: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
"""One key: a terminal's sequence, or a character; Esc alone is one, too."""


class Mode(enum.Enum):
    """What is on the screen."""

    TABLE = "table"
    ASKING = "asking"
    WHERE = "where"


@dataclass
class Dialog:
    """Where the keys have led so far."""

    mode: Mode = Mode.TABLE
    typed: str = ""
    """The uid as far as it is typed."""
    uid: str = ""
    """The prompt that is looked at."""
    scroll: int = 0
    """Lines of its history that are above the screen."""
    over: bool = False
    """Whether to leave."""

    def press(self, text: str) -> None:
        """Take what came from the keyboard, one key or many."""
        for key in keys(text):
            self._press(key)

    def _press(self, key: str) -> None:
        if key == END:
            self.over = True
        elif self.mode is Mode.ASKING:
            self._type(key)
        elif key == "q":
            self.over = True
        elif key == "w":
            self.mode, self.typed = Mode.ASKING, ""
        elif self.mode is Mode.WHERE:
            self._move(key)

    def _type(self, key: str) -> None:
        if key == ESCAPE:
            self.mode = Mode.TABLE
        elif key in ENTER:
            uid = self.typed.strip()
            self.mode = Mode.WHERE if uid else Mode.TABLE
            self.uid, self.scroll = uid, 0
        elif key in BACKSPACE:
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed = (self.typed + key)[:LONGEST_UID]

    def _move(self, key: str) -> None:
        if key == ESCAPE:
            self.mode = Mode.TABLE
        for these, lines in ((DOWN, 1), (UP, -1), (PAGE_DOWN, PAGE), (PAGE_UP, -PAGE)):
            if key in these:
                self.scroll = max(0, self.scroll + lines)


def keys(text: str) -> Iterator[str]:
    """Cut what a terminal sent into keys."""
    return iter(_KEY.findall(text))
