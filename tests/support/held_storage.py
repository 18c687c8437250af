"""A storage whose driver hangs for as long as a test wants: `held://`, below it the memory."""

from __future__ import annotations

import threading
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class HeldStorage(MemoryFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """Begins no file while `open_for_writing` is not set."""

    protocol = "held"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    open_for_writing = threading.Event()
    calls: list[tuple[Any, ...]] = []
    """Files that are begun, held or not."""

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "r" not in mode:
            self.calls.append(("file", path))
            self.open_for_writing.wait()
        return super()._open(path, mode, **options)


fsspec.register_implementation("held", HeldStorage, clobber=True)
