"""The feed's loop against a real server that keeps a cursor and a demand, as the ledger does."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from feed_ledger import SURPLUS, TOO_LONG, USABLE, FeedLedger, serving
from feed_life import Feeding, living, packer
from ports import free_port

from headrace.errors import UsageError
from headrace.feeder.order import Order
from headrace.feeder.prompts import Prompts
from headrace.feeder.sources.source import Row
from headrace.feeder.supply import NumberedSupply


class Rows:
    """A data set whose row i is `prompt(i)`, so that what was registered can be told."""

    name = "rows"

    def __init__(self, size: int, prompt: Callable[[int], str] = str) -> None:
        self._size = size
        self._prompt = prompt

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Row:
        return Row(self._prompt(index), "", self.name)

    def fingerprint(self) -> str:
        return f"rows {self._size}"


def supply(rows: Rows, *, shuffle: bool = False) -> NumberedSupply:
    return NumberedSupply(Prompts(rows, packer()), Order(len(rows), 0, shuffle))


def feeding(
    address: str, rows: Rows, chunk: int, *, shuffle: bool = False
) -> AbstractAsyncContextManager[Feeding]:
    return living(address, supply(rows, shuffle=shuffle), chunk)


def named(ordinals: Sequence[int], rows: int) -> list[str]:
    return [f"e{ordinal // rows}r{ordinal % rows}" for ordinal in ordinals]


async def test_a_killed_feeder_loses_no_rest_of_a_chunk_and_feeds_nothing_twice() -> None:
    ledger, rows = FeedLedger(100), Rows(100)
    async with serving(ledger) as address:
        async with feeding(address, rows, chunk=8):
            await ledger.want(3)
            await ledger.satisfied()
        assert ledger.uids == named(range(3), 100)

        async with feeding(address, rows, chunk=8):
            await ledger.want(5)
            await ledger.satisfied()
        assert ledger.uids == named(range(8), 100)


async def test_the_rest_of_a_chunk_serves_the_next_demand() -> None:
    ledger = FeedLedger(100)
    async with serving(ledger) as address, feeding(address, Rows(100), chunk=8) as life:
        for count in (3, 5):
            await ledger.want(count)
            await ledger.satisfied()

        assert [len(call.prompts) for call in ledger.calls] == [3, 5]
        assert life.supply.read_count == 8


@pytest.mark.parametrize("chunk", [1, 64])
async def test_one_demand_is_met_by_one_call_whatever_the_chunk(chunk: int) -> None:
    ledger = FeedLedger(100)
    async with serving(ledger) as address, feeding(address, Rows(100), chunk):
        await ledger.want(17)
        await ledger.satisfied()

    assert [len(call.prompts) for call in ledger.calls] == [17]
    assert [prompt.payload.text for prompt in ledger.registered] == [str(i) for i in range(17)]


async def test_a_lost_answer_registers_nothing_twice() -> None:
    ledger = FeedLedger(100)
    async with serving(ledger) as address, feeding(address, Rows(100), chunk=4) as life:
        ledger.answers_to_lose = 2
        await ledger.want(6)
        await ledger.satisfied()
        await ledger.want(2)
        await ledger.satisfied()
        assert ledger.uids == named(range(8), 100)
        await life.waits_for("demand")
        assert (life.feed.cursor, life.feed.registered_count) == (8, 8)


async def test_a_demand_across_an_epochs_end_takes_every_row_of_both() -> None:
    ledger = FeedLedger(5, epochs=2)
    async with serving(ledger) as address, feeding(address, Rows(5), 4, shuffle=True):
        await ledger.want(7)
        await ledger.satisfied()
        await ledger.want(3)
        await ledger.satisfied()

    assert set(ledger.uids[:5]) == {f"e0r{row}" for row in range(5)}
    assert set(ledger.uids[5:]) == {f"e1r{row}" for row in range(5)}
    rows = [int(prompt.payload.text) for prompt in ledger.registered]
    assert rows == [int(uid.rpartition("r")[2]) for uid in ledger.uids]


async def test_rows_that_are_too_long_are_registered_and_serve_no_demand() -> None:
    def prompt(row: int) -> str:
        return "12345" if row % 3 == 1 else str(row)

    ledger = FeedLedger(30)
    async with serving(ledger) as address, feeding(address, Rows(30, prompt), chunk=4):
        await ledger.want(5)
        await ledger.satisfied()

    assert ledger.uids == named(range(7), 30)
    dropped = {p.uid: p.payload.ByteSize() for p in ledger.registered if p.drop_reason == TOO_LONG}
    assert dropped == {"e0r1": 0, "e0r4": 0}
    assert len(ledger.calls) == 1


async def test_too_long_rows_at_the_very_end_are_registered_though_demand_stays() -> None:
    ledger = FeedLedger(6)
    rows = Rows(6, lambda row: "12345" if row > 3 else str(row))
    async with serving(ledger) as address, feeding(address, rows, chunk=4):
        await ledger.want(5)
        async with asyncio.timeout(20), ledger.changed:
            await ledger.changed.wait_for(lambda: len(ledger.registered) == 6)
        await ledger.end(0)

    assert [prompt.drop_reason for prompt in ledger.registered] == [USABLE] * 4 + [TOO_LONG] * 2


async def test_what_was_not_accepted_is_offered_again() -> None:
    ledger = FeedLedger(100)
    ledger.accept_at_most = 2
    async with serving(ledger) as address, feeding(address, Rows(100), chunk=8) as life:
        await ledger.want(7)
        await ledger.satisfied()
        assert life.supply.read_count == 8

    assert ledger.uids == named(range(7), 100)


async def test_a_ledger_that_lost_its_end_gets_those_prompts_again() -> None:
    ledger = FeedLedger(100)
    async with serving(ledger) as address, feeding(address, Rows(100), chunk=4):
        await ledger.want(6)
        await ledger.satisfied()
        del ledger.registered[2:]
        await ledger.want(3)
        await ledger.satisfied()
        ledger.registered.clear()
        ledger.opened.clear()
        await ledger.want(2)
        await ledger.satisfied()

    assert ledger.opened.is_set()
    assert ledger.uids == named(range(2), 100)


async def test_at_the_end_the_surplus_is_named_and_the_loop_ends() -> None:
    ledger = FeedLedger(22)
    async with serving(ledger) as address, feeding(address, Rows(22), chunk=8) as life:
        await ledger.want(20)
        await ledger.satisfied()
        await ledger.end(2)
        await asyncio.wait_for(life.task, 20)

    assert ledger.uids == named(range(22), 22)
    assert [prompt.drop_reason for prompt in ledger.registered[20:]] == [SURPLUS] * 2


async def test_a_large_demand_is_met_in_calls_of_bounded_count_and_size() -> None:
    ledger = FeedLedger(9000)
    async with serving(ledger) as address, feeding(address, Rows(9000, lambda row: "1"), 1000):
        await ledger.want(9000)
        await ledger.satisfied()
    assert [len(call.prompts) for call in ledger.calls] == [4096, 4096, 808]

    class Heavy(Rows):
        def __getitem__(self, index: int) -> Row:
            return Row("1", "x" * 900_000, self.name)

    ledger = FeedLedger(7)
    async with serving(ledger) as address, feeding(address, Heavy(7), chunk=7):
        await ledger.want(7)
        await ledger.satisfied()
    assert [len(call.prompts) for call in ledger.calls] == [2, 2, 2, 1]


async def test_the_feed_waits_by_name_for_a_replay_buffer_that_is_away() -> None:
    ledger, port = FeedLedger(100), free_port()
    async with feeding(f"127.0.0.1:{port}", Rows(100), chunk=4) as life:
        await life.waits_for("the feed to be opened")
        for _ in range(2):
            async with serving(ledger, port):
                await ledger.want(2)
                await ledger.satisfied()
                await life.waits_for("demand")
            await life.waits_for("replay buffer to answer")

    assert ledger.uids == named(range(4), 100)


async def test_a_data_source_that_hangs_is_a_named_wait_and_does_not_hold_up_the_stop() -> None:
    released = threading.Event()

    class Hanging(Rows):
        def __getitem__(self, index: int) -> Row:
            released.wait()
            return super().__getitem__(index)

    ledger = FeedLedger(8)
    async with serving(ledger) as address, feeding(address, Hanging(8), chunk=4) as life:
        await ledger.want(1)
        await life.waits_for("rows")
        life.stopping.set()
        await asyncio.wait_for(life.task, 20)
    released.set()

    assert ledger.uids == []


async def test_a_row_that_cannot_be_used_ends_the_feed_with_one_clear_error() -> None:
    ledger = FeedLedger(8)
    rows = Rows(8, lambda row: "x" if row == 6 else "1")
    async with serving(ledger) as address, feeding(address, rows, chunk=4) as life:
        await ledger.want(5)
        with pytest.raises(UsageError, match="rows, row 6: the character 'x'"):
            await asyncio.wait_for(life.task, 20)


@pytest.mark.parametrize("seed", range(8))
async def test_kills_lost_answers_and_odd_chunks_never_cost_exactness(seed: int) -> None:
    random_ = random.Random(seed)
    rows = Rows(23, lambda row: "12345" if row % 5 == 0 else str(row))
    ledger, wanted = FeedLedger(23, epochs=4), 0
    async with serving(ledger) as address:
        for _ in range(8):
            chunk = random_.choice([1, 3, 8, 50])
            async with feeding(address, rows, chunk, shuffle=True) as life:
                for _ in range(random_.randrange(3)):
                    ledger.answers_to_lose = random_.randrange(2)
                    count = random_.randrange(1, 6)
                    wanted += count
                    await ledger.want(count)
                    if random_.random() < 0.5:
                        await ledger.satisfied()
                await asyncio.sleep(random_.random() * 0.02)
                assert not life.task.done()
        async with feeding(address, rows, chunk=8, shuffle=True):
            await ledger.satisfied()

    order = Order(23, 0, shuffle=True)
    assert ledger.uids == [order.place(i).uid for i in range(len(ledger.uids))]
    assert sum(p.drop_reason == USABLE for p in ledger.registered) == wanted
