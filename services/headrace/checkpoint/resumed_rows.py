"""The rows of a run that goes on: loaded from its checkpoint if they are lost, and checked.

Knows the store's calls and who is told of lost rows; nothing of phases.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.checkpoint.peers import KEYS_PER_CALL, Peers
from headrace.checkpoint.plan import RELOAD, Plan
from headrace.errors import CannotResumeError, StoreFullError
from headrace.log import get_logger
from headrace.v1 import replay_pb2, store_pb2

log = get_logger()


class ResumedRows:
    """The store, as one resume sees it.

    Args:
        peers: Replay buffer and store.
        hold_s: How long deletions are held back at most.

    Attributes:
        store_incarnation: The store's life; to be set to the one that the plan was made for.
        follows: The life that the ledger knew before the store was asked for its own.

    """

    def __init__(self, peers: Peers, *, hold_s: float) -> None:
        self.store_incarnation = ""
        self.follows = ""
        self._peers = peers
        self._hold_s = hold_s
        self._filled = ""
        """The life that rows were loaded into."""

    async def restore(self, resume_id: str, plan: Plan) -> None:
        """Load rows from the checkpoint, if that is the plan and not done in this store's life."""
        self.follows = (await self._peers.status()).store_incarnation
        self.store_incarnation = (await self._peers.store_status()).store_incarnation
        if plan.store != RELOAD or self._filled == self.store_incarnation:
            return
        assert plan.manifest is not None
        await self._hold(resume_id)
        request = store_pb2.RestoreRowsRequest(
            restore_id=resume_id, part=plan.manifest.part("store")
        )
        try:
            answer = await self._peers.work_of_store(
                self._peers.store.RestoreRows, request, "trajectories to be restored"
            )
        except (CannotResumeError, StoreFullError) as error:
            # Nothing is lost by it: what the store does not have is generated again.
            log.warning("rows_not_restored", detail=str(error))
            return
        self.store_incarnation = self._filled = answer.store_incarnation
        log.info("rows_restored", rows=answer.row_count)

    async def report_lost(self, resume_id: str) -> None:
        """Compare the ledger's rows with the store's, each read back, and report what is lost."""
        page_token, lost_count = "", 0
        while True:
            page = await self._peers.ask_replay(
                self._peers.replay.ListTrajectories,
                replay_pb2.ListTrajectoriesRequest(page_token=page_token),
                "the keys of trajectories",
            )
            for first in range(0, len(page.keys), KEYS_PER_CALL):
                keys = page.keys[first : first + KEYS_PER_CALL]
                lost_count += await self._report_lost_of(resume_id, keys)
            page_token = page.next_page_token
            if not page_token:
                break
        log.info("rows_checked", lost=lost_count)

    async def release(self, resume_id: str) -> None:
        """Let deletions go on."""
        request = store_pb2.ReleaseDeletionsRequest(hold_id=resume_id)
        await self._peers.ask_store(
            self._peers.store.ReleaseDeletions, request, "deletions to go on"
        )

    async def _hold(self, resume_id: str) -> None:
        request = store_pb2.HoldDeletionsRequest(hold_id=resume_id, hold_s=self._hold_s)
        await self._peers.ask_store(
            self._peers.store.HoldDeletions, request, "deletions to be held back"
        )

    async def _report_lost_of(self, resume_id: str, keys: Sequence[str]) -> int:
        checked = await self._peers.work_of_store(
            self._peers.store.CheckTrajectories,
            store_pb2.CheckTrajectoriesRequest(keys=keys),
            "trajectories to be checked",
        )
        if checked.missing_keys:
            await self._peers.ask_replay(
                self._peers.replay.ReportLostTrajectories,
                replay_pb2.ReportLostTrajectoriesRequest(
                    resume_id=resume_id, keys=checked.missing_keys
                ),
                "lost trajectories to be noted",
            )
        return len(checked.missing_keys)
