"""The checkpoint coordinator: its order of calls, and nothing kept but what is under way.

What it decides by - which checkpoint, which rows, what stays - are the real coordinator's own rules
(`headrace.checkpoint.{plan,lines,retention}`). The order of calls, phases and files is written
again here, so that a crash can come between any two of them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.checkpoint.directory import Found
from headrace.checkpoint.lines import is_on_line
from headrace.checkpoint.manifest import Manifest
from headrace.checkpoint.plan import (
    BEGIN,
    FINISHED,
    RELOAD,
    RESTORE,
    ROLL_BACK,
    choose,
    nothing_whole,
    store_action,
    under_way,
)
from headrace.checkpoint.retention import retained
from headrace.config.checkpoint import ResumeConfig
from headrace.errors import (
    CannotResumeError,
    NotReadyError,
    ResumeLostError,
    SnapshotFailedError,
    SnapshotLostError,
    StepOutOfOrderError,
    StoreFencedError,
    StoreFullError,
    TrainerFencedError,
    WireError,
)
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import resume_pb2, store_pb2
from simulation.engine import PAUSE, Party, Thread, Work
from simulation.replay import RUN_ID
from simulation.storage import PARTS, DamagedError, digest_of

if TYPE_CHECKING:
    from simulation.world import World

WAIT_TICKS = 200
POLL_S = 20.0
DEADLINE_S = 600.0
DEADLINE_TICKS = 6000
PHASE_STORE = resume_pb2.RESUME_PHASE_STORE
PHASE_LEDGER = resume_pb2.RESUME_PHASE_LEDGER
PHASE_WEIGHTS = resume_pb2.RESUME_PHASE_WEIGHTS
PHASE_REISSUE = resume_pb2.RESUME_PHASE_REISSUE
PHASE_WARMUP = resume_pb2.RESUME_PHASE_WARMUP
PHASE_OPEN = resume_pb2.RESUME_PHASE_OPEN
RESUME_CONFIG = ResumeConfig()


@dataclass(eq=False)
class Snapshot:
    """The snapshot under way, or the last one."""

    snapshot_id: str
    step: int
    cut: pb.BeginCutResponse
    store_incarnation: str
    incarnation: int = 0
    """The trainer's."""
    parts: set[str] = field(default_factory=set)
    error: str = ""
    given_up: bool = False
    committing: bool = False
    complete: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""
        return self.complete or bool(self.error)


@dataclass(eq=False)
class Resume:
    """A resume under way, or the last one."""

    incarnation: int
    action: int = 0
    manifest: Manifest | None = None
    store: int = 0
    state: resume_pb2.ResumeState | None = None
    seen: Any = None
    """The trainer's part."""
    error: WireError | None = None
    is_over: bool = False
    store_incarnation: str = ""
    store_follows: str = ""
    rows_restored: bool = False
    thread: Thread | None = None

    @property
    def phase(self) -> int:
        """How far it is."""
        return self.state.phase if self.state else 0

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the run begins, or is over."""
        return self.action in (BEGIN, FINISHED)


class Coordinator(Party):
    """One life of the process."""

    name = "coordinator"
    world: World

    def start(self) -> None:
        self._snapshot: Snapshot | None = None
        self._resume: Resume | None = None
        self._turn_taken = False
        self.spawn(self._take_over())

    def ended(self, thread: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, NotReadyError | SnapshotLostError):
            super().ended(thread, error)

    def _status(self) -> Work:
        return (yield from self.ask("replay", "GetReplayStatus", pb.GetReplayStatusRequest()))

    def _take_over(self) -> Work:
        status = yield from self._status()
        yield from self._take_up(status)

    # -- snapshots

    def begin_snapshot(self, request: tuple[int, int]) -> Work:
        """Cut the ledger, and have the parts written; None if that step's checkpoint is there."""
        incarnation, step = request
        yield from self._turn()
        try:
            return (yield from self._begin_snapshot(incarnation, step))
        finally:
            self._turn_taken = False

    def _begin_snapshot(self, incarnation: int, step: int) -> Work:
        status = yield from self._status()
        if incarnation != status.trainer_incarnation:
            raise TrainerFencedError("a newer trainer has registered")
        if step != status.committed_step:
            raise StepOutOfOrderError("the step is not the last committed one")
        last = self._snapshot
        if last is not None and (last.incarnation, last.step) == (incarnation, step):
            while "trainer" in last.parts and not last.is_over:  # nobody is to write to it
                yield ("sleep", 5)
            if not last.is_over:
                self.world.judge.counts["snapshots_joined"] += 1
                return last.snapshot_id
        yield from self._give_up("another snapshot has begun")
        status = yield from self._status()
        yield from self._take_up_left(status)
        found = self.world.storage.look(step)
        if found.manifest and found.manifest.lineage == status.lineage and not found.problems:
            return None
        snapshot_id = self.world.token()
        store_incarnation, _ = yield from self.ask("store", "hold", (snapshot_id, DEADLINE_S))
        yield PAUSE
        snapshot = Snapshot(
            snapshot_id, step, pb.BeginCutResponse(), store_incarnation, incarnation
        )
        try:
            request = pb.BeginCutRequest(
                snapshot_id=snapshot_id, incarnation=incarnation, step=step
            )
            snapshot.cut = yield from self.ask("replay", "BeginCut", request)
            yield PAUSE
            self.world.storage.remove(step)
        except WireError as error:
            yield from self._fail(snapshot, str(error))
            raise
        self._snapshot = snapshot
        self.spawn(self._write_ledger(snapshot))
        self.spawn(self._save_rows(snapshot))
        self.spawn(self._see_through(snapshot))
        return snapshot_id

    def report_part(self, snapshot_id: str) -> Any:
        """Note that the trainer's part is written."""
        self._known(snapshot_id).parts.add("trainer")

    def commit_snapshot(self, snapshot_id: str) -> Work:
        """Wait for the end of the snapshot; say whether it is complete."""
        snapshot = self._known(snapshot_id)
        for _ in range(10):
            if snapshot.error:
                raise SnapshotFailedError(snapshot.error)
            if snapshot.complete:
                return True
            yield ("sleep", 20)
        return False

    def _known(self, snapshot_id: str) -> Snapshot:
        if self._snapshot is None or self._snapshot.snapshot_id != snapshot_id:
            raise SnapshotLostError(f"the snapshot {snapshot_id} is not under way any more")
        return self._snapshot

    def _write_ledger(self, snapshot: Snapshot) -> Work:
        request = pb.WriteCutRequest(
            snapshot_id=snapshot.snapshot_id, uri=self.world.storage.uri(snapshot.step)
        )
        try:
            yield from self.ask("replay", "WriteCut", request)
        except WireError:
            snapshot.given_up = True
        snapshot.parts.add("ledger")

    def _save_rows(self, snapshot: Snapshot) -> Work:
        uri = self.world.storage.uri(snapshot.step)
        try:
            incarnation = yield from self.ask("store", "save", (uri, snapshot.snapshot_id))
            snapshot.given_up |= incarnation != snapshot.store_incarnation
        except WireError:
            snapshot.given_up = True
        snapshot.parts.add("store")

    def _see_through(self, snapshot: Snapshot) -> Work:
        yield from self._until(snapshot, {"ledger", "store"})
        if not snapshot.given_up:
            yield from self.ask("store", "release", snapshot.snapshot_id)
            yield from self._until(snapshot, set(PARTS))
        if not snapshot.given_up:
            snapshot.committing = True
            yield from self._commit(snapshot)
        if not snapshot.complete:
            yield from self._fail(snapshot, "it failed")

    def _until(self, snapshot: Snapshot, parts: set[str]) -> Work:
        give_up_at = self.world.tick + DEADLINE_TICKS
        while not (parts <= snapshot.parts or snapshot.given_up):
            snapshot.given_up |= self.world.tick > give_up_at
            yield ("sleep", 10)

    def _commit(self, snapshot: Snapshot) -> Work:
        status = yield from self._status()
        if status.snapshot.snapshot_id != snapshot.snapshot_id:
            return
        directory = self.world.storage.directories.get(snapshot.step)
        parts = directory.parts if directory else {}
        if directory is None or any(part not in parts for part in PARTS):
            return
        directory.manifest = Manifest(
            run_id=RUN_ID,
            snapshot_id=snapshot.snapshot_id,
            lineages=tuple(snapshot.cut.lineages),
            step=snapshot.step,
            weight_version=snapshot.step,
            position=snapshot.cut.position,
            counts=snapshot.cut.counts,
            data_fingerprint=snapshot.cut.data_fingerprint,
            store_incarnation=snapshot.store_incarnation,
            facts={},
            unix_time_s=0.0,
            headrace_version="",
            parts=tuple(self._part(snapshot, name, parts[name]) for name in PARTS),
        )
        self.world.judge.manifest_written(snapshot.step)
        yield from self._finish(snapshot)

    def _part(self, snapshot: Snapshot, name: str, content: Any) -> resume_pb2.CheckpointPart:
        file = resume_pb2.PartFile(path=name, size_bytes=1, sha256=digest_of(content))
        uri = self.world.storage.uri(snapshot.step)
        return resume_pb2.CheckpointPart(name=name, owner=name, uri=uri, files=[file])

    def _finish(self, snapshot: Snapshot) -> Work:
        """Take the steps that follow the manifest."""
        yield PAUSE
        self.world.storage.latest = snapshot.step
        self.world.judge.latest_written()
        yield PAUSE
        oldest, _ = self._kept(snapshot.step)
        yield from self._end_cut(snapshot, committed=True, oldest_step=oldest)
        snapshot.complete = True
        _, old = self._kept(snapshot.step)
        for step in old:
            yield PAUSE
            self.world.storage.remove(step)

    def _kept(self, step: int) -> tuple[int, list[int]]:
        storage = self.world.storage
        newest = storage.manifest(step)
        lineages = newest.lineages if newest else ()
        complete = [
            found.step
            for found in storage.find()
            if found.manifest
            and found.step <= step
            and is_on_line(found.manifest.lineage, found.step, lineages)
        ]
        return retained(
            complete or [step], storage.directories, keep=self.world.scenario.keep_checkpoints
        )

    def _end_cut(self, snapshot: Snapshot, *, committed: bool, oldest_step: int = 0) -> Work:
        request = pb.EndCutRequest(
            snapshot_id=snapshot.snapshot_id,
            committed=committed,
            oldest_step=oldest_step,
            error="" if committed else "it failed",
        )
        yield from self.ask("replay", "EndCut", request)

    def _fail(self, snapshot: Snapshot, why: str) -> Work:
        """Remove what was written, and say so."""
        storage = self.world.storage
        manifest = storage.manifest(snapshot.step)
        if manifest is None or manifest.snapshot_id == snapshot.snapshot_id:
            storage.remove(snapshot.step)
            if storage.latest == snapshot.step:
                storage.latest = max(
                    (found.step for found in storage.find() if found.manifest), default=None
                )
        yield from self._end_cut(snapshot, committed=False)
        yield from self.ask("store", "release", snapshot.snapshot_id)
        snapshot.error = why

    def _give_up(self, why: str) -> Work:
        """End this life's own snapshot; one that is being committed is waited for."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        snapshot.given_up = True
        while not snapshot.is_over:
            yield ("sleep", 5)

    def _take_up(self, status: pb.GetReplayStatusResponse) -> Work:
        yield from self._turn()
        try:
            yield from self._give_up("a resume has begun")
            yield from self._take_up_left(status)
        finally:
            self._turn_taken = False

    def _take_up_left(self, status: pb.GetReplayStatusResponse) -> Work:
        """End the snapshot that a life before this one has left."""
        left = status.snapshot
        if not left.snapshot_id or (
            self._snapshot and self._snapshot.snapshot_id == left.snapshot_id
        ):
            return
        snapshot = Snapshot(left.snapshot_id, left.step, pb.BeginCutResponse(), "")
        found = self.world.storage.look(left.step)
        self._snapshot = snapshot
        whole = found.manifest and found.manifest.snapshot_id == left.snapshot_id
        if whole and not found.problems:
            yield from self._finish(snapshot)
            yield from self.ask("store", "release", snapshot.snapshot_id)
        else:
            yield from self._fail(snapshot, "the coordinator was started again")

    def _turn(self) -> Work:
        while self._turn_taken:
            yield ("sleep", 3)
        self._turn_taken = True

    # -- resumes

    @property
    def is_busy(self) -> bool:
        """Whether a resume or a snapshot is under way, as far as this life knows."""
        resumes = self._resume is not None and not self._resume.is_over
        saves = self._snapshot is not None and not self._snapshot.is_over
        return not self.is_up or resumes or saves

    def resume(self, request: tuple[int, int]) -> Generator[Any, Any, Resume]:
        """Drive this trainer's resume, and wait for a phase of it."""
        incarnation, until = request
        status = yield from self._status()
        if status.trainer_incarnation != incarnation:
            raise TrainerFencedError("a newer trainer has registered")
        resume = self._resume
        if resume is None or resume.incarnation != incarnation or _is_done(resume, status):
            if resume is not None and resume.thread is not None:
                self.cancel(resume.thread)
                resume.is_over = True
            resume = self._resume = Resume(incarnation)
            resume.thread = self.spawn(self._drive(resume))
        for _ in range(12):
            if resume.error or resume.has_nothing_to_do or resume.phase >= until:
                break
            yield ("sleep", 15)
        if resume.error:
            raise resume.error
        return resume

    def _drive(self, resume: Resume) -> Work:
        try:
            yield from self._phases(resume)
        except ResumeLostError as error:
            resume.error = NotReadyError(str(error))  # ask again: you may have been succeeded
        except WireError as error:
            resume.error = error
        resume.is_over = True

    def _phases(self, resume: Resume) -> Work:
        if not (yield from self._plan(resume)):
            return
        while not (yield from self._has_gone_back(resume)):
            self.world.judge.counts["resumes_begun_once_more"] += 1
            yield from self._plan(resume, anew=True)
        assert resume.state
        resume_id = resume.state.resume_id
        if resume.phase == PHASE_WEIGHTS:
            yield from self._advance(resume, PHASE_REISSUE)
        if resume.phase == PHASE_REISSUE:
            yield from self._report_lost(resume_id)
            yield from self._advance(resume, PHASE_WARMUP)
        yield from self.ask("store", "release", resume_id)
        if resume.phase == PHASE_WARMUP:
            yield from self._advance(resume, PHASE_OPEN)

    def _has_gone_back(self, resume: Resume) -> Work:
        """Bring rows and ledger back; say no if the store died meanwhile."""
        if resume.phase < PHASE_STORE:
            yield from self._advance(resume, PHASE_STORE)
        if resume.phase == PHASE_STORE:
            yield from self._rows(resume)
            yield PAUSE
            yield from self._advance(resume, PHASE_LEDGER)
        if resume.phase == PHASE_LEDGER:
            if not (yield from self._ledger(resume)):
                return False
            yield from self._advance(resume, PHASE_WEIGHTS)
        return True

    def _plan(self, resume: Resume, *, anew: bool = False) -> Work:
        """Pick what the run goes on from; say whether anything is to be resumed."""
        status = yield from self._status()
        yield from self._take_up(status)
        store_incarnation, row_count = yield from self.ask("store", "status", None)
        status = yield from self._status()
        if status.trainer_incarnation != resume.incarnation:
            raise TrainerFencedError("a newer trainer has registered")
        begun = under_way(status, resume.incarnation)
        found = self._going_on(resume, status, begun) if begun else None
        if found is None:
            found = self._choose(resume, status)
        resume.manifest = found.manifest if found else None
        step = found.step if found else 0
        resume.store = store_action(
            status,
            store_pb2.GetStoreStatusResponse(
                store_incarnation=store_incarnation, row_count=row_count
            ),
            resume.manifest,
            resume.action,  # type: ignore[arg-type]
        )
        resume.store_incarnation, resume.rows_restored = store_incarnation, False
        if resume.has_nothing_to_do:
            return False
        if resume.manifest:
            try:
                resume.seen = self.world.storage.read(self.world.storage.uri(step), "trainer")
            except DamagedError as error:
                raise CannotResumeError(str(error)) from error
        else:
            resume.seen = ()
        if begun and begun.step == step and not anew:
            resume.state = begun
            return True
        yield PAUSE
        request = pb.BeginResumeRequest(
            resume_id=f"auto-{self.world.token()}", incarnation=resume.incarnation, step=step
        )
        answer = yield from self.ask("replay", "BeginResume", request)
        resume.state = answer.state
        return True

    def _going_on(
        self,
        resume: Resume,
        status: pb.GetReplayStatusResponse,
        begun: resume_pb2.ResumeState,
    ) -> Found | None:
        """Take the checkpoint of the resume that has begun, if it is whole."""
        restores = begun.restored or (status.fresh and begun.step)
        resume.action = RESTORE if restores else ROLL_BACK
        if begun.step == 0:
            return Found(0, "", None)
        if begun.phase > PHASE_WEIGHTS:
            return Found(begun.step, "", None)
        found = self.world.storage.look(begun.step)
        return found if found.manifest and not found.problems else None

    def _choose(self, resume: Resume, status: pb.GetReplayStatusResponse) -> Found | None:
        storage = self.world.storage
        choice = choose(
            status,
            storage.find(),
            RESUME_CONFIG,
            run_id=RUN_ID,
            latest=storage.latest,
            named=None,
            saves=self.world.scenario.save_freq > 0,
        )
        resume.action = choice.action
        for candidate in choice.candidates:
            found = storage.look(candidate.step)
            if not found.problems:
                return found
        if choice.had_checkpoint:
            raise nothing_whole(choice.skipped)
        return None

    def _rows(self, resume: Resume) -> Work:
        """Load rows from the checkpoint, if that is the plan and not done in this store's life."""
        resume.store_follows = (yield from self._status()).store_incarnation
        incarnation, _ = yield from self.ask("store", "status", None)
        if incarnation != resume.store_incarnation:
            resume.store_incarnation, resume.rows_restored = incarnation, False
        if resume.store != RELOAD or resume.rows_restored:
            return
        assert resume.manifest
        assert resume.state
        resume_id = resume.state.resume_id
        yield from self.ask("store", "hold", (resume_id, DEADLINE_S))
        uri = self.world.storage.uri(resume.manifest.step)
        try:
            incarnation = yield from self.ask("store", "restore", (uri, resume_id))
        except (CannotResumeError, StoreFullError):
            return
        resume.store_incarnation, resume.rows_restored = incarnation, True

    def _ledger(self, resume: Resume) -> Work:
        assert resume.state
        if not resume.state.lineage:
            yield from self._rows(resume)
            yield ("sleep", 1 + int(self.rng.random() * 150))  # the cut is read
        request = pb.RollBackRequest(
            resume_id=resume.state.resume_id,
            restore=resume.action == RESTORE,
            store_incarnation=resume.store_incarnation,
            store_follows=resume.store_follows,
            salvage=self.world.scenario.salvage,
        )
        if resume.manifest and (resume.action == RESTORE or resume.store == RELOAD):
            request.cut.CopyFrom(resume.manifest.part("ledger"))
        try:
            answer = yield from self.ask("replay", "RollBack", request)
        except StoreFencedError:
            self.world.judge.counts["rollbacks_refused"] += 1
            return False
        resume.state = answer.state
        status = yield from self._status()
        if status.resume.resume_id != resume.state.resume_id:
            # The journal was lost just now: by its time lines everything would be moved aside.
            raise ResumeLostError("another one has begun, or the journal is lost")
        incarnation, _ = yield from self.ask("store", "status", None)
        if not incarnation == status.store_incarnation == resume.store_incarnation:
            return False
        storage = self.world.storage
        for found in storage.find():
            if found.manifest:
                stays = is_on_line(found.manifest.lineage, found.step, status.lineages)
            else:
                stays = found.step < answer.state.step
            if not stays:
                yield PAUSE
                storage.move_aside(found.step)
        step = answer.state.step
        storage.latest = step if step in storage.directories else None
        return True

    def _report_lost(self, resume_id: str) -> Work:
        token = ""
        while True:
            page = yield from self.ask(
                "replay", "ListTrajectories", pb.ListTrajectoriesRequest(page_token=token)
            )
            missing, _ = yield from self.ask("store", "check", list(page.keys))
            if missing:
                lost = pb.ReportLostTrajectoriesRequest(resume_id=resume_id, keys=missing)
                yield from self.ask("replay", "ReportLostTrajectories", lost)
            token = page.next_page_token
            if not token:
                return

    def _advance(self, resume: Resume, phase: int) -> Work:
        assert resume.state
        request = pb.AdvanceResumeRequest(
            resume_id=resume.state.resume_id,
            phase=resume_pb2.ResumePhase.ValueType(phase),
            wait_s=POLL_S,
        )
        while True:
            answer = yield from self.ask("replay", "AdvanceResume", request, WAIT_TICKS)
            if answer.state.phase >= phase:
                resume.state = answer.state
                return


def _is_done(resume: Resume, status: pb.GetReplayStatusResponse) -> bool:
    """Whether a resume has failed, or is not what the ledger knows: its journal may be lost."""
    if not resume.is_over or resume.has_nothing_to_do:
        return resume.error is not None
    if resume.error is not None or resume.state is None:
        return True
    return resume.state.resume_id != status.resume.resume_id
