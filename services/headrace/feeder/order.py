"""Which row stands at which position of the feed.

Pure arithmetic: knows no data set, keeps no state and draws no random numbers. The order of
an epoch is a pseudo-random permutation that is computed position by position: a Feistel
network over the smallest suitable power of four, walked along its cycle until it lands inside
the data set (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002,
method 2: cycle walking). So any position of any epoch costs the same, from the first on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

ROUNDS = 8
"""Feistel rounds. Four make it look random on large sets; small ones have few bits per round."""
MASK_64 = 2**64 - 1


class Permutation:
    """A bijection on [0, size) that looks random, with O(1) memory and O(1) access.

    `key` chooses it: any text, equal in every process and version of Python.
    """

    def __init__(self, size: int, key: str) -> None:
        assert size >= 1
        self._size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        digest = blake2b(key.encode(), digest_size=8 * ROUNDS, person=b"headrace-order").digest()
        self._round_keys = tuple(
            int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(ROUNDS)
        )

    def __getitem__(self, position: int) -> int:
        """Give what stands at `position`; under 4 encryptions on average."""
        assert 0 <= position < self._size
        value = self._encrypt(position)
        while value >= self._size:
            value = self._encrypt(value)
        return value

    def _encrypt(self, value: int) -> int:
        bits = self._half_bits
        mask = (1 << bits) - 1
        left, right = value >> bits, value & mask
        for key in self._round_keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return left << bits | right


def _mix(value: int) -> int:
    """Spread every bit over all 64: the finalizer of splitmix64 (Steele et al., OOPSLA 2014)."""
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK_64
    return value ^ value >> 31


@dataclass(frozen=True)
class Place:
    """Where an ordinal falls."""

    epoch: int
    """Which pass over the data set, from 0."""
    row: int
    """Which row of the source, from 0."""

    @property
    def uid(self) -> str:
        """The prompt's name: the same in every run with the same data, order and seed."""
        return f"e{self.epoch}r{self.row}"


class RowOrder(Protocol):
    """Which row stands where, for ever."""

    @property
    def row_count(self) -> int:
        """Ordinals in an epoch."""

    def place(self, ordinal: int) -> Place:
        """Give the epoch and row of a position counted over all passes."""


@dataclass(frozen=True)
class Order:
    """The rows of a data set, pass after pass; each pass has an order of its own."""

    row_count: int
    """Rows in the data set."""
    seed: int
    """Chooses the orders."""
    shuffle: bool
    """Without it, each pass has the order of the source."""
    purpose: str = "feed"
    """Orders for other purposes differ though their seed is the same."""

    def place(self, ordinal: int) -> Place:
        """Give the epoch and row of a position counted over all passes. O(1), stateless."""
        assert ordinal >= 0
        epoch, position = divmod(ordinal, self.row_count)
        if not self.shuffle:
            return Place(epoch, position)
        permutation = _permutation(self.row_count, f"{self.purpose}/{self.seed}/{epoch}")
        return Place(epoch, permutation[position])


@lru_cache(maxsize=256)
def _permutation(size: int, key: str) -> Permutation:
    return Permutation(size, key)
