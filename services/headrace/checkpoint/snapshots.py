"""Snapshots as the trainer asks for them: one at a time, and which it is.

The order of everything is in `headrace.checkpoint.snapshot`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from headrace.checkpoint.beginning import Beginning
from headrace.checkpoint.changes import Changes
from headrace.checkpoint.directory import CheckpointDirectory, Found
from headrace.checkpoint.lines import is_on_line
from headrace.checkpoint.peers import Peers
from headrace.checkpoint.snapshot import FAILURES, Snapshot, SnapshotSteps, words
from headrace.config.config import Config
from headrace.errors import (
    InvalidFieldError,
    NotReadyError,
    SnapshotFailedError,
    SnapshotLostError,
    StepOutOfOrderError,
    TrainerFencedError,
)
from headrace.failpoints import reach
from headrace.log import get_logger
from headrace.rpc.calls import Stopped
from headrace.v1 import replay_pb2, resume_pb2

BEGIN_WITHIN_S: Final = 30.0
"""How long one call waits for replay buffer and store before it is told to ask again."""

log = get_logger()


class Snapshots:
    """Makes one snapshot at a time.

    Args:
        config: The run's configuration.
        directory: Its checkpoints.
        peers: Replay buffer and store.
        steps: What a snapshot consists of.
        changes: Woken when a snapshot has come further.
        new_id: Gives ids never given before.
        now: Seconds of a monotonic clock.

    """

    def __init__(
        self,
        config: Config,
        directory: CheckpointDirectory,
        peers: Peers,
        steps: SnapshotSteps,
        *,
        changes: Changes,
        new_id: Callable[[], str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._directory = directory
        self._peers = peers
        self._steps = steps
        self._changes = changes
        self._new_id = new_id
        self._now = now
        self._turn = asyncio.Lock()
        self._beginning = Beginning[tuple[str, bool]]()
        self._work: asyncio.Task[None] | None = None
        self._cleaning: set[asyncio.Task[None]] = set()
        self.last: Snapshot | None = None
        """The one under way, or the last."""
        self.whole: Snapshot | None = None
        """The last that this process has seen complete."""
        self.error = ""
        """Why the last that came to its end failed; empty if it did not."""
        self.saved_step = 0
        self.complete_count = 0
        self.failed_count = 0

    async def begin(
        self, incarnation: int, step: int, facts: Mapping[str, str]
    ) -> tuple[str, bool]:
        """Begin a snapshot; give its id, and whether the step's checkpoint is complete already.

        The same trainer's for the same step is joined, if it is being begun or under way.

        Raises:
            WireError: the replay buffer or the store refuses, or the caller comes late.
            NotReadyError: one of them does not answer. It is being begun still: ask again.
            SnapshotFailedError: the storage cannot be used, or time is up.
            Stopped: the process stops.

        """
        try:
            async with asyncio.timeout(BEGIN_WITHIN_S):
                return await self._beginning.join(
                    (incarnation, step), lambda: self._begin_in_time(incarnation, step, facts)
                )
        except TimeoutError as error:
            raise NotReadyError(
                f"the replay buffer or the store did not answer within {BEGIN_WITHIN_S:g} s"
            ) from error
        except OSError as error:
            raise SnapshotFailedError(f"the snapshot of step {step} failed: {error}") from error

    def report(self, snapshot_id: str, part: resume_pb2.CheckpointPart, error: str = "") -> None:
        """Note the trainer's part, or why there is none.

        Raises:
            SnapshotLostError: that snapshot is not under way.
            InvalidFieldError: it is another's part.

        """
        if not error and (part.name != "trainer" or not part.files):
            raise InvalidFieldError("part", "must be the trainer's, with its files")
        snapshot = self.last
        if snapshot is None or snapshot.snapshot_id != snapshot_id or snapshot.error:
            self._clean_up()  # what was written for it came too late to be removed with the rest
        snapshot = self._known(snapshot_id)
        if snapshot.under_way and error:
            snapshot.trainer_error = error
        elif snapshot.under_way:
            snapshot.parts["trainer"] = part
        self._changes.wake()

    async def commit(self, snapshot_id: str, wait_s: float) -> Snapshot:
        """Wait until a snapshot is complete, or time is up.

        Raises:
            SnapshotLostError: it is not under way.
            SnapshotFailedError: it has failed.

        """
        snapshot = self._known(snapshot_id)
        await self._changes.until(lambda: None if snapshot.under_way else True, wait_s)
        if snapshot.error:
            raise SnapshotFailedError(snapshot.error)
        return snapshot

    async def take_up(self, status: replay_pb2.GetReplayStatusResponse) -> None:
        """End the snapshot under way, this process's own or the one that the journal knows.

        Raises:
            OSError: the storage cannot be reached.
            Stopped: the process stops.

        """
        await self._beginning.end()
        async with self._turn:
            await self._give_up("a resume has begun")
            await self._take_up(status)
            await self._steps.remove_given_up(status.given_up)

    async def close(self) -> None:
        """End the work here, and leave the snapshot to the next coordinator."""
        await self._beginning.end()
        tasks = [*self._cleaning, *(self.last.writers if self.last else ())]
        if self._work is not None:
            tasks.append(self._work)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known(self, snapshot_id: str) -> Snapshot:
        if self.last is None or self.last.snapshot_id != snapshot_id:
            raise SnapshotLostError(f"the snapshot {snapshot_id!r} is not under way any more")
        return self.last

    async def _begin_in_time(
        self, incarnation: int, step: int, facts: Mapping[str, str]
    ) -> tuple[str, bool]:
        deadline_s = self._config.checkpoint.deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                return await self._begin(incarnation, step, facts)
        except TimeoutError as error:
            raise SnapshotFailedError(
                f"the snapshot of step {step} was not begun within {deadline_s:g} s "
                "(checkpoint.deadline_s)"
            ) from error

    async def _begin(
        self, incarnation: int, step: int, facts: Mapping[str, str]
    ) -> tuple[str, bool]:
        async with self._turn:
            _refuse_late(await self._peers.status(), incarnation, step)
            if (joined := await self._joined(incarnation, step)) is not None:
                return joined.snapshot_id, False
            await self._give_up("another snapshot has begun")
            status = await self._peers.status()
            await self._take_up(status)
            found = await asyncio.to_thread(self._directory.look, step, read=False)
            if self._is_complete(found, status):
                assert found.manifest is not None
                return found.manifest.snapshot_id, True
            snapshot = Snapshot(self._new_id(), step, incarnation, facts, self._now())
            try:
                await self._steps.hold(snapshot)
                reach("snapshot.begun")
                await self._steps.cut(snapshot)
                reach("snapshot.cut")
            except Stopped:
                raise
            except asyncio.CancelledError:  # time is up, or a resume has begun
                self._work = asyncio.create_task(self._fail(snapshot, "it was not begun in time"))
                raise
            except FAILURES as error:
                await self._fail(snapshot, words(error))
                raise
            self.last = snapshot
            self._work = asyncio.create_task(self._run(snapshot))
            log.info("snapshot_begun", step=step, position=snapshot.cut.position)
            self._changes.wake()
            return snapshot.snapshot_id, False

    async def _joined(self, incarnation: int, step: int) -> Snapshot | None:
        """Give the trainer's own snapshot of the step if it waits for the trainer's part still.

        One that has the part is not to be written to any more: it is waited for.
        """
        last, work = self.last, self._work
        if last is None or work is None or (last.incarnation, last.step) != (incarnation, step):
            return None
        if last.under_way and ("trainer" in last.parts or last.trainer_error):
            await asyncio.wait([work])
        return last if last.under_way else None

    def _is_complete(self, found: Found, status: replay_pb2.GetReplayStatusResponse) -> bool:
        manifest = found.manifest
        if manifest is None:
            return False
        if manifest.run_id != self._config.run.run_id:
            raise SnapshotFailedError(
                f"{found.uri} is a checkpoint of run {manifest.run_id}; give another "
                "checkpoint.storage"
            )
        on_line = is_on_line(manifest.lineage, found.step, status.lineages)
        return on_line and not found.problems

    async def _run(self, snapshot: Snapshot) -> None:
        try:
            async with asyncio.timeout(self._config.checkpoint.deadline_s):
                await self._steps.write_parts(snapshot)
            snapshot.committing = True
            await self._steps.commit(snapshot)
        except Stopped:
            return  # the next coordinator ends it
        except FAILURES as error:
            await self._fail(snapshot, words(error))
        else:
            await self._completed(snapshot)

    async def _fail(self, snapshot: Snapshot, why: str) -> None:
        try:
            await self._steps.fail(snapshot, why)
            self.error = snapshot.error
            self.failed_count += 1
            self._clean_up(snapshot.writers)
            await self._steps.release(snapshot)
        except Stopped:
            return

    def _clean_up(self, writers: Sequence[asyncio.Task[None]] = ()) -> None:
        """Remove what is written for snapshots that were given up, once these writers are done."""
        task = asyncio.create_task(self._clean(writers))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    async def _clean(self, writers: Sequence[asyncio.Task[None]]) -> None:
        if writers:
            await asyncio.wait(writers)
        with suppress(Stopped):
            async with self._turn:
                status = await self._peers.status()
                await self._steps.remove_given_up(status.given_up)

    async def _completed(self, snapshot: Snapshot) -> None:
        self.saved_step, self.whole, self.error = snapshot.step, snapshot, ""
        self.complete_count += 1
        self._changes.wake()
        reach("snapshot.committed")
        await self._steps.remove_old(snapshot)
        self._clean_up()

    async def _give_up(self, why: str) -> None:
        """End this process's own snapshot, if one is under way; wait for one that is committed.

        What others still write for it goes on, and is removed after that. Each of them writes one
        part at a time, and removes what is there before it writes it anew.
        """
        snapshot, work = self.last, self._work
        if work is None:
            return
        under_way = snapshot is not None and snapshot.under_way
        if snapshot is not None and under_way and not snapshot.committing:
            work.cancel()
        await asyncio.wait([work])
        if snapshot is not None and snapshot.under_way:
            self._work = asyncio.create_task(self._fail(snapshot, why))
            await asyncio.wait([self._work])

    async def _take_up(self, status: replay_pb2.GetReplayStatusResponse) -> None:
        """End the snapshot that a coordinator before this one has left."""
        self.saved_step = status.saved_step
        left = status.snapshot
        if not left.snapshot_id or (self.last and self.last.snapshot_id == left.snapshot_id):
            return
        snapshot = Snapshot(left.snapshot_id, left.step, 0, {}, self._now())
        snapshot.cut.position = left.position
        found = await asyncio.to_thread(self._directory.look, left.step, read=False)
        manifest = found.manifest
        if manifest and manifest.snapshot_id == left.snapshot_id and not found.problems:
            log.info("snapshot_found_complete", step=left.step)
            self.last = snapshot
            await self._steps.finish(snapshot, manifest.size_bytes)
            await self._completed(snapshot)
            await self._steps.release(snapshot)
        else:
            self.last = snapshot
            await self._fail(snapshot, "the checkpoint coordinator was started again")


def _refuse_late(status: replay_pb2.GetReplayStatusResponse, incarnation: int, step: int) -> None:
    """Refuse a call that comes late before anything is ended for it.

    Raises:
        TrainerFencedError: a newer trainer has registered.
        StepOutOfOrderError: the step is not the last committed one.

    """
    if incarnation != status.trainer_incarnation:
        raise TrainerFencedError(
            f"trainer {incarnation} was succeeded by {status.trainer_incarnation}"
        )
    if step != status.committed_step:
        raise StepOutOfOrderError(
            f"step {step} is not the last committed one, {status.committed_step}",
            current_step=str(status.committed_step + 1),
        )
