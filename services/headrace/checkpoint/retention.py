"""Which checkpoints are kept, and what is left of those that are not.

The newest complete ones of the run's line are. What is older than the oldest of them goes, whole or
not: a newer complete one covers it.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.lines import is_on_line


def retained(
    complete: Iterable[int], present: Iterable[int], *, keep: int
) -> tuple[int, list[int]]:
    """Decide.

    Args:
        complete: Steps whose checkpoints are complete, and of the run's line. Not empty.
        present: Steps that have a directory.
        keep: How many complete ones are kept, at least 1.

    Returns:
        The oldest step that is kept, and the steps to be removed, oldest first.

    """
    oldest = sorted(complete, reverse=True)[:keep][-1]
    return oldest, sorted(step for step in present if step < oldest)


def kept(directory: CheckpointDirectory, step: int, *, keep: int) -> tuple[int, list[int]]:
    """Look at the storage and decide, as `retained`, now that a step's checkpoint is complete.

    Raises:
        OSError: the storage cannot be reached.

    """
    newest = directory.look(step).manifest
    lineages = newest.lineages if newest else ()
    complete = [
        found.step
        for found in directory.find(read=False)
        if found.manifest is not None
        and not found.problems
        and found.step <= step
        and is_on_line(found.manifest.lineage, found.step, lineages)
    ]
    return retained(complete or [step], directory.storage.list_steps(), keep=keep)


def remove_failed(directory: CheckpointDirectory, step: int, snapshot_id: str) -> None:
    """Remove what a snapshot has written that failed, and have the pointer name what is there.

    Raises:
        OSError: the storage cannot be reached, or does not let it be removed.

    """
    manifest = directory.look(step).manifest
    if manifest is not None and manifest.snapshot_id != snapshot_id:
        return
    directory.remove(step)
    if directory.latest() == step:
        whole = (found.step for found in directory.find() if found.manifest is not None)
        directory.point_to(max(whole, default=0))
