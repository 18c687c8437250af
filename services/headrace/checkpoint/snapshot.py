"""A snapshot of the whole run after step N: who does what, in which order.

1. The store holds deletions back. The ledger is cut: its position in the journal is the snapshot.
2. In parallel: the replay buffer writes `ledger.pb`, the store `transfer_queue/`, the trainer
   `trainer/`. Each file of this machine's file system is written as `NAME.tmp`, synced, renamed to
   NAME, and its folder synced; new folders are synced into those that hold them.
3. When all parts are reported and can be seen from here, the store lets deletions go on, and:

       manifest.json.tmp written, synced ─► renamed to manifest.json ─► global_step_N/ synced
       latest_checkpointed_iteration.txt.tmp written, synced ─► renamed ─► the storage synced
       the ledger notes that the snapshot is complete, and which checkpoint is the oldest kept
       each older checkpoint: its manifest removed, its folder synced ─► its other files

A directory is a checkpoint once it has a manifest. So a crash before the first rename leaves the
checkpoint before as the newest, and one after it this one; none leaves half of one. On an object
store an object appears whole, and there are no folders; the order is the same.

The first part that cannot be written ends a snapshot: what there is of it is removed at once, and
what others wrote meanwhile when they are done. The state of a snapshot is in the ledger's journal,
and so is which ones were given up. A coordinator that finds one there that it did not begin ends
it: complete if its manifest is there, given up otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from headrace.checkpoint.changes import Changes
from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.manifest import PARTS, Manifest, in_order
from headrace.checkpoint.peers import Peers
from headrace.checkpoint.retention import (
    kept,
    remove_abandoned,
    remove_failed,
    remove_given_up,
)
from headrace.checkpoint.storage import Storage
from headrace.config.config import Config
from headrace.errors import HeadraceError, SnapshotFailedError, SnapshotLostError
from headrace.failpoints import reach
from headrace.log import get_logger
from headrace.rpc.failures import detail_of
from headrace.v1 import replay_pb2, resume_pb2, store_pb2

FAILURES: Final = (OSError, HeadraceError, TimeoutError, grpc.aio.AioRpcError)
"""What makes a snapshot fail, and not the process."""

log = get_logger()


@dataclass(eq=False)
class Snapshot:
    """One snapshot that this process has begun, or ended for one that died."""

    snapshot_id: str
    step: int
    incarnation: int
    facts: Mapping[str, str]
    begun: float
    """When, seconds of a monotonic clock."""
    cut: replay_pb2.BeginCutResponse = field(default_factory=replay_pb2.BeginCutResponse)
    store_incarnation: str = ""
    parts: dict[str, resume_pb2.CheckpointPart] = field(default_factory=dict)
    writers: list[asyncio.Task[None]] = field(default_factory=list)
    """The ledger's and the store's parts being written. They may outlast it."""
    trainer_error: str = ""
    """Why the trainer could not write its part."""
    committing: bool = False
    """It is past the point where it can be given up from outside."""
    complete: bool = False
    error: str = ""
    """Why it failed; empty if it did not."""
    seconds: float = 0.0
    size_bytes: int = 0
    longest_put_wait_s: float = 0.0

    @property
    def under_way(self) -> bool:
        """Whether it has not come to its end."""
        return not (self.complete or self.error)

    def state(self) -> resume_pb2.SnapshotState:
        """Give it as the API has it."""
        return resume_pb2.SnapshotState(
            snapshot_id=self.snapshot_id, step=self.step, position=self.cut.position
        )


class SnapshotSteps:
    """The steps of a snapshot; which is taken when is `headrace.checkpoint.snapshots`' business.

    Args:
        config: The run's configuration.
        directory: Its checkpoints.
        peers: Replay buffer and store.
        changes: Woken when a snapshot has come further.
        version: Of headrace, for manifests.
        now: Seconds of a monotonic clock.
        wall_clock: Unix seconds.

    """

    def __init__(
        self,
        config: Config,
        directory: CheckpointDirectory,
        peers: Peers,
        *,
        changes: Changes,
        version: str,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._directory = directory
        self._peers = peers
        self._changes = changes
        self._version = version
        self._now = now
        self._wall_clock = wall_clock

    async def hold(self, snapshot: Snapshot) -> None:
        """Have the store hold deletions back."""
        request = store_pb2.HoldDeletionsRequest(
            hold_id=snapshot.snapshot_id, hold_s=self._config.checkpoint.deadline_s
        )
        held = await self._peers.ask_store(
            self._peers.store.HoldDeletions, request, "deletions to be held back"
        )
        snapshot.store_incarnation = held.store_incarnation

    async def cut(self, snapshot: Snapshot) -> None:
        """Have the ledger cut, and make room for the parts."""
        request = replay_pb2.BeginCutRequest(
            snapshot_id=snapshot.snapshot_id, incarnation=snapshot.incarnation, step=snapshot.step
        )
        # A repeat reads the journal up to the cut: it takes its time, too.
        snapshot.cut = await self._peers.work_of_replay(
            self._peers.replay.BeginCut, request, "the ledger to be cut"
        )
        await asyncio.to_thread(self._directory.remove, snapshot.step)

    async def write_parts(self, snapshot: Snapshot) -> None:
        """Have the ledger's and the store's parts written; wait for the trainer's.

        Whoever cannot write ends it at once. The others are left to write: nobody could stop them.
        """
        snapshot.writers = [
            asyncio.create_task(self._write_ledger(snapshot)),
            asyncio.create_task(self._write_rows(snapshot)),
        ]
        for writer in snapshot.writers:
            writer.add_done_callback(_seen)
        waiting = [
            asyncio.create_task(self._written(snapshot)),
            asyncio.create_task(self._reported(snapshot)),
        ]
        try:
            await _all(waiting)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _written(self, snapshot: Snapshot) -> None:
        await _all(snapshot.writers)
        await self.release(snapshot)

    async def _reported(self, snapshot: Snapshot) -> None:
        with self._peers.waiting(
            f"the trainer's part of the checkpoint of step {snapshot.step}",
            owner="trainer",
            ends_when="it is written",
            stall_after_s=self._config.checkpoint.deadline_s,
        ):
            while "trainer" not in snapshot.parts:
                if snapshot.trainer_error:
                    raise SnapshotFailedError(
                        f"the trainer's part could not be written: {snapshot.trainer_error}"
                    )
                await self._changes.next()

    async def _write_ledger(self, snapshot: Snapshot) -> None:
        request = replay_pb2.WriteCutRequest(
            snapshot_id=snapshot.snapshot_id, uri=self._directory.uri(snapshot.step)
        )
        answer = await self._peers.work_of_replay(
            self._peers.replay.WriteCut, request, "the ledger to be written"
        )
        snapshot.parts["ledger"] = answer.part

    async def _write_rows(self, snapshot: Snapshot) -> None:
        request = store_pb2.SaveRowsRequest(
            uri=self._directory.uri(snapshot.step), hold_id=snapshot.snapshot_id
        )
        answer = await self._peers.work_of_store(
            self._peers.store.SaveRows, request, "trajectories to be written"
        )
        if answer.store_incarnation != snapshot.store_incarnation:
            raise SnapshotFailedError("the store was started anew meanwhile")
        snapshot.longest_put_wait_s = answer.longest_put_wait_s
        snapshot.parts["store"] = answer.part
        log.info(
            "rows_saved",
            step=snapshot.step,
            rows=answer.row_count,
            raw_bytes=answer.raw_bytes,
            locked_s=round(answer.locked_s, 4),
            longest_put_wait_s=round(answer.longest_put_wait_s, 4),
        )

    async def commit(self, snapshot: Snapshot) -> None:
        """Make it a checkpoint. Whatever fails here, the one before stays the newest."""
        reach("snapshot.parts_complete")
        status = await self._peers.status()
        if status.snapshot.snapshot_id != snapshot.snapshot_id:
            raise SnapshotLostError("the ledger has ended it: a trainer or a resume came between")
        manifest = self._manifest(snapshot)
        await asyncio.to_thread(self._check_seen, manifest)
        await asyncio.to_thread(self._directory.write_manifest, manifest)
        await self.finish(snapshot, manifest.size_bytes)

    async def finish(self, snapshot: Snapshot, size_bytes: int) -> None:
        """Take the steps that follow the manifest, up to the ledger's note."""
        await asyncio.to_thread(self._directory.point_to, snapshot.step)
        oldest, _ = await asyncio.to_thread(self._kept, snapshot.step)
        await self._end_cut(snapshot, committed=True, oldest_step=oldest)
        snapshot.size_bytes = size_bytes
        snapshot.seconds = self._now() - snapshot.begun
        snapshot.complete = True
        log.info(
            "snapshot_complete",
            step=snapshot.step,
            seconds=round(snapshot.seconds, 3),
            size_bytes=size_bytes,
            longest_put_wait_s=round(snapshot.longest_put_wait_s, 4),
        )

    def _manifest(self, snapshot: Snapshot) -> Manifest:
        assert set(snapshot.parts) == set(PARTS)
        return Manifest(
            run_id=self._config.run.run_id,
            snapshot_id=snapshot.snapshot_id,
            lineages=tuple(snapshot.cut.lineages),
            step=snapshot.step,
            weight_version=snapshot.step,
            position=snapshot.cut.position,
            counts=snapshot.cut.counts,
            data_fingerprint=snapshot.cut.data_fingerprint,
            store_incarnation=snapshot.store_incarnation,
            facts=snapshot.facts,
            unix_time_s=self._wall_clock(),
            headrace_version=self._version,
            parts=in_order(snapshot.parts.values()),
        )

    def _check_seen(self, manifest: Manifest) -> None:
        """An owner may have written to a directory of its own machine."""
        folder = Storage(self._directory.uri(manifest.step))
        for part in manifest.parts:
            for file in part.files:
                problem = folder.problem_with(file, read=False)
                if problem is not None:
                    raise SnapshotFailedError(
                        f"the {part.name}'s part, as the checkpoint coordinator sees it: {problem}; "
                        "checkpoint.storage must be the same place for all processes"
                    )

    async def remove_old(self, snapshot: Snapshot) -> None:
        """Remove what a complete snapshot makes superfluous."""
        try:
            _, old = await asyncio.to_thread(self._kept, snapshot.step)
            for step in old:
                await asyncio.to_thread(self._directory.remove, step)
                reach("retention.removed_one")
                log.info("checkpoint_removed", step=step)
            abandoned = await asyncio.to_thread(
                remove_abandoned,
                self._directory,
                snapshot.step,
                keep=self._config.checkpoint.max_abandoned_to_keep,
            )
            for found in abandoned:
                log.info("checkpoint_removed", step=found.step, abandoned=found.abandoned_line)
        except OSError as error:  # the next snapshot tries again
            log.warning("checkpoint_not_removed", detail=str(error))

    async def remove_given_up(self, given_up: Mapping[int, str]) -> None:
        """Remove what snapshots that were given up have left.

        Args:
            given_up: Them, by step, as the ledger knows them.

        """
        try:
            for step in await asyncio.to_thread(remove_given_up, self._directory, given_up):
                log.info("unfinished_removed", step=step)
        except OSError as error:  # the next one that is given up or complete tries again
            log.warning("checkpoint_not_removed", detail=str(error))

    def _kept(self, step: int) -> tuple[int, list[int]]:
        return kept(self._directory, step, keep=self._config.checkpoint.max_ckpt_to_keep)

    async def _end_cut(
        self, snapshot: Snapshot, *, committed: bool, oldest_step: int = 0, error: str = ""
    ) -> None:
        request = replay_pb2.EndCutRequest(
            snapshot_id=snapshot.snapshot_id,
            committed=committed,
            oldest_step=oldest_step,
            error=error,
        )
        await self._peers.ask_replay(
            self._peers.replay.EndCut, request, "the end of the snapshot to be noted"
        )

    async def release(self, snapshot: Snapshot) -> None:
        """Let deletions go on."""
        request = store_pb2.ReleaseDeletionsRequest(hold_id=snapshot.snapshot_id)
        await self._peers.ask_store(
            self._peers.store.ReleaseDeletions, request, "deletions to go on"
        )

    async def fail(self, snapshot: Snapshot, why: str) -> None:
        """Remove what was written, and say so. The checkpoint before stays the newest.

        Deletions are still held back after it.

        Raises:
            Stopped: the process stops before the ledger knows; the next coordinator tells it.

        """
        why = why or "it was not complete at its deadline"
        log.error("snapshot_failed", step=snapshot.step, detail=why)
        try:
            await asyncio.to_thread(
                remove_failed, self._directory, snapshot.step, snapshot.snapshot_id
            )
        except OSError as error:
            log.warning("checkpoint_not_removed", step=snapshot.step, detail=str(error))
        await self._end_cut(snapshot, committed=False, error=why)
        snapshot.error = f"the snapshot of step {snapshot.step} failed: {why}"
        self._changes.wake()


def words(error: BaseException) -> str:
    """Say what went wrong; empty if a deadline passed."""
    return detail_of(error) if isinstance(error, grpc.aio.AioRpcError) else str(error)


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all are done, or one fails. Ends none of them."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


def _seen(task: asyncio.Task[None]) -> None:
    """Take note of how a task ended that nobody may wait for any more."""
    if not task.cancelled():
        task.exception()
