"""Trajectories of one update as padded tensors.

Knows the shape of trajectories; knows nothing of models, losses or where trajectories come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import HeadraceError
from headrace.v1.trajectory_pb2 import Trajectory

SCHEMA_VERSION = 1


class BadTrajectoryError(HeadraceError):
    """A trajectory, or the mix of them, cannot be trained on. It was stored so: a worker's bug."""


@dataclass(frozen=True)
class Batch:
    """N sequences of at most L tokens, prompt first, padded on the right.

    Tensors that are about predictions have T = L - 1 places: place t is about token t + 1, which
    the model predicts from the tokens up to t. There is no attention mask: the model is causal,
    so that padding on the right is seen by padding only.
    """

    token_ids: torch.Tensor
    """[N, L] int64."""
    lengths: torch.Tensor
    """[N] int64: prompt and response."""
    prompt_lengths: torch.Tensor
    """[N] int64, at least 1."""
    loss_mask: torch.Tensor
    """[N, T] bool: the response tokens that are trained on."""
    behaviour_logprobs: torch.Tensor
    """[N, T] float32: of the distribution that was sampled from; 0 outside of responses."""
    advantages: torch.Tensor
    """[N] float32."""
    temperature: float
    """What all of them were sampled with."""

    def __len__(self) -> int:
        """Count the sequences."""
        return self.token_ids.shape[0]

    def rows(self, indices: torch.Tensor) -> Batch:
        """Take some of the sequences, padded no further than they need."""
        length = int(self.lengths[indices].max())
        return Batch(
            token_ids=self.token_ids[indices, :length],
            lengths=self.lengths[indices],
            prompt_lengths=self.prompt_lengths[indices],
            loss_mask=self.loss_mask[indices, : length - 1],
            behaviour_logprobs=self.behaviour_logprobs[indices, : length - 1],
            advantages=self.advantages[indices],
            temperature=self.temperature,
        )

    def to(self, device: torch.device) -> Batch:
        """Move all tensors."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        return Batch(**moved)

    @property
    def first_place(self) -> int:
        """The first place that is about a response token of any sequence."""
        return int(self.prompt_lengths.min()) - 1


def collate(
    trajectories: Sequence[Trajectory], advantages: npt.NDArray[np.float64], *, pad_id: int
) -> Batch:
    """Make a batch.

    Args:
        trajectories: N of them, at least one.
        advantages: [N].
        pad_id: fills the places after a sequence's end.

    Raises:
        BadTrajectoryError: a trajectory contradicts itself, or temperatures differ.

    """
    for trajectory in trajectories:
        _check(trajectory)
    temperatures = {trajectory.temperature for trajectory in trajectories}
    if len(temperatures) > 1:
        raise BadTrajectoryError(
            f"one update needs one temperature, these were sampled with {sorted(temperatures)}"
        )
    prompts = _lengths([trajectory.prompt_token_ids for trajectory in trajectories])
    responses = _lengths([trajectory.response_token_ids for trajectory in trajectories])
    lengths = prompts + responses
    places = np.arange(int(lengths.max()))
    is_prompt = places < prompts[:, None]
    is_response = (places < lengths[:, None]) & ~is_prompt
    tokens = np.full(is_prompt.shape, pad_id, dtype=np.int64)
    tokens[is_prompt] = _flat([t.prompt_token_ids for t in trajectories], np.int64)
    tokens[is_response] = _flat([t.response_token_ids for t in trajectories], np.int64)
    logprobs = np.zeros(is_prompt.shape, dtype=np.float32)
    logprobs[is_response] = _flat([t.logprobs for t in trajectories], np.float32)
    mask = np.zeros(is_prompt.shape, dtype=np.bool_)
    mask[is_response] = _flat([t.loss_mask for t in trajectories], np.bool_)
    return Batch(
        token_ids=torch.from_numpy(tokens),
        lengths=torch.from_numpy(lengths),
        prompt_lengths=torch.from_numpy(prompts),
        loss_mask=torch.from_numpy(mask[:, 1:]),
        behaviour_logprobs=torch.from_numpy(logprobs[:, 1:]),
        advantages=torch.from_numpy(advantages.astype(np.float32)),
        temperature=temperatures.pop(),
    )


def _check(trajectory: Trajectory) -> None:
    count = len(trajectory.response_token_ids)
    problem = ""
    if trajectory.schema_version != SCHEMA_VERSION:
        problem = f"schema version {trajectory.schema_version}, {SCHEMA_VERSION} is known here"
    elif not trajectory.prompt_token_ids or not count:
        problem = f"{len(trajectory.prompt_token_ids)} prompt and {count} response tokens"
    elif len(trajectory.logprobs) != count or len(trajectory.loss_mask) != count:
        problem = (
            f"{count} response tokens, {len(trajectory.logprobs)} log-probabilities, "
            f"{len(trajectory.loss_mask)} places in the loss mask"
        )
    elif not math.isfinite(trajectory.reward):
        problem = f"reward {trajectory.reward}"
    elif not math.isfinite(sum(trajectory.logprobs)):
        problem = "a log-probability that is no finite number"
    elif trajectory.temperature <= 0:
        problem = f"temperature {trajectory.temperature}"
    if problem:
        raise BadTrajectoryError(f"trajectory {trajectory.key}: {problem}")


def _lengths(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    return np.array([len(value) for value in values], dtype=np.int64)


def _flat(values: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    # One pass over all: an array per trajectory costs more than its few numbers.
    count = sum(len(value) for value in values)
    return np.fromiter(chain.from_iterable(values), dtype=dtype, count=count)
