"""Folders for files on their way to a checkpoint, or from one, on the store's own disk.

They lie in the store's folder of the run directory, and are gone afterwards: after a crash at the
next start.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

_PREFIX = "passing-"


class Scratch:
    """The folders below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def clean(self) -> None:
        """Remove what a crash has left. Blocks."""
        for left in self._directory.glob(f"{_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """Give a fresh, empty folder; it is removed in the end. Raises OSError."""
        path = self._directory / f"{_PREFIX}{uuid4().hex}"
        await asyncio.to_thread(path.mkdir, parents=True)
        try:
            yield path
        finally:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
