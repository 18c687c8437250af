"""All methods that processes of headrace have, whoever serves them."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FileDescriptor

from headrace.v1 import (
    checkpoint_pb2,
    feeder_pb2,
    replay_pb2,
    rollout_pb2,
    store_pb2,
    trainer_pb2,
)

FILES: Final[tuple[FileDescriptor, ...]] = (
    checkpoint_pb2.DESCRIPTOR,
    feeder_pb2.DESCRIPTOR,
    replay_pb2.DESCRIPTOR,
    rollout_pb2.DESCRIPTOR,
    store_pb2.DESCRIPTOR,
    trainer_pb2.DESCRIPTOR,
)
"""What declares them."""

PATHS: Final = frozenset(
    f"/{service.full_name}/{method.name}"
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
)
"""Their names as calls have them: `/headrace.v1.ReplayBufferService/Audit`."""
