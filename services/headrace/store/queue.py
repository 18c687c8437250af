"""What the store asks of TransferQueue, each call with a deadline.

A call that is not answered in time is given up; whether it was carried out is then unknown, which
is why the store's keys are idempotent. TransferQueue's silent failures become loud here: it drops
missing keys from a batch, and reports a put as done that its catalogue has not recorded.

It writes and reads checkpoints of itself: pickles, without a checksum, and consistent only if
nobody writes meanwhile. Who calls sees to that.

Knows values as bytes under keys; not what they mean, nor which ought to be there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from headrace.errors import HeadraceError, NotReadyError
from headrace.rpc.waits import Waits

PARTITION = "train"
_PROBE_PARTITION = "probe"
_FIELD = "value"
PROBE_TIMEOUT_S = 10.0
"""A probe is tiny; its deadline is not longer than this, however long a put may take."""
CHECKPOINT_BYTES_PER_S = 10 * 2**20
"""How slow a disk may be: a checkpoint may take as long as its bytes take then."""
CONTROLLER_FILE = "controller_state.pkl"
"""The catalogue, in TransferQueue's checkpoints."""
METADATA_FILE = "metadata.json"
"""What they say about themselves."""

Tag: TypeAlias = Mapping[str, str | int]
"""What a tool sees beside a key. Never read back as truth."""

_T = TypeVar("_T")


class RowsUnreadableError(HeadraceError):
    """TransferQueue answered, but not with every row that was asked for."""


class RefusedError(NotReadyError):
    """TransferQueue answered with an error. Whether it has carried out a part of it is unknown."""


class TransferQueue:
    """Puts, reads and clears rows of one `bytes` value each.

    All methods belong to one event loop.

    Args:
        client: An AsyncTransferQueueClient.
        unit_count: Storage units behind it.
        timeout_s: Deadline of each call.
        waits: Where the waits for answers are registered.

    """

    def __init__(self, client: Any, *, unit_count: int, timeout_s: float, waits: Waits) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._waits = waits
        self._probe_keys = [f"unit{position}" for position in range(unit_count)]
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_retired = False

    async def retire(self) -> None:
        """Refuse all calls from now on, and wait for those in flight; then it may be closed."""
        self._is_retired = True
        await self._idle.wait()

    async def put(self, keys: Sequence[str], values: Sequence[bytes], tags: Sequence[Tag]) -> None:
        """Write rows in one batch; `kv_batch_put`, without its globals.

        That it returns does not mean that the rows are there: see `confirm`. A key that is there
        is overwritten.

        Raises:
            NotReadyError: no answer in time, or an error. What was written is unknown.

        """
        await self._answered("put", self._put(PARTITION, keys, values, tags))

    async def confirm(self, keys: Sequence[str]) -> bool:
        """Ask the catalogue whether it has each of the keys, and each of them ready.

        Raises:
            NotReadyError: no answer in time, or an error.

        """
        return await self._answered("confirm", self._metadata_of(PARTITION, keys)) is not None

    async def read(self, keys: Sequence[str]) -> list[bytes]:
        """Read the values of all keys, in their order.

        Raises:
            RowsUnreadableError: at least one of them is not there, not ready or unreadable.
            NotReadyError: no answer in time.

        """
        return await self._answered("read", self._read(PARTITION, keys))

    async def read_what_is_there(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Read a batch; if it does not come whole, find out by halves which rows are bad.

        TransferQueue refuses, or silently shortens, a batch with one bad row in it.

        Raises:
            NotReadyError: no answer in time.

        """
        try:
            return dict(zip(keys, await self.read(keys), strict=True))
        except RowsUnreadableError:
            if len(keys) == 1:
                return {}
        middle = len(keys) // 2
        first = await self.read_what_is_there(keys[:middle])
        return first | await self.read_what_is_there(keys[middle:])

    async def clear(self, keys: Sequence[str]) -> None:
        """Remove rows. Keys that are not there are ignored.

        Raises:
            NotReadyError: no answer in time, or an error. What was removed is unknown.

        """
        await self._answered("clear", self._clear(PARTITION, keys))

    async def keys(self) -> list[str]:
        """Name what is in the catalogue, ready or not.

        Raises:
            NotReadyError: no answer in time, or an error.

        """
        listed = await self._answered("list", self._client.async_kv_list(PARTITION))
        return list(listed.get(PARTITION, {}))

    async def save(
        self, directory: Path, *, size_bytes: int, metadata: Mapping[str, str | int]
    ) -> None:
        """Write a checkpoint into an empty directory: what `save_checkpoint` writes.

        That one blocks, and has no deadline. Rows must not be written meanwhile.

        Args:
            directory: Where to.
            size_bytes: About how large it will be; it may take the longer for it.
            metadata: What is to stand in it for its readers.

        Raises:
            NotReadyError: no answer in time, or an error: the disk is full.
            OSError: the disk is full.

        """
        controller_file = str(directory / CONTROLLER_FILE)
        timeout_s = self._timeout_s + size_bytes / CHECKPOINT_BYTES_PER_S

        async def write() -> None:
            await self._client.async_save_controller_checkpoint(controller_file)
            await self._client.async_save_storage_checkpoint(str(directory))

        await self._answered("save", write(), timeout_s=timeout_s)
        header = json.dumps({"storage_saved": True, "user_metadata": dict(metadata)}, indent=2)
        await asyncio.to_thread((directory / METADATA_FILE).write_text, header)

    async def load(self, directory: Path, *, size_bytes: int) -> None:
        """Take everything from a checkpoint, made with as many storage units, as a fresh one.

        It runs what stands in the files, which have to be trusted and whole.

        Raises:
            RefusedError: it does not take them: files are missing, or not what they should be.
            NotReadyError: no answer in time.
                After either, what it holds is unknown.

        """
        controller_file = str(directory / CONTROLLER_FILE)
        timeout_s = self._timeout_s + size_bytes / CHECKPOINT_BYTES_PER_S

        async def read() -> None:
            await self._client.async_load_storage_checkpoint(str(directory))
            await self._client.async_load_controller_checkpoint(controller_file)

        try:
            await self._answered("load", read(), timeout_s=timeout_s)
        except FileNotFoundError as error:
            raise RefusedError(f"TransferQueue cannot load what is not there: {error}") from error

    async def open_probe(self) -> None:
        """Write the rows that `probe` reads: one on each unit. To be called before any put.

        Raises:
            NotReadyError: no answer in time, or an error.

        """
        values = [key.encode() for key in self._probe_keys]
        tags: list[Tag] = [{} for _ in values]
        await self._answered("probe", self._put(_PROBE_PARTITION, self._probe_keys, values, tags))
        await self.probe()

    async def probe(self) -> None:
        """Go once to the controller and to each storage unit.

        Raises:
            RowsUnreadableError: one of them has lost its rows.
            NotReadyError: one of them does not answer.

        """
        await self._answered(
            "probe",
            self._read(_PROBE_PARTITION, self._probe_keys),
            timeout_s=min(PROBE_TIMEOUT_S, self._timeout_s),
        )

    async def _put(
        self, partition: str, keys: Sequence[str], values: Sequence[bytes], tags: Sequence[Tag]
    ) -> None:
        from tensordict import TensorDict
        from tensordict.tensorclass import NonTensorStack

        metadata = await self._client.async_kv_retrieve_meta(
            keys=list(keys), partition_id=partition, create=True
        )
        if metadata.size != len(keys):
            msg = f"TransferQueue made {metadata.size} rows for {len(keys)} keys"
            raise RuntimeError(msg)
        metadata.update_custom_meta([dict(tag) for tag in tags])
        rows = TensorDict({_FIELD: NonTensorStack(*values)}, batch_size=len(keys))
        await self._client.async_put(rows, metadata)

    async def _metadata_of(self, partition: str, keys: Sequence[str]) -> Any | None:
        """Return the rows' metadata; None unless every one is there and ready."""
        metadata = await self._client.async_kv_retrieve_meta(
            keys=list(keys), partition_id=partition, create=False
        )
        # A row that was reserved but not written takes its field away from the whole batch.
        complete = metadata.size == len(keys) and _FIELD in metadata.field_names
        return metadata if complete and metadata.is_ready else None

    async def _read(self, partition: str, keys: Sequence[str]) -> list[bytes]:
        metadata = await self._metadata_of(partition, keys)
        if metadata is None:
            raise RowsUnreadableError(f"not every one of {len(keys)} rows is in the catalogue")
        try:
            rows = await self._client.async_get_data(metadata.select_fields([_FIELD]))
        except (KeyError, RuntimeError, ValueError) as error:
            raise RowsUnreadableError(f"a storage unit lacks a row: {error}") from error
        values = list(rows[_FIELD])
        if len(values) != len(keys) or not all(isinstance(value, bytes) for value in values):
            raise RowsUnreadableError(f"{len(values)} values came for {len(keys)} keys")
        return values

    async def _clear(self, partition: str, keys: Sequence[str]) -> None:
        metadata = await self._client.async_kv_retrieve_meta(
            keys=list(keys), partition_id=partition, create=False
        )
        if metadata.size > 0:
            await self._client.async_clear_samples(metadata)

    async def _answered(
        self, what: str, call: Coroutine[Any, Any, _T], *, timeout_s: float | None = None
    ) -> _T:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if self._is_retired:
            call.close()
            raise NotReadyError("another TransferQueue has taken this one's place")
        self._in_flight += 1
        self._idle.clear()
        try:
            with self._waits.waiting(
                f"TransferQueue: {what}",
                owner="transfer_queue",
                ends_when="controller and storage units answer, or the call's deadline passes",
                stall_after_s=timeout_s,
            ):
                async with asyncio.timeout(limit_s):
                    return await call
        except TimeoutError as error:
            raise NotReadyError(
                f"TransferQueue did not answer a {what} within {limit_s:g} s"
            ) from error
        except (KeyError, RuntimeError, ValueError) as error:
            raise RefusedError(f"TransferQueue answered a {what} with an error: {error}") from error
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()
