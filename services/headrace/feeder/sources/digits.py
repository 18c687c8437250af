"""The example's data set: strings of digits to sort, reverse or copy.

Knows no tokenizer; row i is a pure function of (task, digits, seed, i).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import overload

TASKS: dict[str, Callable[[str], str]] = {
    "sort": lambda text: "".join(sorted(text)),
    "reverse": lambda text: text[::-1],
    "copy": lambda text: text,
}
"""What the answer to a string of digits is."""


class DigitRows(Sequence[dict[str, str]]):
    """`5172>` is to be answered with `1257`, when the task is to sort."""

    def __init__(self, task: str, digits: int, size: int, seed: int) -> None:
        if task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, and is {task!r}")
        if digits < 1 or size < 1:
            raise ValueError(f"digits = {digits} and size = {size} must be at least 1")
        self._task, self._digits, self._size, self._seed = task, digits, size, seed

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> dict[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, str]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, str] | list[dict[str, str]]:
        """Make row `index`. The stop character is not part of the answer."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not 0 <= index < self._size:
            raise IndexError(index)
        # A string seeds by SHA-512: the same everywhere, and unrelated from row to row.
        number = Random(f"{self._seed}/{index}").randrange(10**self._digits)
        text = f"{number:0{self._digits}d}"
        return {"prompt": f"{text}>", "answer": TASKS[self._task](text)}


def digit_rows(task: str, digits: int, size: int, seed: int) -> DigitRows:
    """Make the rows.

    Args:
        task: `sort`, `reverse` or `copy`.
        digits: Digits per prompt.
        size: Rows.
        seed: Chooses the digits.

    Raises:
        ValueError: an argument is out of range.

    """
    return DigitRows(task, digits, size, seed)
