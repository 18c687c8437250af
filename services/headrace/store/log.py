"""What the store holds, on disk: a killed store comes back with its rows and as who it was.

    log.json                          whose log it is (identity.py)
    lock                              held by the store that writes
    rows-{number}.log, dead-…         segments (segment.py); the newest is appended to
    restored-…/                       segments of rows that were restored (succession.py)

A row is durable before its put is confirmed. A segment goes as soon as all of its rows are dead,
and one of which less than a quarter lives is written again at the end, so that the files stay below
four times what lives, and the segment that grows. Rows are never kept in memory, only where they
are. Damaged rows are reported and are missing from then on; the rest stays.

All methods block, and belong to one thread at a time.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from headrace.errors import NotReadyError, UsageError
from headrace.log import get_logger
from headrace.store import identity
from headrace.store.identity import Identity
from headrace.store.segment import Damage, Segment, numbers, row_bytes
from headrace.trajectory.chunks import Value

SEGMENT_BYTES = 64 * 2**20
"""How large a segment grows before the next begins; one call's rows are never split."""
SPARSE = 4
"""A segment of which less than one in so many bytes lives is written again."""
_REWRITE_BYTES = 8 * 2**20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_log = get_logger()


class Place(NamedTuple):
    """Where a row lies."""

    segment: Segment
    offset: int
    size_bytes: int


class StoreLog:
    """The log in a directory of a local file system."""

    def __init__(
        self, directory: Path, found: Identity, *, is_new: bool, lock: int | None, fsync: bool
    ) -> None:
        self.directory = directory
        self.identity = found
        """Whose it is."""
        self.rows_directory = directory / found.rows
        """Where its segments are."""
        self.is_new = is_new
        """Whether it was begun now."""
        self.torn_bytes = 0
        """Bytes of unfinished appends, found while opening."""
        self.damaged_count = 0
        """Places found so far that are no whole row."""
        self.refused_count = 0
        """Appends that the disk has refused so far."""
        self.segment_bytes = SEGMENT_BYTES
        self.fsync = fsync
        """Whether a row survives power loss, and not only a killed process."""
        self._lock = lock
        self._places: dict[str, Place] = {}
        self._segments: list[Segment] = []
        self._active: Segment | None = None
        self._next_number = 1
        self._trouble = ""
        """What the disk refused last, empty once it has taken something."""

    @classmethod
    def open(cls, directory: Path, *, run_id: str, new_incarnation: str, fsync: bool) -> Self:
        """Open the directory's log, or begin one. Then `recover` what is there.

        Args:
            directory: Its directory; made if it is not there.
            run_id: The run that it has to belong to.
            new_incarnation: Who the store is if the log is a new one.
            fsync: Whether a row survives power loss, and not only a killed process.

        Raises:
            UsageError: another store uses it, it is another run's or of another version, or the
                directory cannot be used.

        """
        lock = identity.lock(directory)
        try:
            found = identity.read(directory, run_id=run_id)
            if found is not None:
                return cls(directory, found, is_new=False, lock=lock, fsync=fsync)
            begun = Identity(run_id=run_id, store_incarnation=new_incarnation)
            identity.write(directory, begun)
        except UsageError:
            os.close(lock)
            raise
        except OSError as error:
            os.close(lock)
            msg = f"the store's log cannot be begun in {directory}: {error.strerror}"
            raise UsageError(msg) from error
        return cls(directory, begun, is_new=True, lock=lock, fsync=fsync)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def incarnation(self) -> str:
        """The store that it makes outlive the process."""
        return self.identity.store_incarnation

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def live_bytes(self) -> int:
        """Bytes of the rows that are not dead, as they lie in the segments."""
        return sum(segment.live_bytes for segment in self._segments)

    def recover(self) -> Iterator[Value]:
        """Give all rows, oldest first. To be exhausted once, before anything else.

        A key that comes again replaces what came before under it: its put was repeated, or a crash
        came between a rewriting and the removal of what had been rewritten.
        """
        directory = self.rows_directory
        directory.mkdir(exist_ok=True)
        there = numbers(directory, "rows")
        for number in set(numbers(directory, "dead")) - set(there):
            (directory / f"dead-{number:08d}.log").unlink()
        for number in there:
            segment = Segment(directory, number)
            self._segments.append(segment)
            self._next_number = number + 1
            for found in segment.read():
                if isinstance(found, Damage):
                    self._report(segment, found, is_last=number == there[-1])
                else:
                    self._settle([found.value], [found.offset], segment)
                    yield found.value
        if self._segments and self._segments[-1].size_bytes < self.segment_bytes:
            self._active = self._segments[-1]
        self._tidy()

    def append(self, values: Sequence[Value]) -> None:
        """Write rows and return when they are durable.

        Raises:
            NotReadyError: the disk is full, or refused otherwise. None of them is there.

        """
        try:
            has_replaced = self._append(values)
        except OSError as error:
            self.refused_count += 1
            trouble = f"{_words_for(error)}: {error.strerror}: the store's log, {self.directory}"
            if trouble != self._trouble:
                self._trouble = trouble
                _log.error("store_log_refused", detail=trouble, row_count=len(values))
            raise NotReadyError(
                f"{trouble}; no put is confirmed until it can be written"
            ) from error
        if self._trouble:
            _log.info("store_log_recovered", after=self._trouble)
            self._trouble = ""
        if has_replaced:
            self._tidy()

    def forget(self, keys: Iterable[str]) -> None:
        """Note that rows are dead, and let go of the room they took. Unknown keys are ignored.

        Needs no room on the disk, and doesn't fail: what can't be noted now is noted later, and if
        the process dies before, the sweep finds the rows once more.
        """
        dead: defaultdict[Segment, list[int]] = defaultdict(list)
        for key in keys:
            place = self._places.pop(key, None)
            if place is not None:
                _discount(place)
                dead[place.segment].append(place.offset)
        for segment, offsets in dead.items():
            if not self._remove_if_dead(segment):
                self._bury(segment, offsets)
        self._tidy()

    def identify(self, found: Identity) -> None:
        """Say, durably, whose log it is from now on.

        Raises:
            NotReadyError: the disk refused.

        """
        try:
            identity.write(self.directory, found)
        except OSError as error:
            raise NotReadyError(f"{_words_for(error)}: {error}: {self.directory}") from error
        self.identity = found

    def take_lock_of(self, older: StoreLog) -> None:
        """Go on with another log's lock on the directory."""
        self._lock, older._lock = older._lock, None

    def close(self) -> None:
        """Let go of the files and the lock. Safe to repeat."""
        for segment in self._segments:
            segment.close()
        self._segments, self._active = [], None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- rows ----------------------------------------------------------------------------------

    def _append(self, values: Sequence[Value]) -> bool:
        segment = self._active
        if segment is None or segment.is_broken or segment.size_bytes >= self.segment_bytes:
            segment = self._begin_segment()
        offsets = segment.append(values, fsync=self.fsync)
        return self._settle(values, offsets, segment)

    def _settle(self, values: Sequence[Value], offsets: Sequence[int], segment: Segment) -> bool:
        """Note where rows lie. Older ones under their keys are dead; return whether there were."""
        replaced: defaultdict[Segment, list[int]] = defaultdict(list)
        for value, offset in zip(values, offsets, strict=True):
            older = self._places.get(value.key)
            if older is not None:
                _discount(older)
                replaced[older.segment].append(older.offset)
            place = Place(segment, offset, row_bytes(value))
            self._places[value.key] = place
            segment.live_count += 1
            segment.live_bytes += place.size_bytes
        for older_segment, older_offsets in replaced.items():
            self._bury(older_segment, older_offsets)
        return bool(replaced)

    def _bury(self, segment: Segment, offsets: Sequence[int]) -> None:
        try:
            segment.bury(offsets)
        except OSError as error:
            _log.warning("store_log_deletion_unwritten", path=str(segment.path), error=str(error))

    # -- segments ------------------------------------------------------------------------------

    def _begin_segment(self) -> Segment:
        number = self._next_number
        self._next_number += 1
        segment = Segment(self.rows_directory, number, create=True)
        self._segments.append(segment)
        self._active = segment
        if self.fsync:
            identity.sync_directory(self.rows_directory)
        return segment

    def _tidy(self) -> None:
        """Remove segments that are dead, and write again those that nearly are."""
        for segment in list(self._segments):
            is_sparse = segment.live_bytes * SPARSE < segment.size_bytes
            if self._remove_if_dead(segment) or segment is self._active or not is_sparse:
                continue
            try:
                self._rewrite(segment)
            except OSError as error:
                # Only room is lost; the next deletion tries again.
                _log.warning("store_log_not_trimmed", path=str(segment.path), error=str(error))

    def _remove_if_dead(self, segment: Segment) -> bool:
        """Remove a segment without rows; the newest only if it is worth a new file."""
        is_small = segment.size_bytes * SPARSE < self.segment_bytes
        if segment.live_count or (segment is self._active and is_small):
            return False
        try:
            segment.remove()
        except OSError as error:
            _log.warning("store_log_not_trimmed", path=str(segment.path), error=str(error))
            return False
        self._segments.remove(segment)
        if segment is self._active:
            self._active = None
        return True

    def _rewrite(self, segment: Segment) -> None:
        batch: list[Value] = []
        size_bytes = 0
        for found in segment.read():
            if isinstance(found, Damage):
                self._report(segment, found, is_last=False)
                continue
            place = self._places.get(found.value.key)
            if place is None or (place.segment, place.offset) != (segment, found.offset):
                continue
            batch.append(found.value)
            size_bytes += place.size_bytes
            if size_bytes >= _REWRITE_BYTES:
                self._append(batch)
                batch, size_bytes = [], 0
        if batch:
            self._append(batch)
        if segment.live_count:
            self._give_up(segment)
        self._remove_if_dead(segment)

    def _give_up(self, segment: Segment) -> None:
        """Forget the rows of a segment that cannot be read from it any more."""
        lost = [key for key, place in self._places.items() if place.segment is segment]
        for key in lost:
            _discount(self._places.pop(key))
        # They are still in TransferQueue; only a restart would miss them.
        _log.warning("store_log_rows_unreadable", path=str(segment.path), keys=lost)

    def _report(self, segment: Segment, damage: Damage, *, is_last: bool) -> None:
        if damage.is_tail and is_last:
            self.torn_bytes += damage.size_bytes
            segment.cut(damage.offset)
        else:
            self.damaged_count += 1
        _log.warning(
            "store_log_torn_tail" if damage.is_tail else "store_log_damaged",
            path=str(segment.path),
            offset=damage.offset,
            size_bytes=damage.size_bytes,
            key=damage.key,
        )


def _discount(place: Place) -> None:
    place.segment.live_count -= 1
    place.segment.live_bytes -= place.size_bytes


def _words_for(error: OSError) -> str:
    return "disk full" if error.errno in _NO_ROOM else "disk error"
