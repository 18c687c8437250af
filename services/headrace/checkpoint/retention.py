"""Which checkpoints are kept, and what is left of those that are not.

The newest complete ones of the run's line are. What is older than the oldest of them goes, whole or
not: a newer complete one covers it. Of those that a resume left behind the newest few are kept, for
people; no run goes on from them by itself. Of a snapshot that was given up nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.checkpoint.directory import CheckpointDirectory, Found
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


def remove_given_up(directory: CheckpointDirectory, given_up: Mapping[int, str]) -> list[int]:
    """Remove what snapshots have left that were given up, and name their steps.

    Only a directory without any manifest is one's: a checkpoint that was damaged is left to people.

    Args:
        directory: The run's checkpoints.
        given_up: Snapshots by step. None of them is under way.

    Raises:
        OSError: as `remove_failed`.

    """
    left = [step for step in directory.storage.list_steps() if step in given_up]
    unfinished = [step for step in left if directory.look(step).unfinished]
    for step in unfinished:
        directory.remove(step)
    return unfinished


def remove_abandoned(directory: CheckpointDirectory, step: int, *, keep: int | None) -> list[Found]:
    """Remove all but the newest of the checkpoints that a resume left behind, and name them.

    What is of the past of the run's line stays: the run was told to go on from there.

    Args:
        directory: The run's checkpoints.
        step: The newest complete one of its line.
        keep: How many are kept; None = all.

    Raises:
        OSError: as `remove_failed`.

    """
    newest = directory.look(step).manifest
    if keep is None or newest is None:
        return []

    def is_needed(found: Found) -> bool:
        manifest = found.manifest
        return manifest is not None and is_on_line(manifest.lineage, found.step, newest.lineages)

    def age(found: Found) -> float:
        return -found.manifest.unix_time_s if found.manifest else 0.0

    abandoned = [found for found in directory.find_abandoned() if not is_needed(found)]
    old = sorted(abandoned, key=age)[keep:]
    for found in old:
        directory.remove_abandoned(found)
    return old
