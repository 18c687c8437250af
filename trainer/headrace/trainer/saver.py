"""Makes checkpoints: the trainer's half of a snapshot, one at a time.

    CommitStep(N) ─► BeginSnapshot ─► copy ─► training goes on
                                        └──► write ─► upload ─► ReportPart ─► CommitSnapshot …

Only until the copy is made does training stand still. What fails is said once, here and to the
coordinator, and costs a checkpoint, not the run. A thread that writes for a snapshot that was given
up cannot be ended: it has the copy until it is done, and there is no other snapshot before.

Knows the order of calls; which steps are saved is asked of it, what is in the files is `part`'s
business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from headrace.errors import HeadraceError, TrainerFencedError
from headrace.failpoints import reach
from headrace.log import get_logger
from headrace.rpc.calls import Stopped, persist, poll
from headrace.rpc.daemon import in_daemon
from headrace.rpc.lasting import lasting
from headrace.rpc.waits import Waits
from headrace.trainer.actor import Actor
from headrace.trainer.compute import ComputeThread
from headrace.trainer.progress import Progress
from headrace.trainer.state import StateCopy
from headrace.trainer.upload import SaverSettings, upload
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import checkpoint_pb2_grpc
from headrace.v1.resume_pb2 import CheckpointPart
from headrace.v1.trainer_pb2 import TrainerPhase

if TYPE_CHECKING:
    CoordinatorStub = checkpoint_pb2_grpc.CheckpointCoordinatorServiceAsyncStub

OWNER: Final = "checkpoint"
"""The process that answers."""
BEGIN_S: Final = 10.0
"""How long training may stand still for an answer of the coordinator."""
POLL_S: Final = 20.0
"""How long the coordinator may hold one call that has nothing new."""
ANSWER_S: Final = 10.0
"""How long an answer may take beyond that."""
NO_ANSWER: Final = "the coordinator has not answered"
LAST_TRIES: Final = 3
"""How often the last checkpoint of a run is tried."""

log = get_logger()


class Saver:
    """Saves steps.

    Args:
        settings: what checkpoints are made by.
        coordinator: puts a checkpoint together.
        actor: whose state is saved; used on `compute` only.
        compute: the thread that computes.
        copy: room for the state.
        progress: is told what is saved.
        waits: where waits are registered.
        leaving: ends all waits at once.
        now: seconds of a monotonic clock.

    """

    def __init__(
        self,
        settings: SaverSettings,
        *,
        coordinator: CoordinatorStub,
        actor: Actor,
        compute: ComputeThread,
        copy: StateCopy,
        progress: Progress,
        waits: Waits,
        leaving: asyncio.Event,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._coordinator = coordinator
        self._actor = actor
        self._compute = compute
        self._copy = copy
        self._progress = progress
        self._waits = waits
        self._leaving = leaving
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._upload: asyncio.Future[CheckpointPart] | None = None
        """What the thread that writes is at, or was at last."""
        self._saving = 0
        """The step of the snapshot that is under way, or was the last."""
        self._recorded = asyncio.Event()

    def is_due(self, step: int) -> bool:
        """Whether a step is to be saved by itself, or as somebody asked for it."""
        return step % self._settings.save_freq == 0 or self._progress.snapshot_requested

    def covers(self, step: int) -> bool:
        """Whether a step is saved, or being saved."""
        return step in (self._progress.saved_step, self._saving if self._is_busy else -1)

    async def save(self, step: int, *, must: bool = False) -> float:
        """Begin to save a step that is committed while none is open; return when it is copied.

        Args:
            step: the step.
            must: whether to wait for a snapshot under way, or one that was given up and is still
                being written, which otherwise makes this one be skipped, and for a coordinator that
                is away.

        Returns:
            Seconds that it took.

        Raises:
            TrainerFencedError: a newer trainer has registered.
            Stopped: the trainer is leaving.

        """
        if (self._is_busy or self._is_writing) and not must:
            self._progress.snapshots["skipped"] += 1
            log.warning(
                "snapshot_skipped", step=step, reason=f"step {self._saving} is still being saved"
            )
            return 0.0
        await self.settle()
        begun = self._now()
        self._progress.phase = TrainerPhase.TRAINER_PHASE_SAVING
        try:
            async with asyncio.timeout(self._settings.deadline_s if must else BEGIN_S):
                await self._copy_free()
                answer = await self._begin(step)
            self._progress.snapshot_requested = False
            if answer.complete:
                self._progress.saved_step = step
            else:
                copying = self._now()
                await self._compute.run(self._copy.take, self._actor)
                copy_s = round(self._now() - copying, 4)
                log.info("snapshot_copied", step=step, after_s=round(copying - begun, 4), s=copy_s)
                reach("trainer_part.copied")
                self._saving, self._recorded = step, asyncio.Event()
                self._task = asyncio.create_task(self._finish(step, answer.snapshot_id, begun))
        except (TrainerFencedError, Stopped):
            raise
        except TimeoutError:
            what = f"step {self._saving} is still being written" if self._is_writing else NO_ANSWER
            self._fail(step, f"{what} after {self._now() - begun:.0f} s")
        except Exception as error:  # whatever it is, it is no reason not to train
            self._fail(step, _in_words(error))
        stall_s = self._now() - begun
        self._progress.snapshot_stall_s = stall_s
        return stall_s

    def recorded(self, step: int) -> None:
        """Say that the metrics of a step are written: a checkpoint of it holds them, too."""
        if step == self._saving:
            self._recorded.set()

    async def settle(self) -> None:
        """Wait until the snapshot under way, if any, is complete or has failed."""
        if self._task is not None:
            await self._task

    async def secure(self, step: int) -> bool:
        """Save the last committed step, whatever it takes, unless it is saved; say if it is.

        Raises:
            TrainerFencedError, Stopped: as `save`.

        """
        for _ in range(LAST_TRIES):
            await self.settle()
            if self._progress.saved_step == step:
                return True
            await self.save(step, must=True)
            self.recorded(step)
        await self.settle()
        return self._progress.saved_step == step

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def _is_writing(self) -> bool:
        return self._upload is not None and not self._upload.done()

    async def _copy_free(self) -> None:
        """Wait until nobody writes the copy any more.

        Raises:
            Stopped: the trainer is leaving.

        """
        if self._upload is None or self._upload.done():
            return
        stop = asyncio.ensure_future(self._leaving.wait())
        waited: tuple[asyncio.Future[Any], ...] = (self._upload, stop)
        with self._waits.waiting(
            "given-up snapshot to be written",
            owner="trainer",
            ends_when=f"the storage has taken, or refused, the files of step {self._saving}",
            stall_after_s=self._settings.deadline_s,
        ):
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
        if self._is_writing:
            raise Stopped(f"told to stop while step {self._saving} was being written")

    async def _begin(self, step: int) -> pb.BeginSnapshotResponse:
        return await persist(
            self._coordinator.BeginSnapshot,
            pb.BeginSnapshotRequest(
                incarnation=self._settings.incarnation, step=step, facts=self._settings.facts
            ),
            waits=self._waits,
            name="snapshot begun",
            owner=OWNER,
            stopping=self._leaving,
        )

    async def _finish(self, step: int, snapshot_id: str, begun: float) -> None:
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                answer = await self._write(step, snapshot_id)
        except Stopped:
            self._fail(step, "the trainer was told to stop before it was complete")
        except TimeoutError:
            limit_s = self._settings.deadline_s
            self._fail(step, f"not complete within {limit_s:g} s (checkpoint.deadline_s)")
        except Exception as error:  # drivers of storages raise what they like
            self._fail(step, _in_words(error))
        else:
            self._progress.saved_step = step
            self._progress.snapshot_error = ""
            self._progress.snapshots["saved"] += 1
            seconds = round(self._now() - begun, 3)
            log.info("snapshot_saved", step=step, seconds=seconds, size_bytes=answer.size_bytes)

    async def _write(self, step: int, snapshot_id: str) -> pb.CommitSnapshotResponse:
        with self._waits.waiting(
            "snapshot written", owner="trainer", stall_after_s=self._settings.deadline_s
        ):
            await self._recorded.wait()
            report = pb.ReportPartRequest(snapshot_id=snapshot_id)
            try:
                part = await self._uploaded(step)
                reach("trainer_part.written")
            except Exception as error:  # drivers of storages raise what they like
                report.error = _in_words(error)
                with suppress(HeadraceError, grpc.aio.AioRpcError):  # the cause is what counts
                    await self._report(report)
                raise
            report.part.CopyFrom(part)
        await self._report(report)
        return await self._committed(snapshot_id)

    async def _uploaded(self, step: int) -> CheckpointPart:
        write = partial(upload, self._settings, self._copy, step)
        self._upload = in_daemon(write, name="upload")
        return await lasting(self._upload)

    async def _report(self, report: pb.ReportPartRequest) -> None:
        await persist(
            self._coordinator.ReportPart,
            report,
            waits=self._waits,
            name="trainer part reported",
            owner=OWNER,
            stopping=self._leaving,
        )

    async def _committed(self, snapshot_id: str) -> pb.CommitSnapshotResponse:
        request = pb.CommitSnapshotRequest(snapshot_id=snapshot_id, wait_s=POLL_S)
        with self._waits.waiting(
            "snapshot complete",
            owner=OWNER,
            ends_when="the ledger's and the store's parts are written, and the manifest",
            stall_after_s=self._settings.deadline_s,
        ):
            while True:
                answer = await poll(
                    self._coordinator.CommitSnapshot,
                    request,
                    waits=self._waits,
                    owner=OWNER,
                    timeout_s=POLL_S + ANSWER_S,
                    stopping=self._leaving,
                )
                if answer.complete:
                    return answer

    def _fail(self, step: int, why: str) -> None:
        self._progress.snapshot_error = f"step {step}: {why}"
        self._progress.snapshots["failed"] += 1
        log.error("snapshot_failed", step=step, error=why, newest_saved=self._progress.saved_step)


def _in_words(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name
    return " ".join(str(error).split()) or type(error).__name__
