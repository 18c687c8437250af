"""`run.watch()`: events as they come, or in a notebook a status that stays up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self

from headrace.client.place import Event

if TYPE_CHECKING:
    from headrace.client.run import Run

DRAW_EVERY_S: Final = 1.0
"""How often the status is drawn."""


class Watch:
    """Gives events to a loop; as the last line of a notebook's cell, draws the run instead."""

    def __init__(self, run: Run, events: Iterator[Event], for_s: float | None) -> None:
        self._run = run
        self._events = events
        self._for_s = for_s

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: the run is over, or the time is.

        """
        return next(self._events)

    def __repr__(self) -> str:
        return "events of a run: for event in run.watch(): print(event)"

    def _ipython_display_(self) -> None:
        """Draw the status again and again, until the run or the time is over, or an interrupt."""
        from IPython.display import display

        ends = time.monotonic() + self._for_s if self._for_s is not None else None
        try:
            shown = display(self._run.status(), display_id=True)
            while True:
                left_s = DRAW_EVERY_S if ends is None else ends - time.monotonic()
                if left_s <= 0:
                    return
                time.sleep(min(DRAW_EVERY_S, left_s))
                status = self._run.status()
                shown.update(status)
                if status.ended:
                    return
        except KeyboardInterrupt:
            return  # that is how a user ends it
