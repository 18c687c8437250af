"""Having nothing to do is normal while others work, up to a limit of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from feed_ledger import FeedLedger, serving
from worker_scene import made_world

from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.feeder.demand import Feed
from headrace.feeder.order import Order
from headrace.feeder.prompts import Packer, Prompts
from headrace.feeder.reading import Reader
from headrace.feeder.sources.source import Row
from headrace.feeder.supply import NumberedSupply
from headrace.rpc.channel import open_channel
from headrace.rpc.waits import Waits
from headrace.tokenizer import load_tokenizer
from headrace.v1 import replay_pb2_grpc

USUAL_S, IDLE_S = 60, 3600


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Rows:
    """Ten rows."""

    name = "rows"

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Row:
        return Row(str(index), "", self.name)

    def fingerprint(self) -> str:
        return "rows"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waits(clock: Clock) -> Waits:
    return Waits(now=clock, stall_after_s=USUAL_S)


async def waiting_for(waits: Waits, name: str) -> None:
    async with asyncio.timeout(20):
        while name not in {wait.name for wait in waits.snapshot()}:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.01)


def make_feed(stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub, waits: Waits) -> Feed:
    alphabet = AlphabetTokenizer(alphabet="0123456789", eos=";")
    tokenizer = load_tokenizer(ModelConfig(architecture="gpt2", tokenizer=alphabet))
    stopping = asyncio.Event()
    return Feed(
        stub,
        NumberedSupply(
            Prompts(Rows(), Packer(tokenizer, max_prompt_length=4)), Order(10, 0, shuffle=False)
        ),
        fingerprint="f",
        chunk_size=4,
        reader=Reader(waits, stopping, owner="rows", stall_after_s=USUAL_S),
        waits=waits,
        stopping=stopping,
        idle_after_s=IDLE_S,
    )


async def test_a_feeder_without_demand_stalls_late_and_one_without_a_replay_buffer_soon(
    clock: Clock, waits: Waits
) -> None:
    ledger = FeedLedger(10)
    async with AsyncExitStack() as replay:
        address = await replay.enter_async_context(serving(ledger))
        async with open_channel(address) as channel:
            feed = make_feed(replay_pb2_grpc.ReplayBufferServiceStub(channel), waits)
            await feed.open()
            feeding = asyncio.create_task(feed.run())
            await waiting_for(waits, "demand")
            clock.time += USUAL_S + 1
            await two_more_polls(ledger)
            assert waits.stalled == []
            assert [wait.name for wait in waits.snapshot()] == ["demand"]

            clock.time += IDLE_S
            assert [wait.name for wait in waits.stalled] == ["demand"]

            await ledger.want(1)
            await ledger.satisfied()
            await waiting_for(waits, "demand")
            await replay.aclose()
            await waiting_for(waits, "replay buffer to answer")
            clock.time += USUAL_S + 1
            assert [wait.name for wait in waits.stalled] == ["replay buffer to answer"]
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def two_more_polls(ledger: FeedLedger) -> None:
    seen = ledger.polls
    async with asyncio.timeout(20):
        while ledger.polls < seen + 2:  # noqa: ASYNC110 (each poll ends by itself)
            await asyncio.sleep(0.01)


async def test_a_worker_without_work_stalls_late(
    tmp_path: Path,
) -> None:
    async with made_world(tmp_path) as world:
        await world.publish(0)
        await world.start(idle_after_s=IDLE_S)
        await waiting_for(world.waits, "work")
        world.time += USUAL_S + 1
        assert world.waits.stalled == []

        world.time += IDLE_S
        assert [wait.name for wait in world.waits.stalled] == ["work"]
