"""How a run goes on: one phase after the other, for one trainer.

    PLAN     pick a checkpoint and read every byte of it
    STORE    rows that are lost are loaded from it into a fresh store
    LEDGER   the ledger is rolled back or restored, on a new time line; checkpoints of other lines
             are moved aside, and the pointer names the one that was picked
    WEIGHTS  the trainer publishes its weights, a worker loads them
    REISSUE  rows that the store lacks are reported
    WARMUP   the window fills up
    OPEN     the run goes on

Which phase has begun is in the ledger's journal, and every step may be repeated: a coordinator that
is started again goes on with the phase it finds. If the store dies between STORE and LEDGER, the
resume is begun once more, with another time line: the one before has promised rows that are gone.
So it is if the ledger has heard of another life of the store meanwhile, and refuses this one.
`Resume` drives one resume; which one there is, is
`headrace.checkpoint.resumes`' business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from headrace.checkpoint.changes import Changes
from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.leaving import leave_behind
from headrace.checkpoint.peers import Peers
from headrace.checkpoint.plan import (
    BEGIN,
    FINISHED,
    RELOAD,
    RESTORE,
    START_OVER,
    Plan,
    under_way,
)
from headrace.checkpoint.planner import Planner
from headrace.checkpoint.resumed_rows import ResumedRows
from headrace.checkpoint.snapshots import Snapshots
from headrace.config.config import Config
from headrace.config.wish import name_resume, wish_of
from headrace.errors import ResumeLostError, StoreFencedError, TrainerFencedError
from headrace.failpoints import reach
from headrace.log import get_logger
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import replay_pb2, resume_pb2

PHASES: Final = resume_pb2.ResumePhase
PHASE_STORE: Final = resume_pb2.RESUME_PHASE_STORE
PHASE_LEDGER: Final = resume_pb2.RESUME_PHASE_LEDGER
PHASE_WEIGHTS: Final = resume_pb2.RESUME_PHASE_WEIGHTS
PHASE_REISSUE: Final = resume_pb2.RESUME_PHASE_REISSUE
PHASE_WARMUP: Final = resume_pb2.RESUME_PHASE_WARMUP
PHASE_OPEN: Final = resume_pb2.RESUME_PHASE_OPEN

log = get_logger()


class Resume:
    """The resume for one trainer.

    Args:
        incarnation: The trainer.
        facts: What must agree: see `headrace.checkpoint.facts`.
        config: The run's configuration.
        directory: Its checkpoints.
        peers: Replay buffer and store.
        planner: Makes the plan.
        snapshots: One that is under way ends first.
        changes: Woken when it has come further.
        new_id: Gives ids never given before.
        wall_clock: Unix seconds.

    Attributes:
        plan: What it does; None while there is none.
        state: How far it is; None while it has not begun, or has nothing to do.
        blocked_by: What it waits for, in words.

    """

    def __init__(
        self,
        incarnation: int,
        facts: Mapping[str, str],
        *,
        config: Config,
        directory: CheckpointDirectory,
        peers: Peers,
        planner: Planner,
        snapshots: Snapshots,
        changes: Changes,
        new_id: Callable[[], str],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.incarnation = incarnation
        self.plan: Plan | None = None
        self.state: resume_pb2.ResumeState | None = None
        self.blocked_by = "a plan"
        self._facts = facts
        self._config = config
        self._directory = directory
        self._peers = peers
        self._planner = planner
        self._snapshots = snapshots
        self._changes = changes
        self._new_id = new_id
        self._begun = wall_clock()
        self._rows = ResumedRows(peers, hold_s=config.checkpoint.deadline_s)

    @property
    def phase(self) -> resume_pb2.ResumePhase.ValueType:
        """How far it is."""
        return self.state.phase if self.state else resume_pb2.RESUME_PHASE_UNSPECIFIED

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the run begins, or is over."""
        return self.plan is not None and self.plan.action in (BEGIN, FINISHED)

    def trainer_part(self) -> resume_pb2.CheckpointPart | None:
        """Give the trainer's part of the checkpoint, once it is its turn."""
        if self.phase < PHASE_WEIGHTS or self.plan is None or self.plan.manifest is None:
            return None
        return self.plan.manifest.part("trainer")

    async def drive(self) -> None:
        """Go through the phases.

        Raises:
            WireError: it is refused, or another resume has begun.
            OSError: the storage cannot be reached.
            Stopped: the process stops.

        """
        plan = await self._plan()
        if self.has_nothing_to_do:
            log.info("resume_not_needed", action=pb.ResumeAction.Name(plan.action))
            return
        while not await self._has_gone_back(plan):
            plan = await self._plan(anew=True)
        if self.phase == PHASE_WEIGHTS:
            await self._advance(
                PHASE_REISSUE, wait_for="the resumed weights", owner="trainer, then workers"
            )
            reach("resume.weights_done")
        if self.phase == PHASE_REISSUE:
            await self._rows.report_lost(self._resume_id)
            reach("resume.reissued")
            await self._advance(PHASE_WARMUP)
        await self._rows.release(self._resume_id)
        if self.phase == PHASE_WARMUP:
            reach("resume.warmed_up")
            await self._advance(PHASE_OPEN, wait_for="the window to fill up", owner="feeder")
            reach("resume.open")
        self._report()

    # -- PLAN

    async def _plan(self, *, anew: bool = False) -> Plan:
        """Make the plan, and begin the resume, or go on with the one that has begun.

        Args:
            anew: Whether one that has begun is begun once more, from the same checkpoint.

        """
        status = await self._peers.status()
        self._check_newest(status)
        await self._snapshots.take_up(status)
        store = await self._peers.store_status()
        status = await self._peers.status()
        self._check_newest(status)
        begun = under_way(status, self.incarnation)
        with self._peers.waiting(
            "the newest checkpoint to be read",
            owner="storage",
            ends_when="every byte of it is compared with its manifest",
            stall_after_s=self._config.checkpoint.deadline_s,
        ):
            plan = await self._planner.plan(status, store, self._facts, begun=begun)
        self._rows.store_incarnation = store.store_incarnation
        self.plan = plan
        for skipped in plan.skipped:
            log.warning("checkpoint_skipped", step=skipped.step, problems=list(skipped.problems))
        if self.has_nothing_to_do:
            self._come_to(None)
            return plan
        if begun is not None and begun.step == plan.step and not anew:
            self._come_to(begun)
            return plan
        reach("resume.planned")
        log.info(
            "resume_planned",
            action=pb.ResumeAction.Name(plan.action),
            step=plan.step,
            committed_step=plan.committed_step,
            store=pb.StoreAction.Name(plan.store),
            notes=list(plan.notes),
        )
        request = replay_pb2.BeginResumeRequest(
            resume_id=name_resume(wish_of(self._config.resume), status.resume, self._new_id()),
            incarnation=self.incarnation,
            step=plan.step,
        )
        answer = await self._peers.ask_replay(
            self._peers.replay.BeginResume, request, "the resume to begin"
        )
        reach("resume.begun")
        answer.state.phase_times["plan"] = self._begun  # it was made before the ledger knew
        self._come_to(answer.state)
        return plan

    def _check_newest(self, status: replay_pb2.GetReplayStatusResponse) -> None:
        if self.incarnation != status.trainer_incarnation:
            raise TrainerFencedError(
                f"trainer {self.incarnation} was succeeded by {status.trainer_incarnation}"
            )

    # -- STORE, LEDGER

    async def _has_gone_back(self, plan: Plan) -> bool:
        """Bring rows and ledger back to the checkpoint; say no if the store died meanwhile."""
        if self.phase < PHASE_STORE:
            await self._advance(PHASE_STORE)
        if self.phase == PHASE_STORE:
            await self._rows.restore(self._resume_id, plan)
            reach("resume.store_done")
            await self._advance(PHASE_LEDGER)
        if self.phase == PHASE_LEDGER:
            if not await self._ledger(plan):
                return False
            await self._advance(PHASE_WEIGHTS)
        return True

    async def _ledger(self, plan: Plan) -> bool:
        """Roll the ledger back; say whether the store is still the one that it was told of."""
        assert self.state is not None
        if not self.state.lineage:
            # A coordinator before did it, and is answered the same; or a store died since.
            await self._rows.restore(self._resume_id, plan)
        reach("resume.rolling_back")
        request = replay_pb2.RollBackRequest(
            resume_id=self._resume_id,
            restore=plan.action == RESTORE,
            start_over=plan.action == START_OVER,
            store_incarnation=self._rows.store_incarnation,
            store_follows=self._rows.follows,
            salvage=plan.salvage,
        )
        if plan.manifest is not None and (plan.action == RESTORE or plan.store == RELOAD):
            request.cut.CopyFrom(plan.manifest.part("ledger"))
        try:
            answer = await self._peers.work_of_replay(
                self._peers.replay.RollBack, request, "the ledger to be rolled back"
            )
        except StoreFencedError as error:
            log.warning("store_changed_in_resume", detail=str(error))
            return False
        reach("resume.ledger_done")
        self._come_to(answer.state)
        status = await self._peers.status()
        if status.resume.resume_id != self._resume_id:
            # The journal was lost just now: by its time lines everything would be left behind.
            raise ResumeLostError(f"the resume {self._resume_id!r} is not the run's newest")
        store = await self._peers.store_status()
        lives = {status.store_incarnation, store.store_incarnation, self._rows.store_incarnation}
        if len(lives) > 1:
            # What the ledger was told is in the store is not.
            log.warning("store_died_in_resume", step=answer.state.step)
            return False
        self._snapshots.saved_step = status.saved_step
        await asyncio.to_thread(leave_behind, self._directory, status.lineages, answer.state)
        reach("resume.moved_aside")
        return True

    # -- all

    @property
    def _resume_id(self) -> str:
        assert self.state is not None
        return self.state.resume_id

    async def _advance(
        self,
        phase: resume_pb2.ResumePhase.ValueType,
        *,
        wait_for: str = "the resume's next phase",
        owner: str = "replay buffer",
    ) -> None:
        state = await self._peers.advance(
            self._resume_id, phase, wait_for=wait_for, owner=owner, blocked=self._blocked
        )
        log.info("resume_phase", phase=PHASES.Name(state.phase), step=state.step)
        self._come_to(state)

    def _blocked(self, by: str) -> None:
        if by != self.blocked_by:
            self.blocked_by = by
            self._changes.wake()

    def _come_to(self, state: resume_pb2.ResumeState | None) -> None:
        if state is not None and self.state is not None:
            # The replay buffer knows the times of phases only as long as it lives.
            state.phase_times.update(
                {
                    name: min(unix_time_s, state.phase_times.get(name, unix_time_s))
                    for name, unix_time_s in self.state.phase_times.items()
                }
            )
        self.state = state
        self.blocked_by = ""
        self._changes.wake()

    def _report(self) -> None:
        state = self.state
        assert state is not None
        log.info(
            "resumed",
            step=state.step,
            lineage=state.lineage,
            parent=state.parent,
            restored=state.restored,
            reissued=state.reissued_count,
            sessions_kept=state.sessions_kept_count,
            untrained=state.untrained_count,
            dropped=state.dropped_count,
            topped_up=state.topped_up_count,
        )
