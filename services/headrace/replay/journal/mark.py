"""How far the journal was, noted beside it: so that a restored older copy is recognised.

A file of the replay buffer's own, `{"epoch": 3, "position": 1200}`, written when it starts, when
it compacts and when it stops. A journal that lies behind it has lost acknowledged events.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from headrace.replay.journal.base import JournalDamagedError


class JournalMark:
    """The note in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, *, epoch: int, position: int) -> None:
        """Compare a journal with the note, if there is one.

        Raises:
            JournalDamagedError: the journal lies behind it, or the note is unreadable.

        """
        try:
            noted = json.loads(self._path.read_text())
            noted_epoch, noted_position = int(noted["epoch"]), int(noted["position"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{self._path} is not a note about the journal; remove it if that is known to be whole"
            raise JournalDamagedError(msg) from error
        if epoch < noted_epoch or position < noted_position:
            msg = (
                f"the journal is at epoch {epoch}, position {position}, but {self._path} says that "
                f"it was at epoch {noted_epoch}, position {noted_position}: it was restored from an "
                "older copy, or lost writes. Restore the newer copy, or start a new run"
            )
            if not position:
                msg += (
                    "; or remove that file, and the run goes on from its newest checkpoint, if any"
                )
            raise JournalDamagedError(msg)

    def write(self, *, epoch: int, position: int) -> None:
        """Note how far the journal is, durably. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump({"epoch": epoch, "position": position}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
