"""The feed: prompts go to the replay buffer, exactly as many as it demands.

    AwaitDemand ──► read chunks of G rows until there are enough ──► RegisterPrompts
         ▲                                                                  │
         └────────────────────── the cursor in the answer ◄─────────────────┘

The cursor is the ledger's. Whatever was read and is not registered stays here for the next
demand; if this process dies it is simply read again: by its ordinal, or, from a stream, after the
state that the ledger keeps with the cursor. Knows nothing of how rows are made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.errors import DataChangedError, FeedGapError, FeedNotOpenError, UsageError
from headrace.feeder.reading import Reader
from headrace.feeder.supply import Offer, Supply
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
        supply: Supply,
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
            supply: The prompts in their order.
            fingerprint: Digest of content and order.
            chunk_size: G, the rows read at a time.
            reader: Runs the reads.
            waits: Where waits are registered.
            stopping: Ends all waits when set.
            idle_after_s: How long no demand is normal; None = no longer than any wait.

        """
        self._idle_after_s = idle_after_s
        self._stub = stub
        self._supply = supply
        self._fingerprint = fingerprint
        self._chunk_size = chunk_size
        self._reader = reader
        self._waits = waits
        self._stopping = stopping
        self._ordinal_count = 0
        self._ahead: deque[Offer] = deque()  # read; the first has ordinal `cursor`
        self._is_astray = False  # the ledger is somewhere else than what was read
        self.address = ""
        self.cursor = 0
        self.registered_count = 0

    @property
    def epoch(self) -> int:
        """The epoch of the next row; a stream has one only."""
        return self.cursor // self._supply.row_count if self._supply.row_count else 0

    async def open(self) -> None:
        """Tell the replay buffer what data there is, learn where to go on, and go there.

        Raises:
            UsageError: the run was opened with other data, or a stream does not go there.
            Stopped: the process is to stop.

        """
        request = replay_pb2.OpenFeedRequest(
            row_count=self._supply.row_count or 0,
            length_unknown=self._supply.row_count is None,
            fingerprint=self._fingerprint,
            address=self.address,
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
                f"data: {self._supply.name} is not what this run was started with "
                f"({known}). Go on with the same rows, data.seed, data.shuffle "
                "and data.max_prompt_length (and PYTHONHASHSEED, where rows depend on it), or start "
                "another run"
            ) from error
        self._ordinal_count = opened.ordinal_count
        self.cursor = opened.cursor
        self._ahead.clear()
        self._is_astray = False
        await self._reader.read(lambda: self._supply.begin(opened.cursor, opened.source_state))
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

    async def reopened(self) -> None:
        """Wait until a resume goes back behind the run's end. Nobody waits for that but this.

        Or until the replay buffer does not know of a run: `run` opens the feed then.

        Raises:
            Stopped: the process is to stop.

        """
        ended = True
        while ended:
            try:
                answer = await self._poll(after_end=True)
            except FeedNotOpenError:
                break
            ended = answer.ended
        log.info("feed_goes_on")

    async def _turn(self) -> bool:
        """Meet the demand there is; say whether the run has ended."""
        try:
            wanted = await self._await_demand()
            if wanted.ended:
                await self._register(self._surplus(wanted.surplus_count))
                return not wanted.surplus_count
            if self._is_astray or self.cursor >= self._ordinal_count:
                await self.open()  # more may be wanted than there was when the feed was opened
            await self._read_ahead(min(wanted.demand, MAX_PROMPTS_PER_CALL))
            await self._register(_first(wanted.demand, self._ahead))
        except FeedGapError as error:  # the next demand says where the ledger is
            log.warning("feed_gap", message=str(error))
        except FeedNotOpenError:
            await self.open()
        return False

    async def _await_demand(self) -> replay_pb2.AwaitDemandResponse:
        """Wait until something is wanted, or the run has ended. Others may work meanwhile."""
        with self._waits.waiting(
            "demand",
            owner=REPLAY,
            ends_when="the window has room, or the run ends",
            stall_after_s=self._idle_after_s,
        ):
            while True:
                wanted = await self._poll()
                self._move_to(wanted.cursor)
                if wanted.demand or wanted.ended:
                    return wanted

    async def _poll(self, *, after_end: bool = False) -> replay_pb2.AwaitDemandResponse:
        """Ask for the demand there is, or that comes soon."""
        return await poll(
            self._stub.AwaitDemand,
            replay_pb2.AwaitDemandRequest(
                wait_s=DEMAND_WAIT_S, address=self.address, after_end=after_end
            ),
            waits=self._waits,
            owner=REPLAY,
            timeout_s=DEMAND_WAIT_S + 10,
            stopping=self._stopping,
        )

    async def _read_ahead(self, usable_count: int) -> None:
        """Read whole chunks until so many usable prompts are here, or the data has ended.

        What is long in coming is not waited for: one usable prompt is enough then.
        """
        usable = sum(offer.is_usable for offer in self._ahead)
        if self._supply.is_slow:
            usable_count = min(usable_count, 1)
        while usable < usable_count:
            first = self.cursor + len(self._ahead)
            chunks = -(-(usable_count - usable) // self._chunk_size)
            together = max(1, ROWS_PER_READ // self._chunk_size)
            last = min(first + min(chunks, together) * self._chunk_size, self._ordinal_count)
            if first >= last:
                return
            chunk = await self._reader.read(lambda: self._supply.read(range(first, last)))  # noqa: B023 (awaited here)
            self._ahead.extend(chunk)
            usable += sum(offer.is_usable for offer in chunk)
            if len(chunk) < last - first:
                await self._end(first + len(chunk))

    async def _end(self, ordinal_count: int) -> None:
        """Tell the replay buffer where the data has ended."""
        ended = await persist(
            self._stub.EndFeed,
            replay_pb2.EndFeedRequest(ordinal_count=ordinal_count),
            waits=self._waits,
            name="the feed to be ended",
            owner=REPLAY,
            stopping=self._stopping,
        )
        self._ordinal_count = ended.ordinal_count
        log.info("data_ended", ordinal_count=ended.ordinal_count, total_steps=ended.total_steps)

    def _surplus(self, count: int) -> list[Offer]:
        """Name the next rows as left over; nobody needs to read them."""
        count = min(count, MAX_PROMPTS_PER_CALL)
        return [
            Offer(
                replay_pb2.NewPrompt(
                    uid=self._supply.uid(ordinal), drop_reason=prompt_pb2.DROP_REASON_SURPLUS
                )
            )
            for ordinal in range(self.cursor, self.cursor + count)
        ]

    async def _register(self, offers: list[Offer]) -> None:
        if not offers:
            return
        states = [offer.state for offer in offers]
        registered = await persist(
            self._stub.RegisterPrompts,
            replay_pb2.RegisterPromptsRequest(
                first_ordinal=self.cursor,
                prompts=[offer.prompt for offer in offers],
                source_states=states if any(states) else [],
            ),
            waits=self._waits,
            name="prompts to be registered",
            owner=REPLAY,
            stopping=self._stopping,
        )
        log.info(
            "prompts_registered",
            first_ordinal=self.cursor,
            offered=len(offers),
            accepted=registered.accepted_count,
            dropped=sum(not offer.is_usable for offer in offers[: registered.accepted_count]),
        )
        self.registered_count += registered.accepted_count
        self._move_to(registered.cursor)

    def _move_to(self, cursor: int) -> None:
        """Follow the ledger: forget what it has. If it is somewhere else, the feed is astray."""
        step = cursor - self.cursor
        if 0 <= step <= len(self._ahead):
            for _ in range(step):
                self._ahead.popleft()
        else:
            self._ahead.clear()
            self._is_astray = True
        self.cursor = cursor


def _first(demand: int, offers: Iterable[Offer]) -> list[Offer]:
    """Take prompts up to the `demand`-th usable one, as many as one call may carry."""
    taken: list[Offer] = []
    size = 0
    for offer in islice(offers, MAX_PROMPTS_PER_CALL):
        size += offer.size
        if demand <= 0 or size > MAX_BYTES_PER_CALL:
            break
        demand -= offer.is_usable
        taken.append(offer)
    return taken
