"""Takes a trainer's state from a checkpoint. Blocks; runs on the thread that computes."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.checkpoint.storage import fetch
from headrace.log import get_logger
from headrace.trainer import part
from headrace.trainer.actor import Actor
from headrace.trainer.part import LoadedPart, PartDamagedError
from headrace.trainer.state import restore
from headrace.v1.resume_pb2 import CheckpointPart

log = get_logger()


def load(source: CheckpointPart, actor: Actor, *, step: int, scratch: Path) -> LoadedPart:
    """Fetch a part, with its hashes checked, and make the actor what it was.

    Args:
        source: the part.
        actor: changed in place.
        step: the step that it has to be of.
        scratch: a directory for the files; gone afterwards.

    Raises:
        DamagedError, PartDamagedError, ShardsDamagedError: files are missing, or are not what was
            written.
        UsageError: it is of another model.
        OSError: there is no room for the files.

    """
    try:
        fetch(source, scratch)
        found = part.read(scratch / part.folder_of(source))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if found.counters.step != step:
        raise PartDamagedError(f"{source.uri}: it is of step {found.counters.step}, not of {step}")
    for note in restore(actor, found.tensors, found.counters.updates, found.counters.seen):
        log.warning("loaded_with_a_difference", difference=note)
    log.info("loaded", step=step, updates=found.counters.updates, source=source.uri)
    return found
