"""A store: rows written once, deletions that can be held back, lives that end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    CannotResumeError,
    KeyExistsError,
    NotReadyError,
    SnapshotFailedError,
    StoreFencedError,
)
from headrace.v1 import replay_pb2 as pb
from simulation.engine import PAUSE, TICK_S, Party, Work
from simulation.storage import DamagedError

if TYPE_CHECKING:
    from simulation.world import World

CAPACITY_BYTES = 10**6
SWEEP_EVERY_TICKS = 500
GRACE_TICKS = 300


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory, as far as it matters here."""

    lineage: str
    """Of the weights that made it, or its last token."""
    version: int
    earlier: tuple[tuple[str, int], ...] = ()
    """Those that made tokens before, (lineage, version)."""

    @property
    def made_by(self) -> tuple[tuple[str, int], ...]:
        """All weights that made a token of it."""
        return (*self.earlier, (self.lineage, self.version))


@dataclass
class Disk:
    """What outlives the process if there is a log."""

    incarnation: str = ""
    rows: dict[str, Row] = field(default_factory=dict)
    is_restored: bool = False
    """Whether the rows are of a checkpoint, and the ledger does not know of them yet."""
    hold: tuple[str, int] = ("", 0)
    """The hold under which they were restored, and the tick at which it is over."""


class Store(Party):
    """One life of the process."""

    name = "store"
    world: World

    def __init__(self, world: World) -> None:
        super().__init__(world)
        if not world.scenario.durable_store:
            world.disk = Disk()
        self.disk = world.disk
        if not self.disk.incarnation:
            self.disk.incarnation = f"s{world.token()}"
        self._put_at = dict.fromkeys(self.disk.rows, world.tick)
        self._hold_id, self._hold_until = self.disk.hold if self.disk.is_restored else ("", 0)
        self._noted: dict[str, None] = {}
        self._restored_by = ""
        self._is_busy = False

    def start(self) -> None:
        self.spawn(self._register())
        self.spawn(self._sweep())

    def ended(self, thread: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, NotReadyError):
            super().ended(thread, error)

    @property
    def rows(self) -> dict[str, Row]:
        """What is there."""
        return self.disk.rows

    def _register(self) -> Work:
        """Tell the replay buffer which life this is, once no hold keeps a restored one back."""
        while self._is_held and self.disk.is_restored:
            yield ("sleep", 30)
        self.disk.is_restored = False
        incarnation = self.disk.incarnation
        while True:
            status = yield from self.ask("replay", "GetReplayStatus", pb.GetReplayStatusRequest())
            if incarnation != self.disk.incarnation:
                return  # the one that has begun registers itself
            request = pb.RegisterStoreRequest(
                store_incarnation=incarnation,
                follows=status.store_incarnation,
                capacity_bytes=CAPACITY_BYTES,
            )
            try:
                yield from self.ask("replay", "RegisterStore", request)
            except StoreFencedError:
                self.world.judge.counts["stores_refused"] += 1
            else:
                return

    def _sweep(self) -> Work:
        """Remove what nobody refers to; under a hold nothing."""
        while True:
            yield ("sleep", SWEEP_EVERY_TICKS)
            if self._is_held:
                continue
            self._delete_noted()
            oldest, incarnation = self.world.tick - GRACE_TICKS, self.disk.incarnation
            keys = [key for key, at in self._put_at.items() if at <= oldest]
            request = pb.FindDeadTrajectoriesRequest(store_incarnation=incarnation, keys=keys)
            answer = yield from self.ask("replay", "FindDeadTrajectories", request)
            if answer.register_again:  # it lost its journal, and knows of no store
                yield from self._register()
            if not self._is_held and incarnation == self.disk.incarnation:
                self._delete_now(answer.dead_keys)

    # -- rows

    def put(self, rows: dict[str, Row]) -> Any:
        """Write rows; answers with the incarnation."""
        for key, row in rows.items():
            if self.rows.get(key, row) != row:
                raise KeyExistsError(f"{key} is there with other bytes")
        for key, row in rows.items():
            if key not in self.rows:
                self.rows[key] = row
                self._put_at[key] = self.world.tick
        return self.disk.incarnation

    def get(self, keys: list[str]) -> Any:
        """Read rows; gives those that are there."""
        return {key: self.rows[key] for key in keys if key in self.rows}

    def delete(self, keys: list[str]) -> Any:
        """Delete rows, as a trainer asks; under a hold, when it is over."""
        if self._is_held:
            self._noted.update(dict.fromkeys(key for key in keys if key in self.rows))
        else:
            self._delete_now(keys)
        return len(keys)

    def status(self, _: None) -> Any:
        """Say which life this is, and how many rows it holds."""
        return self.disk.incarnation, len(self.rows)

    def check(self, keys: list[str]) -> Any:
        """Name the keys that are not there, and this life."""
        return [key for key in keys if key not in self.rows], self.disk.incarnation

    def _delete_now(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self.rows:
                self.world.judge.deleted(self, key)
                del self.rows[key], self._put_at[key]

    def _delete_noted(self) -> None:
        noted, self._noted = self._noted, {}
        self._delete_now(noted)

    # -- holds

    @property
    def _is_held(self) -> bool:
        return bool(self._hold_id) and self.world.tick < self._hold_until

    def hold(self, request: tuple[str, float]) -> Any:
        """Hold deletions back; answers with the incarnation, and whether there are rows."""
        self._hold_id, hold_s = request
        self._hold_until = self.world.tick + int(hold_s / TICK_S)
        return self.disk.incarnation, bool(self.rows)

    def release(self, hold_id: str) -> Work:
        """End the hold, once nothing is being saved under it."""
        yield from self._turn()
        self._is_busy = False
        if hold_id == self._hold_id:
            self._hold_id = ""
            self._delete_noted()

    # -- checkpoints

    def save(self, request: tuple[str, str]) -> Work:
        """Write all rows, as they are at one moment, under the hold."""
        uri, hold_id = request
        yield from self._turn()
        try:
            if hold_id != self._hold_id or not self._is_held:
                raise SnapshotFailedError(f"the hold {hold_id} is over")
            content = (self.disk.incarnation, tuple(sorted(self.rows.items(), key=lambda r: r[0])))
            self.world.tear(uri, "store")
            yield PAUSE
            if self.world.write_fails():
                raise SnapshotFailedError("the disk is full")
            self.world.storage.write(uri, "store", content)
        finally:
            self._is_busy = False
        return content[0]

    def restore(self, request: tuple[str, str]) -> Work:
        """Take all rows from a checkpoint: another life."""
        uri, restore_id = request
        yield from self._turn()
        try:
            if restore_id == self._restored_by:
                return self.disk.incarnation
            try:
                _, content = self.world.storage.read(uri, "store")
            except DamagedError as error:
                raise CannotResumeError(f"{error} is damaged") from error
            yield PAUSE
            self.disk.incarnation = f"s{self.world.token()}"
            self.disk.is_restored = True
            self.disk.hold = (self._hold_id, self._hold_until)
            self.disk.rows.clear()
            self._put_at.clear()
            self._noted.clear()
            yield PAUSE
            self.disk.rows.update(content)
            self._put_at = dict.fromkeys(self.disk.rows, self.world.tick)
            self._restored_by = restore_id
            self.spawn(self._register())
            return self.disk.incarnation
        finally:
            self._is_busy = False

    def _turn(self) -> Work:
        while self._is_busy:
            yield PAUSE
        self._is_busy = True

    def serve(self, method: str, request: Any, call: Any) -> Any:
        if self._is_busy and method in ("put", "delete", "check", "get"):
            raise NotReadyError("the store is busy")
        return super().serve(method, request, call)
