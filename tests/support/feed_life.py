"""Lives of the feeder's loop, each ended as kill -9 does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.feeder.demand import Feed
from headrace.feeder.prompts import Packer
from headrace.feeder.reading import Reader
from headrace.feeder.supply import Supply
from headrace.rpc.channel import open_channel
from headrace.rpc.waits import Waits
from headrace.tokenizer import load_tokenizer
from headrace.v1 import replay_pb2_grpc

DIGITS = ModelConfig(
    architecture="gpt2", tokenizer=AlphabetTokenizer(alphabet="0123456789", eos=";")
)


def packer() -> Packer:
    """Digits, at most four."""
    return Packer(load_tokenizer(DIGITS), max_prompt_length=4)


class Died(Exception):  # noqa: N818 (not a failure)
    """The end of a life, raised where it ends."""


class DeathPoint:
    """Counts the moments at which a life can end, and ends it at one of them."""

    def __init__(self, point: int | None = None) -> None:
        self.point = point
        self.passed = 0

    def passing(self) -> None:
        """Die here, if it is the time."""
        self.passed += 1
        if self.passed == self.point:
            raise Died


class Mortal:
    """A stub with a moment before each call, and one after it was answered."""

    def __init__(self, stub: Any, dies_at: DeathPoint) -> None:
        self._stub = stub
        self._dies_at = dies_at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)

        async def call(*arguments: Any, **settings: Any) -> Any:
            self._dies_at.passing()
            answer = await method(*arguments, **settings)
            self._dies_at.passing()
            return answer

        return call


class Feeding:
    """One life of the feeder's loop."""

    def __init__(self, address: str, supply: Supply, chunk: int, dies_at: DeathPoint) -> None:
        self.stopping = asyncio.Event()
        self.waits = Waits(stall_after_s=60)
        self.supply = supply
        self._channel = open_channel(address)
        self.feed = Feed(
            Mortal(replay_pb2_grpc.ReplayBufferServiceStub(self._channel), dies_at),  # type: ignore[arg-type]
            supply,
            fingerprint="f",
            chunk_size=chunk,
            reader=Reader(self.waits, self.stopping, owner="rows", stall_after_s=60),
            waits=self.waits,
            stopping=self.stopping,
        )
        self.task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        await self.feed.open()
        await self.feed.run()

    async def kill(self) -> None:
        """End it where it stands: nothing is said or saved."""
        self.task.cancel()
        await asyncio.wait({self.task})
        await self._channel.close()

    async def waits_for(self, name: str) -> None:
        async with asyncio.timeout(20):
            while name not in {wait.name for wait in self.waits.snapshot()}:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def living(
    address: str, supply: Supply, chunk: int, dies_at: DeathPoint | None = None
) -> AsyncIterator[Feeding]:
    """Let the loop run until the block ends."""
    life = Feeding(address, supply, chunk, dies_at or DeathPoint())
    try:
        yield life
    finally:
        await life.kill()
