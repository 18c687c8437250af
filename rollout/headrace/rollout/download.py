"""Gets weight versions from the trainer, file by file, and goes on where a stream broke.

    manifest.json ─► is its SHA-256 the published one? ─► each file it names ─► is its SHA-256 right?

What is not right is thrown away, and the next try gets it anew; what is right stays. Knows
nothing of engines: what it returns is a directory as the trainer wrote it.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from headrace.errors import HeadraceError, UsageError
from headrace.log import get_logger
from headrace.rpc.failures import detail_of, failure_of, is_worth_repeating
from headrace.v1 import prompt_pb2
from headrace.v1 import trainer_pb2 as pb
from headrace.weights.document import WeightsDamagedError
from headrace.weights.manifest import MANIFEST_NAME, Manifest, parse
from headrace.weights.transfer import MAX_MANIFEST_BYTES

if TYPE_CHECKING:
    from headrace.v1 import trainer_pb2_grpc

STREAM_S: Final = 30.0
"""Deadline of one stream. A longer file takes several: each begins where the one before ended."""

log = get_logger()


class DownloadError(HeadraceError):
    """This version cannot be had: it is gone, or what came is not it."""


class TrainerAwayError(HeadraceError):
    """The trainer does not answer. What has been received is kept."""


@dataclass
class _File:
    """A file on its way."""

    path: Path
    name: str
    """As the manifest has it."""
    limit_bytes: int
    """More than this cannot be right."""
    received_bytes: int = 0
    is_complete: bool = False
    _hash: Any = field(default_factory=hashlib.sha256)

    def append(self, data: bytes) -> None:
        """Write a piece. Runs on a thread; if it fails, the same piece may come again."""
        with self.path.open("r+b") as file:
            file.seek(self.received_bytes)
            file.write(data)
        self._hash.update(data)
        self.received_bytes += len(data)

    @property
    def sha256(self) -> str:
        """Of what was received."""
        return str(self._hash.hexdigest())


class Downloads:
    """The version that this worker has got, or is getting.

    Args:
        trainer: who gives them.
        root: a folder that is this worker's own.
        now: seconds of a monotonic clock.

    """

    def __init__(
        self,
        trainer: trainer_pb2_grpc.TrainerServiceAsyncStub,
        root: Path,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer = trainer
        self._root = root
        self._now = now
        self._files: dict[Path, _File] = {}

    async def get(
        self, weights: prompt_pb2.PublishedWeights, *, without: Collection[str] = ()
    ) -> prompt_pb2.PublishedWeights:
        """Get a version, and return it with the directory that it lies in; remove all others.

        Called again, after an error or with fewer files left out (`without`), it goes on with what
        is there.

        Raises:
            DownloadError: It is gone, or a file is not what was published.
            TrainerAwayError: The trainer does not answer.
            UsageError: The trainer does not speak with this worker.

        """
        begun = self._now()
        directory = self._root / _folder_name(weights)
        try:
            await asyncio.to_thread(self._make_room, directory)
            manifest = await self._manifest(weights, directory)
            wanted = {name: entry for name, entry in manifest.files.items() if name not in without}
            for name, entry in wanted.items():
                path = directory / name
                await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
                await self._get_file(weights.id, path, name, entry.size_bytes)
                self._check(path, name, entry.sha256)
        except OSError as error:
            raise DownloadError(f"weights cannot be kept in {directory}: {error}") from error
        size_bytes = sum(entry.size_bytes for entry in wanted.values())
        log.info(
            "weights_downloaded",
            version=weights.id.version,
            size_bytes=size_bytes,
            seconds=round(self._now() - begun, 3),
        )
        return prompt_pb2.PublishedWeights(
            id=weights.id, uri=str(directory), checksum=weights.checksum
        )

    async def distrust(self, weights: prompt_pb2.PublishedWeights) -> None:
        """Read a version again, and forget the files that are not what was received."""
        directory = self._root / _folder_name(weights)
        for path, file in list(self._files.items()):
            if directory in path.parents and await asyncio.to_thread(_sha256, path) != file.sha256:
                del self._files[path]

    def _make_room(self, directory: Path) -> None:
        """Have nothing but this version. Its predecessor is in the engine, and needs no files."""
        for path in self._root.iterdir():
            if path != directory:
                shutil.rmtree(path, ignore_errors=True)
        self._files = {
            path: file for path, file in self._files.items() if directory in path.parents
        }
        directory.mkdir(exist_ok=True)

    async def _manifest(self, weights: prompt_pb2.PublishedWeights, directory: Path) -> Manifest:
        path = directory / MANIFEST_NAME
        await self._get_file(weights.id, path, MANIFEST_NAME, None)
        self._check(path, MANIFEST_NAME, weights.checksum)
        data = await asyncio.to_thread(path.read_bytes)
        try:
            return parse(data, source=f"version {weights.id.version} of the trainer")
        except WeightsDamagedError as error:
            raise DownloadError(str(error)) from error

    async def _get_file(
        self, weights: prompt_pb2.WeightsId, path: Path, name: str, size_bytes: int | None
    ) -> None:
        """Receive what is missing of a file, of a size that may not be known."""
        file = self._files.get(path)
        if file is None:
            limit_bytes = MAX_MANIFEST_BYTES if size_bytes is None else size_bytes
            await asyncio.to_thread(path.write_bytes, b"")
            file = self._files[path] = _File(path, name, limit_bytes, is_complete=size_bytes == 0)
        while not file.is_complete:
            before = file.received_bytes
            try:
                await self._stream(weights, file)
            except grpc.aio.AioRpcError as failed:
                self._judge(failed, name, progress=file.received_bytes > before)
                continue
            if size_bytes is not None and file.received_bytes < size_bytes:
                raise self._refused(
                    path, f"{name}: ends after {file.received_bytes} of {size_bytes} bytes"
                )
            file.is_complete = True

    async def _stream(self, weights: prompt_pb2.WeightsId, file: _File) -> None:
        request = pb.GetWeightsRequest(id=weights, file=file.name, offset_bytes=file.received_bytes)
        call = self._trainer.GetWeights(request, timeout=STREAM_S)
        try:
            async for response in call:
                if file.received_bytes + len(response.data) > file.limit_bytes:
                    raise self._refused(
                        file.path, f"{file.name}: more than {file.limit_bytes} bytes"
                    )
                await asyncio.to_thread(file.append, response.data)
        finally:
            call.cancel()

    def _judge(self, failed: grpc.aio.AioRpcError, name: str, *, progress: bool) -> None:
        """Return if the stream is to go on at once."""
        if is_worth_repeating(failed):
            if not progress:
                raise TrainerAwayError(detail_of(failed)) from failed
            log.info("weights_stream_broke", file=name, error=detail_of(failed))
            return
        error = failure_of(failed, "trainer")
        if isinstance(error, UsageError):
            raise error from failed
        raise DownloadError(f"{name}: {error}") from failed

    def _check(self, path: Path, name: str, sha256: str) -> None:
        found = self._files[path].sha256
        if found != sha256:
            raise self._refused(path, f"{name}: SHA-256 is {found}, {sha256} was published")

    def _refused(self, path: Path, why: str) -> DownloadError:
        del self._files[path]
        return DownloadError(why)


def _folder_name(weights: prompt_pb2.PublishedWeights) -> str:
    # Of hexadecimal digits only, whatever the names in it are.
    name = f"{weights.id.lineage}/{weights.checksum}"
    return f"v{weights.id.version:08d}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
