"""A version's files, readable for as long as they are wanted, whatever their writer does.

The trainer keeps the files of two versions. The start of a vLLM, or sequences that come to their
end, can take longer than two steps: with nothing but the files' names a worker would begin anew
with each version, and never be done. Files that are open stay, on any file system, and nothing is
copied: the folder that is given has links to this process's open files (Linux's /proc), which
vLLM's processes can follow as well. Knows nothing of what the files are.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from headrace.errors import UsageError
from headrace.rollout.engines.base import EngineError
from headrace.rollout.scratch import Scratch


@asynccontextmanager
async def held(directory: Path, *, parent: Path | None = None) -> AsyncIterator[Path]:
    """Give a folder with a directory's files, which is there until the block ends.

    Args:
        directory: Whose files.
        parent: Where the folder is made; None = the system's folder for temporary files.

    Raises:
        EngineError: The directory is gone, or cannot be read.
        UsageError: The folder cannot be made, or can have no links.

    """
    stack = ExitStack()
    opening = asyncio.create_task(asyncio.to_thread(_open, directory, parent, stack))
    try:
        yield await asyncio.shield(opening)
    finally:
        # A thread goes on when nobody waits for it any more: what it opens is closed behind it.
        await asyncio.gather(opening, return_exceptions=True)
        await asyncio.to_thread(stack.close)


def _open(directory: Path, parent: Path | None, stack: ExitStack) -> Path:
    """Open all files, and link to them from a folder; the stack closes them and removes it."""
    folder = stack.enter_context(Scratch(parent)).path
    try:
        paths = [path for path in directory.rglob("*") if path.is_file()]
        files = [stack.enter_context(path.open("rb")) for path in paths]
    except OSError as error:
        raise EngineError(f"{directory} cannot be read: {error}") from error
    if not paths:
        raise EngineError(f"{directory} was removed by the trainer, which has newer weights")
    try:
        for path, file in zip(paths, files, strict=True):
            link = folder / path.relative_to(directory)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
    except OSError as error:
        raise UsageError(
            f"weights.tmpdir: no links to files can be made in {folder.parent}: {error.strerror}; "
            "give a folder on another file system"
        ) from error
    return folder
