"""How long sequences are, as far as is known. Knows nothing of engines."""

from __future__ import annotations


class MeanLength:
    """The mean number of tokens of a sequence: the most there can be, until there were some."""

    def __init__(self, most: int) -> None:
        self.tokens = float(most)
        self._count = 0

    def add(self, tokens: int) -> None:
        """Take a sequence that is done. The latest 1,000 or so count."""
        self._count = min(self._count + 1, 1000)
        self.tokens += (tokens - self.tokens) / self._count
