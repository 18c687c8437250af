"""Trajectories as the store holds them now, read without an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import grpc

from headrace.client.asking import Pauses, is_outage, refusal
from headrace.client.frames import needs
from headrace.client.queries import Queries
from headrace.client.words import state_name
from headrace.errors import UsageError
from headrace.trajectory.chunks import Joiner
from headrace.trajectory.client import opened
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import prompt_pb2, store_pb2, store_pb2_grpc
from headrace.v1.trajectory_pb2 import FinishReason, Trajectory

if TYPE_CHECKING:
    import pandas as pd

    from headrace.tokenizer import Tokenizer

KEYS_PER_CALL: Final = 256
TIMEOUT_S: Final = 60.0
"""How long one call may take."""
COLUMNS: Final = (
    "uid",
    "session",
    "index",
    "state",
    "step",
    "prompt",
    "response",
    "reward",
    "min_version",
    "max_version",
    "finish_reason",
    "prompt_tokens",
    "response_tokens",
)


def groups_with_text(
    queries: Queries, step: int | None, *, committed: int
) -> list[prompt_pb2.PromptGroup]:
    """Give the groups whose trajectories are in the store, by ordinal.

    Args:
        queries: Asks the ledger.
        step: Only those sampled for it; None = finished and sampled ones.
        committed: The last committed step.

    Raises:
        UsageError: the step is committed.

    """
    if step is not None and step <= committed:
        raise UsageError(
            f"step {step} is committed, and a committed step's trajectories are deleted; "
            f"there are those of finished groups (step=None) and of step {committed + 1}"
        )
    groups = list(queries.prompts(state="sampled"))
    if step is None:
        groups += queries.prompts(state="finished")
    else:
        groups = [group for group in groups if group.step == step]
    return sorted(groups, key=lambda group: group.ordinal)


def keys_of(group: prompt_pb2.PromptGroup) -> Iterator[str]:
    """Name a group's trajectories, in order."""
    for record in group.sessions:
        for index in range(record.trajectory_count):
            yield str(
                TrajectoryKey(group.uid, record.session, index, record.lineage, record.attempt)
            )


def fetch(
    channel: grpc.Channel, keys: Sequence[str], *, patience_s: float = 0.0
) -> dict[str, Trajectory]:
    """Read trajectories from the store; those that are not there any more are left out.

    Raises:
        UsageError: the store does not answer.
        WireError: it refuses.

    """
    stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
    found: dict[str, Trajectory] = {}
    for start in range(0, len(keys), KEYS_PER_CALL):
        request = store_pb2.GetTrajectoriesRequest(keys=keys[start : start + KEYS_PER_CALL])
        pauses = Pauses(patience_s)
        while True:
            try:
                found |= _receive(stub.GetTrajectories(request, timeout=TIMEOUT_S))
                break
            except grpc.RpcError as failed:
                if not is_outage(failed) or not pauses.wait():
                    raise refusal(failed, "the trajectory store") from None
    return found


def _receive(responses: Iterable[store_pb2.GetTrajectoriesResponse]) -> dict[str, Trajectory]:
    joiner = Joiner()
    found = {}
    for response in responses:
        for chunk in response.chunks:
            value = joiner.add(chunk)
            trajectory = opened(value) if value is not None else None
            if trajectory is not None:
                found[trajectory.key] = trajectory
    joiner.finish()
    return found


def trajectories_frame(
    groups: Iterable[prompt_pb2.PromptGroup],
    found: Mapping[str, Trajectory],
    tokenizer: Tokenizer | None,
) -> pd.DataFrame:
    """One row per trajectory, by group and session; those that were not found are left out.

    Without a tokenizer, `prompt` and `response` are lists of token ids.
    """
    rows = [
        _row(group, TrajectoryKey.parse(key), found[key], tokenizer)
        for group in groups
        for key in keys_of(group)
        if key in found
    ]
    frame: pd.DataFrame = needs("pandas").DataFrame(rows, columns=list(COLUMNS))
    return frame


def _row(
    group: prompt_pb2.PromptGroup,
    key: TrajectoryKey,
    trajectory: Trajectory,
    tokenizer: Tokenizer | None,
) -> tuple[object, ...]:
    prompt, response = list(trajectory.prompt_token_ids), list(trajectory.response_token_ids)
    versions = [span.version for span in trajectory.weight_spans]
    reason = FinishReason.Name(trajectory.finish_reason).removeprefix("FINISH_REASON_").lower()
    return (
        key.uid,
        key.session,
        key.index,
        state_name(group.state),
        group.step,
        tokenizer.decode(prompt) if tokenizer else prompt,
        tokenizer.decode(response) if tokenizer else response,
        trajectory.reward,
        min(versions, default=-1),
        max(versions, default=-1),
        reason,
        len(prompt),
        len(response),
    )
