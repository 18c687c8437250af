"""Reads weight versions for workers that share no directory with the trainer.

Reads in threads, so that the event loop stays free; the thread that computes is not asked. A
version that is pruned meanwhile is read to the end of the file that was begun. Knows nothing of
gRPC.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import BinaryIO

from headrace.errors import InvalidFieldError, WeightsGoneError
from headrace.weights.directory import name_of
from headrace.weights.manifest import MANIFEST_NAME, parse
from headrace.weights.transfer import CHUNK_BYTES


class WeightsServer:
    """Gives the files of one run's weight versions.

    Args:
        root: where the versions' directories are.
        run_id: the run.

    """

    def __init__(self, root: Path, *, run_id: str) -> None:
        self._root = root
        self._run_id = run_id

    async def read(
        self, lineage: str, version: int, file: str, offset_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file from an offset to its end, in pieces of at most `CHUNK_BYTES`.

        Raises:
            WeightsGoneError: the version is not there.
            InvalidFieldError: it has no such file, or the file ends before the offset.
            WeightsDamagedError: its manifest is none.

        """
        opened = await asyncio.to_thread(self._open, lineage, version, file, offset_bytes)
        try:
            while piece := await asyncio.to_thread(opened.read, CHUNK_BYTES):
                yield piece
        finally:
            opened.close()

    def locate(self, lineage: str, version: int) -> Path:
        """Find a version's directory.

        Raises:
            WeightsGoneError: the version is not there.

        """
        # These names come from another machine and make a path here.
        if re.fullmatch(r"[A-Za-z0-9.-]+", lineage):
            directory = self._root / name_of(self._run_id, lineage, version)
            if directory.is_dir():
                return directory
        raise _gone(lineage, version)

    def _open(self, lineage: str, version: int, file: str, offset_bytes: int) -> BinaryIO:
        directory = self.locate(lineage, version)
        try:
            manifest = parse((directory / MANIFEST_NAME).read_bytes(), source=str(directory))
            if file != MANIFEST_NAME and file not in manifest.files:
                raise InvalidFieldError("file", f"version {version} has no file {file!r}")
            opened = (directory / file).open("rb")
        except FileNotFoundError as error:  # pruned, or never written
            raise _gone(lineage, version) from error
        size_bytes = os.fstat(opened.fileno()).st_size
        if not 0 <= offset_bytes <= size_bytes:
            opened.close()
            raise InvalidFieldError("offset_bytes", f"{file} has {size_bytes} bytes")
        opened.seek(offset_bytes)
        return opened


def _gone(lineage: str, version: int) -> WeightsGoneError:
    return WeightsGoneError(
        f"version {version} of {lineage!r} is not kept any more; ask for the newest"
    )
