"""The coordinator's calls: cut the ledger for a snapshot, and go on from one."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from headrace.errors import CannotResumeError, InvalidFieldError, RunTooShortError
from headrace.failpoints import reach
from headrace.replay import cutting, feeding, resuming, sampling
from headrace.replay.cut_file import read_cut, sessions_of, write_cut
from headrace.replay.journal.base import Journal
from headrace.replay.load import load_until
from headrace.replay.progress import phase_name
from headrace.replay.rows import check_life, keys_page
from headrace.replay.service.base import Calls, Context, checked_wait
from headrace.replay.service.store import MAX_KEYS_PER_CALL
from headrace.rpc.lasting import lasting
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import journal_pb2, resume_pb2
from headrace.v1 import replay_pb2 as pb

KEYS_PER_PAGE = 16384

_T = TypeVar("_T")


class CoordinatorCalls(Calls):
    """BeginCut, WriteCut, EndCut; BeginResume … ReportLostTrajectories."""

    async def BeginCut(self, request: pb.BeginCutRequest, context: Context) -> pb.BeginCutResponse:
        def turn() -> pb.BeginCutResponse:
            sampling.check_trainer(self._ledger, request.incarnation)
            cutting.begin_cut(self._ledger, snapshot_id=request.snapshot_id, step=request.step)
            cut = cutting.cut_of(self._ledger, request.snapshot_id)
            return pb.BeginCutResponse(
                position=cut.position,
                lineages=self._ledger.lineages,
                counts=self._ledger.groups.to_counts(),
                data_fingerprint=self._ledger.feed.fingerprint,
            )

        before = self._ledger.position
        answer = await self._turn(turn)
        if answer.position <= before:  # A repeat: the run has gone on since.
            cut_ledger = await self._loaded(request.snapshot_id, load_until, answer.position)
            answer.counts.CopyFrom(cut_ledger.groups.to_counts())
        return answer

    async def WriteCut(self, request: pb.WriteCutRequest, context: Context) -> pb.WriteCutResponse:
        cut = cutting.cut_of(self._ledger, request.snapshot_id)
        if not request.uri:
            raise InvalidFieldError("uri", "is required")
        part = await self._loaded(
            request.snapshot_id,
            functools.partial(
                write_cut, uri=request.uri, keep_settled=self._buffer.cut_keeps_settled
            ),
            cut.position,
        )
        return pb.WriteCutResponse(part=part)

    async def _loaded(
        self, snapshot_id: str, use: Callable[[Journal, int], _T], position: int
    ) -> _T:
        """Read the cut from the journal, on a thread; nobody compacts it meanwhile.

        Raises:
            SnapshotLostError: the snapshot is not under way any more.

        """
        await self._buffer.settled()

        async def load() -> _T:
            async with self._buffer.journal_reader:
                cutting.cut_of(self._ledger, snapshot_id)
                return await asyncio.to_thread(use, self._journal, position)

        # A caller that goes away does not end the thread: the next cut waits for it.
        made = await lasting(asyncio.ensure_future(load()))
        cutting.cut_of(self._ledger, snapshot_id)
        return made

    async def EndCut(self, request: pb.EndCutRequest, context: Context) -> pb.EndCutResponse:
        await self._turn(
            lambda: cutting.end_cut(
                self._ledger,
                snapshot_id=request.snapshot_id,
                committed=request.committed,
                oldest_step=request.oldest_step,
                error=request.error,
            )
        )
        return pb.EndCutResponse()

    async def BeginResume(
        self, request: pb.BeginResumeRequest, context: Context
    ) -> pb.BeginResumeResponse:
        def turn() -> pb.BeginResumeResponse:
            sampling.check_trainer(self._ledger, request.incarnation)
            resuming.begin_resume(
                self._ledger,
                resume_id=request.resume_id,
                incarnation=request.incarnation,
                step=request.step,
            )
            return pb.BeginResumeResponse(state=self._state())

        return await self._turn(turn)

    async def RollBack(self, request: pb.RollBackRequest, context: Context) -> pb.RollBackResponse:
        if not request.store_incarnation:
            raise InvalidFieldError("store_incarnation", "is required")
        if request.restore and not request.HasField("cut"):
            raise InvalidFieldError("cut", "is required to restore the ledger")
        base: journal_pb2.LedgerBase | None = None
        if request.HasField("cut"):
            base = await asyncio.to_thread(read_cut, request.cut)

        def turn() -> pb.RollBackResponse:
            resume = resuming.current(self._ledger, request.resume_id)
            if not resume.lineage:
                check_life(self._ledger, request.store_incarnation, follows=request.store_follows)
            reopens = bool(self._ledger.ended_by) and not resume.lineage
            if reopens:
                cursor = 0 if request.start_over else self._ledger.cursor
                self._check_length(cursor, resume.step)
            if request.start_over:
                resuming.start_over(self._ledger, request.resume_id)
            if base is not None and not request.restore:
                resuming.check_cut(self._ledger, base, resume.step)
            if request.restore and base is not None and not resume.restored:
                self._restore(base, request.resume_id, resume.step)
            resuming.roll_back(
                self._ledger,
                request.resume_id,
                resuming.Rollback(
                    lineage=uuid.uuid4().hex[:6],
                    store_incarnation=request.store_incarnation,
                    salvage=request.salvage,
                    cut=sessions_of(base) if base is not None else {},
                ),
            )
            # It may be longer now: what was over heard no feeder, and what was not may hear it
            # when the trainer has reckoned with the steps. One that does not fit, the feeder hears.
            with suppress(InvalidFieldError, RunTooShortError):
                self._open_feed()
            return pb.RollBackResponse(state=self._state())

        answer = await self._turn(turn)
        reach("ledger.rolled_back")
        return answer

    def _check_length(self, cursor: int, step: int) -> None:
        """Refuse to go back to where the run, as it is configured now, does not reach.

        Raises:
            CannotResumeError: it does not.

        """
        row_count = self._ledger.feed.row_count
        try:
            feeding.length_of(self._settings, row_count, cursor=cursor, committed_step=step)
        except (InvalidFieldError, RunTooShortError) as error:
            raise CannotResumeError(str(error)) from error

    def _open_feed(self) -> None:
        feed = self._ledger.feed
        if feed.total_steps:
            feeding.open_feed(
                self._ledger, self._settings, row_count=feed.row_count, fingerprint=feed.fingerprint
            )

    def _restore(self, base: journal_pb2.LedgerBase, resume_id: str, step: int) -> None:
        """Take the ledger from a cut.

        Raises:
            CannotResumeError: it is another run's, or of another step.

        """
        opened, ledger = base.run_opened, self._ledger
        if opened.run_id != ledger.run_id or base.committed_step != step:
            raise CannotResumeError(
                f"the ledger of the checkpoint is of run {opened.run_id}, step "
                f"{base.committed_step}, not of run {ledger.run_id}, step {step}"
            )
        before = (opened.n, opened.basis, opened.train_batch_size)
        now = (ledger.n, ledger.basis, ledger.batch_size)
        if before != now:
            raise CannotResumeError(
                f"the checkpoint was made with rollout.n, sampler.basis, data.train_batch_size = "
                f"{before}; now they are {now}: set them back"
            )
        feed = ledger.feed
        ledger.emit(journal_pb2.LedgerRestored(resume_id=resume_id, base=base))
        feeding.keep_length(ledger, feed)

    async def AdvanceResume(
        self, request: pb.AdvanceResumeRequest, context: Context
    ) -> pb.AdvanceResumeResponse:
        blocked_by = ""

        def look() -> pb.AdvanceResumeResponse | None:
            nonlocal blocked_by
            blocked_by = resuming.advance(
                self._ledger,
                self._settings,
                resume_id=request.resume_id,
                phase=request.phase,
                confirmed=self._buffer.workers.confirmed(),
            )
            return None if blocked_by else pb.AdvanceResumeResponse(state=self._state())

        answer = await self._buffer.until(look, checked_wait(request.wait_s))
        # As it is now: while this waits for what is not durable yet, another call may go on.
        answer = answer or pb.AdvanceResumeResponse(state=self._state(), blocked_by=blocked_by)
        await self._buffer.settled()
        return answer

    def _state(self) -> resume_pb2.ResumeState:
        """Give the resume with the times of its phases, as far as this process saw them begin."""
        state = resume_pb2.ResumeState()
        if self._ledger.resume is None:
            return state
        state.CopyFrom(self._ledger.resume)
        buffer = self._buffer
        if buffer.phases_of != state.resume_id:
            buffer.phases_of, buffer.phase_times = state.resume_id, {}
        buffer.phase_times.setdefault(phase_name(state.phase).lower(), time.time())
        state.phase_times.update(buffer.phase_times)
        return state

    async def ListTrajectories(
        self, request: pb.ListTrajectoriesRequest, context: Context
    ) -> pb.ListTrajectoriesResponse:
        token = request.page_token or "-1"
        if not token.removeprefix("-").isdecimal():
            raise InvalidFieldError("page_token", "is not one that this service gave")
        keys, last = keys_page(self._ledger, after_ordinal=int(token), most=KEYS_PER_PAGE)
        await self._buffer.settled()
        return pb.ListTrajectoriesResponse(
            keys=keys, next_page_token="" if last is None else str(last)
        )

    async def ReportLostTrajectories(
        self, request: pb.ReportLostTrajectoriesRequest, context: Context
    ) -> pb.ReportLostTrajectoriesResponse:
        if len(request.keys) > MAX_KEYS_PER_CALL:
            raise InvalidFieldError("keys", f"at most {MAX_KEYS_PER_CALL}")
        try:
            keys = [TrajectoryKey.parse(key) for key in request.keys]
        except ValueError as error:
            raise InvalidFieldError("keys", str(error)) from None
        count = await self._turn(
            lambda: resuming.report_lost(self._ledger, request.resume_id, keys)
        )
        return pb.ReportLostTrajectoriesResponse(group_count=count)
