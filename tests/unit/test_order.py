from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.feeder.order import Order, Permutation

SEEDS = st.integers(-(2**63), 2**63)


@given(size=st.integers(1, 700), key=st.text(max_size=20))
def test_a_permutation_gives_every_row_exactly_once(size: int, key: str) -> None:
    permutation = Permutation(size, key)

    assert sorted(permutation[i] for i in range(size)) == list(range(size))


@given(size=st.integers(1, 10**12), key=st.text(max_size=20), data=st.data())
def test_any_position_of_any_size_lands_inside(size: int, key: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, size - 1))

    assert 0 <= Permutation(size, key)[position] < size


@given(rows=st.integers(1, 60), seed=SEEDS, epochs=st.integers(1, 4), shuffle=st.booleans())
def test_every_epoch_has_every_row_exactly_once(
    rows: int, seed: int, epochs: int, shuffle: bool
) -> None:
    order = Order(rows, seed, shuffle)
    uids = [order.place(ordinal).uid for ordinal in range(rows * epochs)]

    assert len(set(uids)) == len(uids)
    assert set(uids) == {f"e{epoch}r{row}" for epoch in range(epochs) for row in range(rows)}


@given(seed=SEEDS)
def test_epochs_seeds_and_purposes_differ(seed: int) -> None:
    def rows(order: Order, epoch: int) -> list[int]:
        return [order.place(epoch * 100 + i).row for i in range(100)]

    feed = Order(100, seed, shuffle=True)
    assert rows(feed, 0) != rows(feed, 1)
    assert rows(feed, 0) != rows(Order(100, seed + 1, shuffle=True), 0)
    assert rows(feed, 0) != rows(Order(100, seed, shuffle=True, purpose="warm start"), 0)


@given(rows=st.integers(1, 1000), seed=SEEDS, ordinal=st.integers(0, 10**15))
def test_without_shuffle_the_order_is_the_sources(rows: int, seed: int, ordinal: int) -> None:
    place = Order(rows, seed, shuffle=False).place(ordinal)

    assert (place.epoch, place.row) == divmod(ordinal, rows)


def test_positions_are_found_without_those_before_them() -> None:
    forward = [Order(1000, 3, shuffle=True).place(ordinal) for ordinal in range(3000)]
    order = Order(1000, 3, shuffle=True)

    assert [order.place(ordinal) for ordinal in reversed(range(3000))] == forward[::-1]


def test_the_order_never_changes_between_releases() -> None:
    order = Order(10, 7, shuffle=True)

    assert [order.place(i).row for i in range(10)] == [7, 8, 6, 3, 4, 9, 5, 0, 2, 1]
    assert [order.place(i).row for i in range(10, 20)] == [1, 8, 9, 4, 6, 7, 5, 2, 0, 3]


def test_over_many_epochs_each_row_stands_at_each_place_equally_often() -> None:
    order = Order(5, 0, shuffle=True)
    epochs = 2000
    seen = Counter((i % 5, order.place(i).row) for i in range(5 * epochs))

    # 25 cells of 400 expected; chi-squared with 16 degrees of freedom is below 40 in 99.9 %.
    assert sum((count - 400) ** 2 / 400 for count in seen.values()) < 40


def test_neighbours_in_the_feed_are_not_neighbours_in_the_source() -> None:
    order = Order(20_000, 0, shuffle=True)
    rows = [order.place(i).row for i in range(20_000)]

    steps = [abs(b - a) for a, b in pairwise(rows)]
    assert 6000 < sum(steps) / len(steps) < 7333  # a third of the size, if independent
