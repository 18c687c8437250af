"""Streams of numbers, as a user of `data.source.kind: stream` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

passing: Callable[[], None] = lambda: None  # noqa: E731 (a test puts its own here)
"""Called wherever foreign code runs."""
made: list[Numbers] = []
"""Every stream that was made."""


class Numbers:
    """0, 1, 2, … as text; `12345` wherever the number is divisible by `long_each`."""

    def __init__(self, count: int, long_each: int) -> None:
        self._count = count
        self._long_each = long_each
        self._next = 0
        self.loaded: dict[str, Any] | None = None
        self.given: list[int] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        passing()
        return self

    def __next__(self) -> dict[str, Any]:
        passing()
        if self._next >= self._count:
            raise StopIteration
        number, self._next = self._next, self._next + 1
        self.given.append(number)
        is_long = self._long_each and number % self._long_each == self._long_each - 1
        return {"prompt": "12345" if is_long else str(number), "answer": str(number)}

    def state_dict(self) -> dict[str, Any]:
        passing()
        return {"next": self._next, "inner": {"a": [1, 2.5, None]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        passing()
        self.loaded = state
        self._next = state["next"]


def numbers(count: int, long_each: int = 0) -> Numbers:
    """Make one."""
    made.append(Numbers(count, long_each))
    return made[-1]


class Generator:
    """Not its own iterator: begins again at every `__iter__`, as data sets of `datasets` do."""

    def __init__(self) -> None:
        self._at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._at, 5):
            self._at = number + 1
            yield {"prompt": str(number), "answer": ""}

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


class Odd(Numbers):
    """Goes wrong in a way of its own."""

    def __init__(self, what: str) -> None:
        super().__init__(9, 0)
        self._what = what

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._what == "iter":
            raise OSError("no line")
        return self

    def __next__(self) -> dict[str, Any]:
        if self._what == "next" and self._next == 1:
            raise KeyError("torn")
        row = super().__next__()
        return {"question": "a"} if self._what == "row" else row

    def state_dict(self) -> dict[Any, Any]:
        states: dict[str, Any] = {
            "state": lambda: 1 // 0,
            "set": lambda: {"seen": {1}},
            "tuple": lambda: {"rng": (1, 2)},
            "key": lambda: {1: 2},
            "big": lambda: {"buffer": "x" * 70_000},
            "nan": lambda: {"loss": float("nan")},
        }
        return states[self._what]() if self._what in states else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._what == "load":
            raise ValueError("another version")


def odd(what: str) -> Any:
    """Make one that goes wrong, or no stream at all."""
    if what == "list":
        return [{"prompt": "a", "answer": ""}]
    return Odd(what)
