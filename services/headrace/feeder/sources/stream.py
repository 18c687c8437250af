"""Rows that come one after the other, made by a function of the user's: `module:function`.

It returns an iterable of mappings that can write down where it is:

    __iter__()              from the beginning, or from the state that was loaded
    state_dict()            where it is, after the row that it gave last; JSON
    load_state_dict(state)  before `__iter__`: go on after that row

An `IterableDataset` of `datasets` is one, but for its `shuffle`, whose buffer is not in its state.
Knows nothing of who keeps the state meanwhile. The end of the iteration is the end of the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from headrace.config.data import StreamSource
from headrace.errors import UsageError
from headrace.feeder.sources.python import call_function, raised_at
from headrace.feeder.sources.source import Columns, Row, one_line, row_from_columns

MAX_STATE_BYTES: Final = 64 * 2**10
"""A state goes with every row on its way to the replay buffer."""
METHODS: Final = ("__iter__", "state_dict", "load_state_dict")


class StreamRows:
    """The iterable that the function returns. Made anew whenever it is to begin somewhere."""

    def __init__(self, config: StreamSource) -> None:
        """Call the function; nothing is read.

        Raises:
            UsageError: it cannot be imported, it fails, or it returns something else.

        """
        self._config = config
        self._columns = Columns(
            prompt_key="prompt",
            answer_key="answer",
            data_source=config.function.rpartition(":")[2],
            advice="each row needs `prompt` and `answer` (an empty text if there is none)",
        )
        self._rows = self._make()
        self._used = False
        self._iterator: Iterator[Any] = iter(())

    @property
    def name(self) -> str:
        """`module:function`."""
        return self._config.function

    def begin(self, state: str = "") -> None:
        """Go to the beginning, or to after the row that this is the state of.

        Raises:
            UsageError: the iterable does not take the state, or fails.

        """
        if self._used:
            self._rows = self._make()
        self._used = True
        where = f"data.source.function {self.name}"
        try:
            if state:
                self._rows.load_state_dict(json.loads(state))
        except Exception as error:  # foreign code
            raise UsageError(
                f"{where}: load_state_dict refuses the state that the run is in, {state[:200]}: "
                f"{one_line(error)}{raised_at(error)}"
            ) from error
        try:
            self._iterator = iter(self._rows)
        except Exception as error:  # foreign code
            raise UsageError(f"{where}: __iter__: {one_line(error)}{raised_at(error)}") from error

    def next_row(self, number: int) -> tuple[Row, str] | None:
        """Give the next row and the state after it, or None at the end; takes its time.

        Args:
            number: How messages call the row.

        Raises:
            UsageError: it fails, or the row is no mapping with `prompt` and `answer`.

        """
        where = f"data.source.function {self.name}, row {number}"
        try:
            values = next(self._iterator)
        except StopIteration:
            return None
        except Exception as error:  # foreign code
            raise UsageError(f"{where}: {one_line(error)}{raised_at(error)}") from error
        row = row_from_columns(values, self._columns, where=where)
        return row, self._state(where)

    def fingerprint(self) -> str:
        """Digest of the function's name and arguments. What it will give, nobody knows."""
        told = {"function": self.name, "options": self._config.options}
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()

    def _make(self) -> Any:
        rows = call_function(self._config.function, self._config.options)
        missing = [method for method in METHODS if not hasattr(type(rows), method)]
        if missing:
            raise UsageError(
                f"data.source.function: {self.name} must return an iterable of mappings with "
                f"state_dict and load_state_dict; {type(rows).__name__} has no "
                f"{', '.join(missing)}"
            )
        return rows

    def _state(self, where: str) -> str:
        try:
            state = self._rows.state_dict()
        except Exception as error:  # foreign code
            raise UsageError(
                f"{where}: state_dict(): {one_line(error)}{raised_at(error)}"
            ) from error
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{where}: state_dict() cannot be written as JSON: {error}") from None
        if json.loads(text) != state:
            raise UsageError(
                f"{where}: state_dict() comes back from JSON as something else: use lists, not "
                "tuples, and text as keys"
            )
        if len(text.encode()) > MAX_STATE_BYTES:
            raise UsageError(
                f"{where}: state_dict() has {len(text.encode())} bytes as JSON; at most "
                f"{MAX_STATE_BYTES} are allowed"
            )
        return text
