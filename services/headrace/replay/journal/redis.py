"""The journal as a Redis Stream.

    headrace:{run}:epoch    the newest writer's epoch
    headrace:{run}:journal  stream: the entry of position p has the id `p-0`
    headrace:{run}:base     hash: `position`, `data` of the newest base

All keys of a run share a hash tag. Everything is appended by one script (`append.lua`) that also
checks the writer's epoch and where the stream ends, so a try whose answer was lost can be
repeated. While Redis is away, loading, read-only or out of disk the append waits, by name; what
it would not survive - a weaker fsync policy, an eviction policy, a restored older copy - it
refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 (Redis's own, on purpose)
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 (Redis's own, on purpose)
)
from redis.retry import Retry

from headrace.errors import NotReadyError, UsageError, WriterFencedError
from headrace.replay.journal.base import JOURNAL_AWAY, JournalDamagedError
from headrace.replay.journal.mark import JournalMark
from headrace.rpc.waits import Waits
from headrace.v1 import journal_pb2

REPLAY_BATCH: Final = 1000
CALL_TIMEOUT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0

_WAITED_OUT: Final = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
)
_DISK_TROUBLE: Final = ("MISCONF", "LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS")

_T = TypeVar("_T")


class JournalRolledBackError(JournalDamagedError):
    """Redis holds an older copy of the journal than was acknowledged."""


class RedisJournal:
    """A journal in Redis. See the module for its keys."""

    def __init__(
        self,
        url: str,
        *,
        run_id: str,
        waits: Waits,
        is_stopping: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
        password: str | None = None,
        allow_weak_fsync: bool = False,
        mark: JournalMark | None = None,
    ) -> None:
        """Connect, check the server's settings, and take the writer's epoch.

        Waits for a server that is away or loading, until it is stopping.

        Raises:
            UsageError: the address is none, access is refused, or a setting would lose events.
            NotReadyError: stopped before Redis was there.
            JournalRolledBackError: it lies behind its base, or behind `mark`.

        """
        self._where = _without_password(url)
        self._allow_weak_fsync = allow_weak_fsync
        self._waits = waits
        self._is_stopping = is_stopping
        self._is_closed = False
        self._sleep = sleep
        prefix = f"headrace:{{{run_id}}}"
        self._epoch_key, self._stream_key = f"{prefix}:epoch", f"{prefix}:journal"
        self._base_key = f"{prefix}:base"
        try:
            self._redis: redis.Redis = redis.Redis.from_url(
                url,
                password=password,
                socket_timeout=CALL_TIMEOUT_S,
                socket_connect_timeout=CALL_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
                # What answers on a new connection may be another server than before.
                redis_connect_func=self._check_connection,
            )
        except ValueError as error:
            msg = f"journal.redis_url: {self._where} is not the address of a Redis server: {error}"
            raise UsageError(msg) from error
        scripts = resources.files("headrace.replay.journal")
        self._append, self._keep_base = (
            self._redis.register_script(scripts.joinpath(name).read_text())
            for name in ("append.lua", "base.lua")
        )
        self.torn_bytes = 0
        self._mark = mark
        epoch = int(self._patiently(lambda: self._redis.get(self._epoch_key)) or 0)
        self.position = self._patiently(self._last_position)
        if mark is not None:
            mark.check(epoch=epoch, position=self.position)
        self.writer_epoch = int(self._patiently(lambda: self._redis.incr(self._epoch_key)))
        # From here on nobody else appends.
        self.position = self._patiently(self._last_position)
        self.base = self._patiently(self._load_base)
        self._first_position = self._patiently(self._oldest_position)
        base_position = self.base.position if self.base else 0
        if self.position < base_position or self._first_position > base_position + 1:
            raise JournalRolledBackError(
                f"the journal in {self._where} has events {self._first_position} to "
                f"{self.position}, but its base is of position {base_position}"
            )
        self._note()

    @property
    def first_position(self) -> int:
        """The first position that is still there."""
        return self._first_position

    # -- writing -------------------------------------------------------------------------------

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Write records in one script; waits as long as Redis cannot take them."""
        first = records[0].position
        arguments: list[str | bytes] = [str(self.writer_epoch), str(first)]
        for record in records:
            record.writer_epoch = self.writer_epoch
            arguments.append(record.SerializeToString())
        verdict, detail = self._patiently(
            lambda: self._append(keys=[self._epoch_key, self._stream_key], args=arguments)
        )
        if verdict == b"ROLLED_BACK":
            raise JournalRolledBackError(
                f"the journal in {self._where} ends at position {int(detail)}, but position "
                f"{first - 1} was acknowledged: Redis was restored from an older copy, or lost "
                "writes. Restore the newer copy, or start a new run"
            )
        self._check_fence(verdict, int(detail))
        self.position = records[-1].position

    def write_base(self, base: journal_pb2.LedgerBase) -> None:
        """Keep the ledger as it was at a position."""
        arguments: list[str | bytes] = [
            str(self.writer_epoch), str(base.position), base.SerializeToString()
        ]  # fmt: skip
        verdict, detail = self._patiently(
            lambda: self._keep_base(keys=[self._epoch_key, self._base_key], args=arguments)
        )
        self._check_fence(verdict, int(detail))
        self.base = base
        self._note()

    def trim(self, before_position: int) -> None:
        """Let events go that are in the base and lie before the position."""
        before = min(before_position, self.base.position + 1 if self.base else 1)
        if before > self._first_position:
            self._patiently(
                lambda: self._redis.xtrim(self._stream_key, minid=f"{before}-0", approximate=False)
            )
            self._first_position = before

    def _check_fence(self, verdict: bytes, epoch: int) -> None:
        if verdict != b"FENCED":
            return
        if epoch < self.writer_epoch:
            raise JournalRolledBackError(
                f"the journal in {self._where} is at epoch {epoch}, but this writer has epoch "
                f"{self.writer_epoch}: Redis was restored from an older copy, or emptied. Restore "
                "the newer copy, or start a new run"
            )
        raise WriterFencedError(
            f"the replay buffer with epoch {epoch} owns this run; this one has {self.writer_epoch}"
        )

    # -- reading -------------------------------------------------------------------------------

    def replay(self, after_position: int = 0) -> Iterator[journal_pb2.JournalRecord]:
        """Read the durable records after a position, in order."""
        position = after_position
        while position < self.position:
            entries = self._range(position + 1, self.position, REPLAY_BATCH)
            if not entries:
                msg = f"the journal in {self._where} has no event {position + 1}"
                raise JournalDamagedError(msg)
            for record in entries:
                if record.position != position + 1:
                    msg = f"the journal in {self._where} has no event {position + 1}"
                    raise JournalDamagedError(msg)
                position = record.position
                yield record

    def read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        """Read single durable records, in the order asked for; trimmed ones are left out."""
        if positions and list(positions) == list(range(positions[0], positions[-1] + 1)):
            return self._range(positions[0], positions[-1], len(positions))

        def fetch() -> list[list[tuple[bytes, dict[bytes, bytes]]]]:
            pipeline = self._redis.pipeline(transaction=False)
            for position in positions:
                pipeline.xrange(self._stream_key, f"{position}-0", f"{position}-0")
            found: list[list[tuple[bytes, dict[bytes, bytes]]]] = pipeline.execute()
            return found

        return [_record(entry) for entries in self._patiently(fetch) for entry in entries]

    def close(self) -> None:
        """Let go of the connections. Who still reads waits for Redis no more."""
        self._is_closed = True
        self._note()
        self._redis.close()

    def _note(self) -> None:
        if self._mark is not None:
            self._mark.write(epoch=self.writer_epoch, position=self.position)

    def _range(self, first: int, last: int, count: int) -> list[journal_pb2.JournalRecord]:
        entries: Any = self._patiently(
            lambda: self._redis.xrange(self._stream_key, f"{first}-0", f"{last}-0", count=count)
        )
        return [_record(entry) for entry in entries]

    def _load_base(self) -> journal_pb2.LedgerBase | None:
        data: Any = self._redis.hget(self._base_key, "data")
        return None if data is None else journal_pb2.LedgerBase.FromString(data)

    def _last_position(self) -> int:
        newest: Any = self._redis.xrevrange(self._stream_key, count=1)
        return int(newest[0][0].split(b"-")[0]) if newest else 0

    def _oldest_position(self) -> int:
        oldest: Any = self._redis.xrange(self._stream_key, count=1)
        return int(oldest[0][0].split(b"-")[0]) if oldest else 1

    # -- Redis as it is --------------------------------------------------------------------------

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Call until Redis answers; a wait with a name.

        Raises:
            UsageError: access is refused, or a setting would lose events.
            NotReadyError: stopped while waiting.

        """
        try:
            return call()
        except RedisError as error:
            trouble = self._trouble(error)
        pause_s = FIRST_PAUSE_S
        with self._waits.waiting(
            JOURNAL_AWAY, owner=f"Redis at {self._where}", ends_when=trouble
        ) as wait:
            while not (self._is_stopping() or self._is_closed):
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                try:
                    return call()
                except RedisError as error:
                    wait.ends_when = self._trouble(error)
        raise NotReadyError(f"told to stop while waiting for the journal in {self._where}")

    def _trouble(self, error: RedisError) -> str:
        """Say what is waited out.

        Raises:
            UsageError: it is nothing to wait for.

        """
        text = str(error)
        if isinstance(error, AuthenticationError | NoPermissionError) or "NOAUTH" in text:
            msg = f"Redis at {self._where} refuses access: {text}; see journal.redis_password_file"
            raise UsageError(msg) from error
        if isinstance(error, _WAITED_OUT) or text.startswith(_DISK_TROUBLE):
            return f"Redis answers again; now: {text or type(error).__name__}"
        msg = f"Redis at {self._where} cannot be used for the journal: {text}"
        raise UsageError(msg) from error

    def _check_connection(self, connection: Any) -> None:
        """Refuse a server that may lose what it acknowledged. Called with every new connection.

        Raises:
            UsageError: by the setting's name.

        """
        connection.on_connect()
        connection.send_command(
            "CONFIG", "GET", "appendonly", "appendfsync", "maxmemory", "maxmemory-policy"
        )
        try:
            found = connection.read_response()
        except BusyLoadingError:
            raise
        except ResponseError as error:
            if self._allow_weak_fsync:
                return
            msg = (
                f"Redis at {self._where} does not show its settings ({error}), so its durability "
                "cannot be checked; journal.allow_weak_fsync accepts that"
            )
            raise UsageError(msg) from error
        if isinstance(found, list):  # as the older protocol gives a map
            found = dict(zip(found[::2], found[1::2], strict=True))
        settings = {_text(key): _text(value) for key, value in found.items()}
        durable = settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always"
        if not durable and not self._allow_weak_fsync:
            msg = (
                f"Redis at {self._where} has appendonly {settings.get('appendonly')}, appendfsync "
                f"{settings.get('appendfsync')}: a killed Redis would lose acknowledged events. Set "
                "`appendonly yes` and `appendfsync always`, or accept the loss with "
                "journal.allow_weak_fsync"
            )
            raise UsageError(msg)
        if (
            settings.get("maxmemory", "0") != "0"
            and settings.get("maxmemory-policy") != "noeviction"
        ):
            msg = (
                f"Redis at {self._where} has maxmemory-policy {settings.get('maxmemory-policy')}: it "
                "may evict the journal. Set `maxmemory-policy noeviction`"
            )
            raise UsageError(msg)


def _record(entry: tuple[bytes, dict[bytes, bytes]]) -> journal_pb2.JournalRecord:
    return journal_pb2.JournalRecord.FromString(entry[1][b"r"])


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
