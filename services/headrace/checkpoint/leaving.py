"""What becomes of checkpoints that are not of the line on which a run goes on. Blocks."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.lines import is_on_line
from headrace.log import get_logger
from headrace.v1.resume_pb2 import Lineage, ResumeState

log = get_logger()


def leave_behind(
    directory: CheckpointDirectory, lineages: Sequence[Lineage], state: ResumeState
) -> None:
    """Move aside what is not of the new line's past, and point to what it goes on from.

    Safe to repeat.

    Args:
        directory: The run's checkpoints.
        lineages: The time lines up to the new one, oldest first.
        state: The resume that has opened it.

    Raises:
        OSError: the storage cannot be used.

    """
    for found in directory.find():
        manifest = found.manifest
        if manifest is not None:
            stays = is_on_line(manifest.lineage, found.step, lineages)
        else:  # nobody can tell; what a step of the new line will want goes
            stays = found.step < state.step
        if not stays:
            line = manifest.lineage if manifest else state.parent
            directory.move_aside(found, line)
            log.info("checkpoint_abandoned", step=found.step, lineage=line)
    here = directory.storage.list_steps()
    directory.point_to(state.step if state.step in here else 0)
