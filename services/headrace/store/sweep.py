"""Removes rows that nobody refers to.

The store does not know who needs a row; the replay buffer does. Rows are swept when it says that
no live group records them and no current lease can still record them. That is final, because a key
is never used again. The same calls tell it how full the store is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import grpc

from headrace.errors import WireError
from headrace.log import get_logger
from headrace.rpc.calls import Stopped, persist
from headrace.rpc.waits import Waits
from headrace.store.store import TrajectoryStore
from headrace.v1 import replay_pb2, replay_pb2_grpc

KEYS_PER_CALL = 16_384
"""A quarter of what the replay buffer accepts, so that no call holds it up for long."""

_log = get_logger()


class Sweeper:
    """Sweeps one store.

    Args:
        store: The store.
        replay: The replay buffer. While it is away, a sweep waits for it.
        address: Where the store listens, for those who ask the replay buffer.
        waits: Where that wait is registered.
        stopping: Ends that wait.
        unknown: Told that the ledger does not know of any store.

    """

    def __init__(
        self,
        store: TrajectoryStore,
        replay: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        *,
        address: str = "",
        waits: Waits,
        stopping: asyncio.Event,
        unknown: Callable[[], None] = lambda: None,
    ) -> None:
        self.swept_count = 0
        self._unknown = unknown
        self._address = address
        self._store = store
        self._replay = replay
        self._waits = waits
        self._stopping = stopping
        self._one_at_a_time = asyncio.Lock()

    async def sweep(self, *, grace_s: float) -> int:
        """Remove the dead among the rows that are at least `grace_s` old.

        While deletions are held nothing is removed; the replay buffer is told how full it is.

        Returns:
            How many were removed.

        Raises:
            Stopped: the process is to stop.
            WireError: the replay buffer refused, or TransferQueue gave no answer.

        """
        async with self._one_at_a_time:
            swept, incarnation = 0, self._store.incarnation
            is_held = self._store.hold.is_on
            for keys in _pages([] if is_held else self._store.age_limit(grace_s)):
                dead = await self._find_dead(keys)
                if dead and not self._store.hold.is_on:
                    swept += await self._store.delete(dead, incarnation=incarnation)
            self.swept_count += swept
        if swept:
            _log.info("swept", row_count=swept, held_bytes=self._store.catalogue.held_bytes)
        return swept

    async def run(self, *, every_s: float, grace_s: float) -> None:
        """Sweep again and again until the process is to stop."""
        while not self._stopping.is_set():
            try:
                await self.sweep(grace_s=grace_s)
            except Stopped:
                return
            except (WireError, grpc.RpcError) as error:
                # The next round asks again; rows that are not swept only take room.
                _log.warning("sweep_failed", error=str(error))
            await _set_within(self._stopping, every_s)

    async def _find_dead(self, keys: Sequence[str]) -> Sequence[str]:
        answer = await persist(
            self._replay.FindDeadTrajectories,
            replay_pb2.FindDeadTrajectoriesRequest(
                store_incarnation=self._store.incarnation,
                keys=keys,
                held_bytes=self._store.catalogue.held_bytes,
                address=self._address,
            ),
            waits=self._waits,
            name="which rows are dead",
            owner="replay",
            stopping=self._stopping,
        )
        if answer.register_again:
            self._unknown()
        return answer.dead_keys


def _pages(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut keys into calls; one call even without keys, for the bytes held."""
    yield keys[:KEYS_PER_CALL]
    for start in range(KEYS_PER_CALL, len(keys), KEYS_PER_CALL):
        yield keys[start : start + KEYS_PER_CALL]


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
