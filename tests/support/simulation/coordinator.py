"""A coordinator as the design has it: no state of its own but what is under way.

Its threads: answers to calls, one for the snapshot, one for the resume.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.checkpoint.lines import is_on_line
from headrace.errors import (
    CannotResumeError,
    NotReadyError,
    ResumeLostError,
    SnapshotFailedError,
    SnapshotLostError,
    StepOutOfOrderError,
    TrainerFencedError,
    WireError,
)
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import resume_pb2
from simulation.engine import PAUSE, Party, Work
from simulation.storage import Damaged, Manifest, digest_of

if TYPE_CHECKING:
    from simulation.world import World

WAIT_TICKS = 200
DEADLINE_S = 600.0
PLAN = resume_pb2.RESUME_PHASE_PLAN
STORE = resume_pb2.RESUME_PHASE_STORE
LEDGER = resume_pb2.RESUME_PHASE_LEDGER
WEIGHTS = resume_pb2.RESUME_PHASE_WEIGHTS
REISSUE = resume_pb2.RESUME_PHASE_REISSUE
WARMUP = resume_pb2.RESUME_PHASE_WARMUP
OPEN = resume_pb2.RESUME_PHASE_OPEN


@dataclass
class Snapshot:
    """The snapshot under way, or the last one."""

    snapshot_id: str
    step: int
    uri: str
    lineages: tuple[tuple[str, int], ...]
    store_incarnation: str
    parts: set[str] = field(default_factory=set)
    error: str = ""
    is_complete: bool = False


@dataclass
class Resume:
    """A resume under way, or the last one."""

    incarnation: int
    action: str = ""
    step: int = 0
    phase: int = 0
    lineage: str = ""
    part: Any = ()
    error: WireError | None = None


class Coordinator(Party):
    """One life of the process."""

    name = "coordinator"
    world: World

    def start(self) -> None:
        self._snapshot: Snapshot | None = None
        self._resume: Resume | None = None
        self.spawn(self._take_over())

    def ended(self, thread: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, (NotReadyError, SnapshotLostError)):
            super().ended(thread, error)

    def _status(self) -> Work:
        return (yield from self.ask("replay", "GetReplayStatus", pb.GetReplayStatusRequest()))

    def _take_over(self) -> Work:
        """End the snapshot that an earlier life left."""
        status = yield from self._status()
        snapshot_id = status.snapshot.snapshot_id
        if not snapshot_id or self._snapshot is not None:
            return
        uri = self.world.storage.uri(status.snapshot.step)
        directory = self.world.storage.directories.get(uri)
        manifest = directory.manifest if directory else None
        if manifest and manifest.snapshot_id == snapshot_id:
            yield from self._end_cut(snapshot_id, committed=True)
        else:
            yield from self._end_cut(snapshot_id, committed=False)
            if self._snapshot is None and manifest is None:
                self.world.storage.remove(uri)
        yield from self.ask("store", "release", snapshot_id)

    # -- snapshots

    def begin_snapshot(self, request: tuple[int, int]) -> Work:
        """Cut the ledger, and have the parts written; None if that step's checkpoint is there."""
        incarnation, step = request
        status = yield from self._status()
        if status.trainer_incarnation != incarnation:
            raise TrainerFencedError("a newer trainer has registered")
        storage, uri = self.world.storage, self.world.storage.uri(step)
        directory = storage.directories.get(uri)
        manifest = directory.manifest if directory else None
        if manifest and manifest.lineage == status.lineage and not storage.problem(uri):
            return None
        if status.committed_step != step:
            raise StepOutOfOrderError(f"step {step} is not the last committed one")
        snapshot_id = self.world.token()
        store_incarnation, _ = yield from self.ask("store", "hold", (snapshot_id, DEADLINE_S))
        yield PAUSE
        try:
            cut = yield from self.ask(
                "replay",
                "BeginCut",
                pb.BeginCutRequest(snapshot_id=snapshot_id, incarnation=incarnation, step=step),
            )
        except WireError:
            yield from self.ask("store", "release", snapshot_id)
            raise
        if self._snapshot is not None:
            self._snapshot.error = self._snapshot.error or "another snapshot has begun"
        snapshot = Snapshot(snapshot_id, step, uri, _lines(cut.lineages), store_incarnation)
        self._snapshot = snapshot
        storage.remove(uri)
        self.spawn(self._write_ledger(snapshot))
        self.spawn(self._save_rows(snapshot))
        self.spawn(self._finish(snapshot))
        return snapshot_id

    def report_part(self, snapshot_id: str) -> Any:
        """Note that the trainer's part is written."""
        self._under_way(snapshot_id).parts.add("trainer")

    def part_failed(self, snapshot_id: str) -> Any:
        """Note that the trainer cannot write its part."""
        self._under_way(snapshot_id).error = "the trainer's disk is full"

    def commit_snapshot(self, snapshot_id: str) -> Work:
        """Wait for the end of the snapshot; say whether it is complete."""
        for _ in range(10):
            snapshot = self._under_way(snapshot_id)
            if snapshot.error:
                raise SnapshotFailedError(snapshot.error)
            if snapshot.is_complete:
                return True
            yield ("sleep", 20)
        return False

    def _under_way(self, snapshot_id: str) -> Snapshot:
        if self._snapshot is None or self._snapshot.snapshot_id != snapshot_id:
            raise SnapshotLostError(f"the snapshot {snapshot_id} is not under way")
        return self._snapshot

    def _write_ledger(self, snapshot: Snapshot) -> Work:
        request = pb.WriteCutRequest(snapshot_id=snapshot.snapshot_id, uri=snapshot.uri)
        try:
            yield from self.ask("replay", "WriteCut", request)
            snapshot.parts.add("ledger")
        except WireError as error:
            snapshot.error = snapshot.error or str(error)

    def _save_rows(self, snapshot: Snapshot) -> Work:
        try:
            incarnation = yield from self.ask("store", "save", (snapshot.uri, snapshot.snapshot_id))
        except WireError as error:
            snapshot.error = snapshot.error or str(error)
            return
        if incarnation != snapshot.store_incarnation:
            snapshot.error = snapshot.error or "the store came in another life"
        snapshot.parts.add("store")

    def _finish(self, snapshot: Snapshot) -> Work:
        storage = self.world.storage
        give_up_at = self.world.tick + 6000
        while not snapshot.error and len(snapshot.parts) < 3:
            if self.world.tick > give_up_at:
                snapshot.error = "it takes too long"
            yield ("sleep", 15)
        yield from self.ask("store", "release", snapshot.snapshot_id)
        if not snapshot.error:
            status = yield from self._status()
            if status.snapshot.snapshot_id != snapshot.snapshot_id:
                snapshot.error = snapshot.error or "it is not under way any more"
        directory = storage.directories.get(snapshot.uri)
        if not snapshot.error and directory is not None:
            try:
                digests = {
                    part: digest_of(storage.read(snapshot.uri, part))
                    for part in ("ledger", "store", "trainer")
                }
            except Damaged as error:
                snapshot.error = str(error)
        if snapshot.error or directory is None:
            snapshot.error = snapshot.error or "its directory is gone"
            yield from self._end_cut(snapshot.snapshot_id, committed=False)
            gone = storage.directories.get(snapshot.uri)
            if self._snapshot is snapshot and gone is not None and gone.manifest is None:
                storage.remove(snapshot.uri)
            return
        directory.manifest = Manifest(
            snapshot.snapshot_id,
            snapshot.step,
            snapshot.lineages,
            snapshot.store_incarnation,
            digests,
        )
        self.world.judge.manifest_written(snapshot.uri)
        yield PAUSE
        storage.latest = snapshot.step
        self.world.judge.latest_written(snapshot.lineages)
        yield PAUSE
        yield from self._end_cut(snapshot.snapshot_id, committed=True)
        snapshot.is_complete = True
        for uri in self._superfluous():
            yield PAUSE
            storage.remove(uri)

    def _end_cut(self, snapshot_id: str, *, committed: bool) -> Work:
        kept = self._kept() if committed else []
        request = pb.EndCutRequest(
            snapshot_id=snapshot_id,
            committed=committed,
            oldest_step=kept[-1].step if kept else 0,
            error="" if committed else "it failed",
        )
        yield from self.ask("replay", "EndCut", request)

    def _kept(self) -> list[Manifest]:
        """Give the checkpoints that retention keeps, newest first."""
        storage = self.world.storage
        whole = [m for m in storage.manifests() if not storage.problem(storage.uri(m.step))]
        return whole[: self.world.scenario.keep_checkpoints]

    def _superfluous(self) -> list[str]:
        storage, kept = self.world.storage, self._kept()
        return [storage.uri(m.step) for m in storage.manifests() if m.step < kept[-1].step]

    # -- resumes

    def resume(self, request: tuple[int, int, Any]) -> Work:
        """Drive this trainer's resume, and wait for a phase of it."""
        incarnation, until, _ = request
        status = yield from self._status()
        if status.trainer_incarnation != incarnation:
            raise TrainerFencedError("a newer trainer has registered")
        resume = self._resume
        if resume is None or resume.incarnation != incarnation or resume.error:
            resume = self._resume = Resume(incarnation)
            self.spawn(self._drive(resume))
        for _ in range(12):
            if resume.error or resume.action in ("begin", "finished"):
                break
            if resume.phase >= until:
                break
            yield ("sleep", 15)
        if resume.error:
            raise resume.error
        return SimpleNamespace(
            action=resume.action,
            phase=resume.phase,
            lineage=resume.lineage,
            step=resume.step,
            part=resume.part,
        )

    def _drive(self, resume: Resume) -> Work:
        try:
            yield from self._phases(resume)
        except ResumeLostError:
            resume.error = NotReadyError("another resume has begun")
        except WireError as error:
            resume.error = error

    def _phases(self, resume: Resume) -> Work:
        storage = self.world.storage
        if self._snapshot is not None and not self._snapshot.is_complete:
            self._snapshot.error = self._snapshot.error or "a trainer came"
        status = yield from self._status()
        state = status.resume
        if not (status.HasField("resume") and state.trainer_incarnation == resume.incarnation):
            if not self._plan(resume, status):
                return
            yield PAUSE
            begun = yield from self.ask(
                "replay",
                "BeginResume",
                pb.BeginResumeRequest(
                    resume_id=self.world.token(), incarnation=resume.incarnation, step=resume.step
                ),
            )
            state = begun.state
        resume.step = state.step
        restores = not state.lineage and state.step > status.committed_step
        resume.action = "restore" if restores or state.restored else "roll_back"
        resume_id, uri = state.resume_id, storage.uri(state.step)
        directory = storage.directories.get(uri)
        manifest = directory.manifest if directory else None
        hold = store_incarnation = None
        if state.phase < WARMUP:
            hold = yield from self.ask("store", "hold", (resume_id, DEADLINE_S))
            store_incarnation = hold[0]
        if state.phase < STORE:
            state = yield from self._advance(resume_id, STORE)
        if state.phase < LEDGER:
            assert hold is not None
            status = yield from self._status()
            knows = status.store_incarnation == store_incarnation
            is_its = manifest is not None and manifest.store_incarnation == store_incarnation
            if not (knows and (is_its or hold[1])) and not hold[1] and manifest is not None:
                store_incarnation = yield from self.ask("store", "restore", (uri, resume_id))
            yield PAUSE
            state = yield from self._advance(resume_id, LEDGER)
        if state.phase < WEIGHTS:
            if not state.lineage:
                request = pb.RollBackRequest(
                    resume_id=resume_id,
                    restore=restores,
                    store_incarnation=store_incarnation,
                    salvage=self.world.scenario.salvage,
                )
                if manifest is not None:
                    request.cut.CopyFrom(
                        resume_pb2.CheckpointPart(name="ledger", owner="replay", uri=uri)
                    )
                answer = yield from self.ask("replay", "RollBack", request)
                state = answer.state
            yield from self._move_aside(state.step)
            state = yield from self._advance(resume_id, WEIGHTS)
        resume.lineage = state.lineage
        try:
            resume.part = storage.read(uri, "trainer") if state.step else ()
        except Damaged as error:
            raise CannotResumeError(str(error)) from error
        resume.phase = state.phase
        if state.phase < REISSUE:
            state = yield from self._advance(resume_id, REISSUE)
            resume.phase = state.phase
        if state.phase < WARMUP:
            yield from self._check_rows(resume_id)
            yield from self.ask("store", "release", resume_id)
            state = yield from self._advance(resume_id, WARMUP)
            resume.phase = state.phase
        if state.phase < OPEN:
            state = yield from self._advance(resume_id, OPEN)
        resume.phase = state.phase

    def _plan(self, resume: Resume, status: Any) -> bool:
        """Pick what the run goes on from; say whether anything is to be resumed."""
        storage, saves = self.world.storage, self.world.scenario.save_freq > 0
        found = storage.manifests()
        if status.fresh and not found:
            resume.action = "begin"
            return False
        if status.ended and (not saves or status.saved_step == status.committed_step):
            resume.action = "finished"
            return False
        if not status.fresh:
            found = [
                manifest
                for manifest in found
                if manifest.step <= status.committed_step
                and is_on_line(manifest.lineage, manifest.step, status.lineages)
            ]
        whole = [m for m in found if not storage.problem(storage.uri(m.step))]
        if found and not whole:
            raise CannotResumeError("all checkpoints are damaged")
        resume.step = whole[0].step if whole else 0
        return True

    def _advance(self, resume_id: str, phase: int) -> Work:
        while True:
            answer = yield from self.ask(
                "replay",
                "AdvanceResume",
                pb.AdvanceResumeRequest(
                    resume_id=resume_id, phase=resume_pb2.ResumePhase.ValueType(phase), wait_s=20
                ),
                WAIT_TICKS,
            )
            if not answer.blocked_by:
                return answer.state

    def _move_aside(self, step: int) -> Work:
        """Move what the new time line leaves behind out of the way, the newest last."""
        storage = self.world.storage
        for uri, directory in sorted(storage.directories.items()):
            if int(uri.rpartition("_")[2]) > step:
                yield PAUSE
                if directory.manifest:
                    storage.move_aside(uri)
                else:
                    storage.remove(uri)
        yield PAUSE
        storage.latest = step or None

    def _check_rows(self, resume_id: str) -> Work:
        token = ""
        while True:
            page = yield from self.ask(
                "replay", "ListTrajectories", pb.ListTrajectoriesRequest(page_token=token)
            )
            missing, _ = yield from self.ask("store", "check", list(page.keys))
            if missing:
                yield from self.ask(
                    "replay",
                    "ReportLostTrajectories",
                    pb.ReportLostTrajectoriesRequest(resume_id=resume_id, keys=missing),
                )
            token = page.next_page_token
            if not token:
                return


def _lines(lineages: Any) -> tuple[tuple[str, int], ...]:
    return tuple((line.id, line.fork_step) for line in lineages)
