"""Prompt groups as the benchmark makes them, at every stage of their life."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2

BATCH_SIZE: Final = 64
"""Groups of a step."""
LINEAGE: Final = "bench"
STORE: Final = "store"
WORKER: Final = "worker"
PAYLOAD: Final = feeder_pb2.PromptPayload(
    token_ids=range(32), text="sort 4 1 3 2" * 8, answer="1 2 3 4", data_source="bench"
)
WEIGHTS: Final = prompt_pb2.PublishedWeights(
    id=prompt_pb2.WeightsId(lineage=LINEAGE, version=0), uri="none", checksum="none"
)


def new_prompts(
    first_ordinal: int, count: int, payload: feeder_pb2.PromptPayload = PAYLOAD
) -> list[replay_pb2.NewPrompt]:
    """Make prompts as a feeder would."""
    return [
        replay_pb2.NewPrompt(uid=f"b{first_ordinal + i}", payload=payload) for i in range(count)
    ]


def completed(uid: str, attempt: int, sessions: Sequence[int]) -> list[replay_pb2.CompletedSession]:
    """Report sessions as a worker would."""
    lease = replay_pb2.LeaseRef(uid=uid, attempt=attempt)
    return [
        replay_pb2.CompletedSession(
            lease=lease,
            record=prompt_pb2.SessionRecord(
                session=session, trajectory_count=1, size_bytes=1024, reward=0.5
            ),
        )
        for session in sessions
    ]
