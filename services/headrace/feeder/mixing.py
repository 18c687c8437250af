"""The order of a mixture: whose turn it is, and which of his rows.

Each part goes through its own rows in passes of its own, each pass in an order of its own, and
takes its turns by the schedule of the weights:

    ordinal ──► schedule ──► part i, its k-th turn ──► pass k // size_i, position k % size_i ──► row

So after any number of ordinals each part had its share to within one row, and no row of a part
comes again before all of them came. A part that is small for its weight is passed through more
often than the others; one that is large goes on in the next epoch where it stopped in this one.

An epoch of a mixture is as many ordinals as all parts have rows together. The name of a prompt,
`e{pass}r{row}`, says which pass of the *part* it is from; `row` counts through all parts, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from headrace.feeder.order import Order, Place
from headrace.feeder.schedule import Schedule


class MixedOrder:
    """The rows of several data sets, by weight. O(1) for any ordinal, and stateless."""

    def __init__(
        self,
        sizes: Sequence[int],
        schedule: Schedule,
        *,
        seed: int,
        shuffle: bool,
        purpose: str = "feed",
    ) -> None:
        """Nothing is computed yet.

        Args:
            sizes: Rows of each part, at least one.
            schedule: Whose turn it is.
            seed: Chooses the orders of all passes.
            shuffle: Without it, each pass has the order of the part.
            purpose: Orders for other purposes differ though their seed is the same.

        """
        self._schedule = schedule
        self._starts = list(accumulate(sizes, initial=0))
        self._orders = [
            Order(size, seed, shuffle, f"{purpose}/part {part}") for part, size in enumerate(sizes)
        ]

    @property
    def row_count(self) -> int:
        """Rows of all parts together; an epoch has as many ordinals."""
        return self._starts[-1]

    def place(self, ordinal: int) -> Place:
        """Give the pass and the row of an ordinal."""
        part, turn = self._schedule.turn(ordinal)
        place = self._orders[part].place(turn)
        return Place(place.epoch, self._starts[part] + place.row)
