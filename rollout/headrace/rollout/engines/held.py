"""A version's files, readable for as long as they are wanted, whatever their writer does.

The trainer keeps the files of two versions. The start of a vLLM, or sequences that come to their
end, can take longer than two steps: with nothing but the files' names a worker would begin anew
with each version, and never be done. Files that are open stay, on any file system, and nothing is
copied: the folder that is given has links to this process's open files (Linux's /proc), which
vLLM's processes can follow as well. Knows nothing of what the files are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headrace.rollout.engines.base import EngineError
from headrace.rollout.scratch import Scratch


@contextmanager
def held(directory: Path) -> Iterator[Path]:
    """Give a folder with a directory's files, which is there until the block ends.

    Raises:
        EngineError: The directory is gone, or cannot be read.
        UsageError: The folder cannot be made.

    """
    with ExitStack() as stack:
        folder = stack.enter_context(Scratch()).path
        try:
            paths = [path for path in directory.rglob("*") if path.is_file()]
            for path in paths:
                file = stack.enter_context(path.open("rb"))
                link = folder / path.relative_to(directory)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        except OSError as error:
            raise EngineError(f"{directory} cannot be read: {error}") from error
        if not paths:
            raise EngineError(f"{directory} was removed by the trainer, which has newer weights")
        yield folder
