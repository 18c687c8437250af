"""What the store looks at in a value before it takes it.

The key that lies inside the value must be the one that it is put under: from then on, the
checksum stands for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from headrace.errors import InvalidFieldError
from headrace.store.queue import Tag
from headrace.trajectory.chunks import Value, verify
from headrace.trajectory.key import TrajectoryKey
from headrace.v1.trajectory_pb2 import Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """A value that was checked, and what tools see of it."""

    value: Value
    """Key, bytes and checksum."""
    tag: Tag
    """Status, versions and lengths."""

    @property
    def size_bytes(self) -> int:
        """Size of the value."""
        return len(self.value.data)


def inspect(value: Value) -> Row:
    """Check a value as it arrived.

    Raises:
        ChecksumMismatchError: the bytes did not arrive whole.
        InvalidFieldError: a malformed key, not a trajectory, or one with another key.

    """
    try:
        TrajectoryKey.parse(value.key)
    except ValueError as error:
        raise InvalidFieldError("key", str(error)) from error
    verify(value)
    try:
        trajectory = Trajectory.FromString(value.data)
    except DecodeError as error:
        raise InvalidFieldError("data", f"{value.key} is not a Trajectory: {error}") from error
    if trajectory.key != value.key:
        raise InvalidFieldError("key", f"{value.key} holds the trajectory {trajectory.key!r}")
    return Row(value=value, tag=_tag_of(trajectory))


def _tag_of(trajectory: Trajectory) -> Tag:
    versions = [span.version for span in trajectory.weight_spans]
    return {
        "status": "finished",
        "prompt_len": len(trajectory.prompt_token_ids),
        "response_len": len(trajectory.response_token_ids),
        "min_version": min(versions, default=0),
        "max_version": max(versions, default=0),
    }
