"""The list of a run's checkpoints, for people."""

from __future__ import annotations

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.v1.checkpoint_pb2 import Checkpoint


def list_checkpoints(directory: CheckpointDirectory, *, read: bool) -> list[Checkpoint]:
    """List them: newest first, those that a resume left behind last.

    Args:
        directory: Where they are.
        read: Whether every byte is read and compared, not only the sizes.

    Raises:
        OSError: the storage cannot be reached.

    """
    latest = directory.latest()
    here = [found.message(is_latest=found.step == latest) for found in directory.find(read=read)]
    return here + [found.message() for found in directory.find_abandoned(read=read)]
