"""How far a rehearsal is, in words, and what it does while no step is done."""

from __future__ import annotations

from collections.abc import Collection

from headrace.client.resumes import is_open, resume_in_words
from headrace.v1 import replay_pb2


def progress_in_words(status: replay_pb2.GetReplayStatusResponse, starting: Collection[str]) -> str:
    """Say it.

    Args:
        status: What the replay buffer said last; an empty one before it said anything.
        starting: The processes that have not announced themselves yet.

    """
    if not status.total_steps:
        return _beginning(starting) or "opening the data set"
    doing = _doing(status, starting)
    done = f"step {status.committed_step}/{status.total_steps}"
    return f"{done}: {doing}" if doing else done


def _doing(status: replay_pb2.GetReplayStatusResponse, starting: Collection[str]) -> str:
    if status.HasField("resume") and not is_open(status.resume):
        return resume_in_words(status.resume)
    if status.HasField("snapshot"):
        return f"saving step {status.snapshot.step}"
    if status.committed_step:
        return ""
    if not status.HasField("latest_weights"):
        return _beginning(starting) or "the trainer makes its model and publishes weights 0"
    if status.counts.sampled:
        return "the first step is being trained"
    return f"the first rollouts are being made, {status.counts.finished} groups are finished"


def _beginning(starting: Collection[str]) -> str:
    return f"starting {', '.join(sorted(starting))}" if starting else ""
