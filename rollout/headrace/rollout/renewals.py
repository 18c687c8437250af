"""Keeps leases: all in one call, three times within their life.

With the token journal a call also says how far responses have come, and is made sooner if one of
them has grown by `report_every` tokens. Knows nothing of engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.log import get_logger
from headrace.rollout.ask import REFUSALS, Peer
from headrace.rollout.groups import GroupLife
from headrace.rpc.calls import Stopped
from headrace.v1 import replay_pb2

if TYPE_CHECKING:
    from headrace.v1 import replay_pb2_grpc

LOOK_S: Final = 0.5
"""How often it is looked how far responses have come: there are no more calls than that."""
LAST_REPORT_S: Final = 1.0
"""How long a worker that goes home waits for its last report."""
_MOST_TOKENS: Final = 200_000
"""In one call; it is at most half as long as a message may be."""

log = get_logger()


class Renewals:
    """Renews, and learns what was lost.

    Args:
        worker_id: Who holds the leases.
        lives: The groups that are held.
        lease_s: How long a lease lasts; the ledger's answers say it anew.
        report_every: Tokens that a response grows by until it is reported; None = never.
        go_home: Called when the ledger sends the worker home.
        replay: The ledger.
        stub: The same.
        sleep: How time passes.

    """

    def __init__(
        self,
        *,
        worker_id: str,
        lives: Callable[[], Sequence[GroupLife]],
        lease_s: float,
        report_every: int | None,
        go_home: Callable[[], None],
        replay: Peer,
        stub: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.lease_s = lease_s
        self._worker_id = worker_id
        self._lives = lives
        self._report_every = report_every
        self._go_home = go_home
        self._replay = replay
        self._stub = stub
        self._sleep = sleep
        self._passed_s = 0.0
        """Since the last call that was made by time."""

    async def run(self) -> None:
        """Renew until the worker stops."""
        while True:
            is_usual = await self._until_due()
            if self._lives():
                try:
                    await self._renew(self._replay, resend=is_usual)
                except Stopped:
                    return

    async def report(self, replay: Peer) -> None:
        """Say for a last time how far responses have come, if anybody wants to know."""
        if self._report_every is None or not self._lives():
            return
        try:
            async with asyncio.timeout(LAST_REPORT_S):
                await self._renew(replay, resend=True)
        except (Stopped, TimeoutError):
            log.warning("last_tokens_not_reported")

    async def _until_due(self) -> bool:
        """Wait until a call is to be made; say whether it is by time and not by tokens."""
        every = self._report_every
        if every is None:
            await self._sleep(self.lease_s / 3)
            return True
        while self._passed_s < self.lease_s / 3:
            step_s = min(LOOK_S, self.lease_s / 3)
            await self._sleep(step_s)
            self._passed_s += step_s
            if any(life.unreported_token_count >= every for life in self._lives()):
                return False
        self._passed_s = 0.0
        return True

    async def _renew(self, replay: Peer, *, resend: bool) -> None:
        lives = list(self._lives())
        progress = self._progress(lives, resend=resend)
        request = replay_pb2.RenewLeasesRequest(
            worker_id=self._worker_id,
            leases=[life.ref for life in lives],
            progress=[each for _, each in progress],
        )
        try:
            answer = await replay.ask(self._stub.RenewLeases, request)
        except REFUSALS as error:
            log.warning("leases_not_renewed", error=str(error))
            return
        if answer.go_home:
            self._go_home()
        self.lease_s = answer.expires_in_s or self.lease_s
        statuses = zip(lives, answer.statuses, strict=True)
        lost = {life for life, status in statuses if status == replay_pb2.LEASE_STATUS_LOST}
        kept = iter(answer.kept_counts)
        for life, each in progress:
            for draft in each.drafts:
                # A ledger that does not know of drafts keeps none.
                count = next(kept, 0)
                if life not in lost:  # Of those the ledger has what it had.
                    life.note_kept(draft.session, count)
        for life in lost:
            life.lose()

    def _progress(
        self, lives: Sequence[GroupLife], *, resend: bool
    ) -> list[tuple[GroupLife, replay_pb2.LeaseProgress]]:
        """Gather what is new; what is too much for a call comes with the next."""
        if self._report_every is None:
            return []
        room, found = _MOST_TOKENS, []
        for life in lives:
            drafts = life.news(most=room, resend=resend)
            room -= sum(len(draft.token_ids) for draft in drafts)
            if drafts:
                lineage = life.lease.lineage
                each = replay_pb2.LeaseProgress(lease=life.ref, lineage=lineage, drafts=drafts)
                found.append((life, each))
        return found
