"""How far a rehearsal is, in words, and what it does while no step is done."""

from __future__ import annotations

from collections.abc import Collection

from headrace.client.resumes import is_open, resume_in_words
from headrace.v1 import replay_pb2


def progress_in_words(status: replay_pb2.GetReplayStatusResponse, starting: Collection[str]) -> str:
    """Say it.

    Args:
        status: What the replay buffer said last; an empty one before it said anything.
        starting: The processes that are being started, for the first time or again.

    """
    doing = f"starting {', '.join(sorted(starting))}" if starting else _doing(status)
    if not status.total_steps:
        return doing
    done = f"step {status.committed_step}/{status.total_steps}"
    return f"{done}: {doing}" if doing else done


def _doing(status: replay_pb2.GetReplayStatusResponse) -> str:
    if not status.total_steps:
        return "opening the data set"
    if status.HasField("resume") and not is_open(status.resume):
        return resume_in_words(status.resume)
    if status.HasField("snapshot"):
        return f"saving step {status.snapshot.step}"
    if status.committed_step:
        return "ending the run" if status.committed_step == status.total_steps else ""
    if not status.HasField("latest_weights"):
        return "the trainer makes its model and publishes weights 0"
    if status.counts.sampled:
        return "the first step is being trained"
    return f"the first rollouts are being made, {status.counts.finished} groups are finished"
