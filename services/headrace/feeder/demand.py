"""The feed: prompts go to the replay buffer, exactly as many as it demands.

    AwaitDemand ──► read chunks of G rows until there are enough ──► RegisterPrompts
         ▲                                                                  │
         └────────────────────── the cursor in the answer ◄─────────────────┘

The cursor is the ledger's. Whatever was read and is not registered stays here for the next
demand; if this process dies it is simply read again. Knows nothing of how rows are made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.errors import DataChangedError, FeedGapError, FeedNotOpenError, UsageError
from headrace.feeder.order import Order
from headrace.feeder.prompts import Prompts
from headrace.feeder.reading import Reader
from headrace.log import get_logger
from headrace.rpc.calls import Stopped, persist, poll
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2, replay_pb2

if TYPE_CHECKING:
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub

MAX_PROMPTS_PER_CALL: Final = 4096
MAX_BYTES_PER_CALL: Final = 2 * 2**20
"""A message may have 4 MiB, and one prompt 1 MiB."""
ROWS_PER_READ: Final = 64
"""Smaller chunks are read together, up to so many rows: the way to the reading thread and back
takes longer than most rows do."""
DEMAND_WAIT_S: Final = 20.0
"""How long one call waits for demand."""
REPLAY: Final = "replay buffer"

log = get_logger()


class Feed:
    """Meets the replay buffer's demand, until the run has ended.

    Attributes:
        address: Where the feeder listens, for those who ask the replay buffer.
        cursor: The next ordinal, as the ledger last said.
        registered_count: Prompts registered by this process.

    """

    def __init__(
        self,
        stub: ReplayBufferServiceAsyncStub,
        prompts: Prompts,
        order: Order,
        *,
        fingerprint: str,
        chunk_size: int,
        reader: Reader,
        waits: Waits,
        stopping: asyncio.Event,
        idle_after_s: float | None = None,
    ) -> None:
        """Nothing is called yet.

        Args:
            stub: The replay buffer.
            prompts: The data set.
            order: Which row stands where.
            fingerprint: Digest of content and order.
            chunk_size: G, the rows read at a time.
            reader: Runs the reads.
            waits: Where waits are registered.
            stopping: Ends all waits when set.
            idle_after_s: How long no demand is normal; None = no longer than any wait.

        """
        self._idle_after_s = idle_after_s
        self._stub = stub
        self._prompts = prompts
        self._order = order
        self._fingerprint = fingerprint
        self._chunk_size = chunk_size
        self._reader = reader
        self._waits = waits
        self._stopping = stopping
        self._ordinal_count = 0
        self._ahead: deque[replay_pb2.NewPrompt] = deque()  # read; the first has ordinal `cursor`
        self.address = ""
        self.cursor = 0
        self.registered_count = 0

    async def open(self) -> None:
        """Tell the replay buffer what data there is, and learn where to go on.

        Raises:
            UsageError: the run was opened with other data.
            Stopped: the process is to stop.

        """
        request = replay_pb2.OpenFeedRequest(
            row_count=len(self._prompts), fingerprint=self._fingerprint, address=self.address
        )
        try:
            opened = await persist(
                self._stub.OpenFeed,
                request,
                waits=self._waits,
                name="the feed to be opened",
                owner=REPLAY,
                stopping=self._stopping,
            )
        except DataChangedError as error:
            known = "; ".join(f"{key}: {value}" for key, value in sorted(error.metadata.items()))
            raise UsageError(
                f"data: {self._prompts.source_name} is not what this run was started with "
                f"({known}). Go on with the same rows, data.seed, data.shuffle, "
                "data.max_prompt_length and trainer.total_epochs (and PYTHONHASHSEED, where rows "
                "depend on it), or start another run"
            ) from error
        self._ordinal_count = opened.ordinal_count
        self._move_to(opened.cursor)
        log.info(
            "feed_opened",
            cursor=opened.cursor,
            ordinal_count=opened.ordinal_count,
            total_steps=opened.total_steps,
            fingerprint=self._fingerprint,
        )

    async def run(self) -> None:
        """Feed until the run has ended or the process is to stop.

        Raises:
            UsageError: a row is not usable.

        """
        with contextlib.suppress(Stopped):
            while not await self._turn():
                pass
            log.info("feed_ended", cursor=self.cursor)

    async def _turn(self) -> bool:
        """Meet the demand there is; say whether the run has ended."""
        wanted = await self._await_demand()
        try:
            if wanted.ended:
                await self._register(self._surplus(wanted.surplus_count))
                return not wanted.surplus_count
            await self._read_ahead(min(wanted.demand, MAX_PROMPTS_PER_CALL))
            await self._register(_first(wanted.demand, self._ahead))
        except FeedGapError as error:  # the next demand says where the ledger is
            log.warning("feed_gap", message=str(error))
        except FeedNotOpenError:
            await self.open()
        return False

    async def _await_demand(self) -> replay_pb2.AwaitDemandResponse:
        """Wait until something is wanted, or the run has ended. Others may work meanwhile."""
        request = replay_pb2.AwaitDemandRequest(wait_s=DEMAND_WAIT_S, address=self.address)
        with self._waits.waiting(
            "demand",
            owner=REPLAY,
            ends_when="the window has room, or the run ends",
            stall_after_s=self._idle_after_s,
        ):
            while True:
                wanted = await poll(
                    self._stub.AwaitDemand,
                    request,
                    waits=self._waits,
                    owner=REPLAY,
                    timeout_s=DEMAND_WAIT_S + 10,
                    stopping=self._stopping,
                )
                self._move_to(wanted.cursor)
                if wanted.demand or wanted.ended:
                    return wanted

    async def _read_ahead(self, usable_count: int) -> None:
        """Read whole chunks until so many usable prompts are here, or the data has ended."""
        usable = sum(map(_is_usable, self._ahead))
        while usable < usable_count:
            first = self.cursor + len(self._ahead)
            chunks = -(-(usable_count - usable) // self._chunk_size)
            together = max(1, ROWS_PER_READ // self._chunk_size)
            last = min(first + min(chunks, together) * self._chunk_size, self._ordinal_count)
            if first >= last:
                return
            chunk = await self._reader.read(lambda: self._read(range(first, last)))  # noqa: B023 (awaited here)
            self._ahead.extend(chunk)
            usable += sum(map(_is_usable, chunk))

    def _read(self, ordinals: range) -> list[replay_pb2.NewPrompt]:
        places = [self._order.place(ordinal) for ordinal in ordinals]
        payloads = self._prompts.read([place.row for place in places])
        return [
            replay_pb2.NewPrompt(uid=place.uid, drop_reason=prompt_pb2.DROP_REASON_TOO_LONG)
            if self._prompts.is_too_long(payload)
            else replay_pb2.NewPrompt(uid=place.uid, payload=payload)
            for place, payload in zip(places, payloads, strict=True)
        ]

    def _surplus(self, count: int) -> list[replay_pb2.NewPrompt]:
        """Name the next rows as left over; nobody needs to read them."""
        count = min(count, MAX_PROMPTS_PER_CALL)
        return [
            replay_pb2.NewPrompt(
                uid=self._order.place(ordinal).uid, drop_reason=prompt_pb2.DROP_REASON_SURPLUS
            )
            for ordinal in range(self.cursor, self.cursor + count)
        ]

    async def _register(self, prompts: list[replay_pb2.NewPrompt]) -> None:
        if not prompts:
            return
        registered = await persist(
            self._stub.RegisterPrompts,
            replay_pb2.RegisterPromptsRequest(first_ordinal=self.cursor, prompts=prompts),
            waits=self._waits,
            name="prompts to be registered",
            owner=REPLAY,
            stopping=self._stopping,
        )
        log.info(
            "prompts_registered",
            first_ordinal=self.cursor,
            offered=len(prompts),
            accepted=registered.accepted_count,
            dropped=sum(not _is_usable(prompt) for prompt in prompts[: registered.accepted_count]),
        )
        self.registered_count += registered.accepted_count
        self._move_to(registered.cursor)

    def _move_to(self, cursor: int) -> None:
        """Follow the ledger: forget what it has, or everything if it is somewhere else."""
        step = cursor - self.cursor
        if 0 <= step <= len(self._ahead):
            for _ in range(step):
                self._ahead.popleft()
        else:
            self._ahead.clear()
        self.cursor = cursor


def _is_usable(prompt: replay_pb2.NewPrompt) -> bool:
    return prompt.drop_reason == prompt_pb2.DROP_REASON_UNSPECIFIED


def _first(demand: int, prompts: Iterable[replay_pb2.NewPrompt]) -> list[replay_pb2.NewPrompt]:
    """Take prompts up to the `demand`-th usable one, as many as one call may carry."""
    taken: list[replay_pb2.NewPrompt] = []
    size = 0
    for prompt in islice(prompts, MAX_PROMPTS_PER_CALL):
        size += prompt.ByteSize() + 8  # and its field's header
        if demand <= 0 or size > MAX_BYTES_PER_CALL:
            break
        demand -= _is_usable(prompt)
        taken.append(prompt)
    return taken
