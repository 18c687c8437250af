"""Trajectories as padded tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from headrace.trainer.batch import BadTrajectoryError, Batch, collate
from headrace.v1.trajectory_pb2 import Trajectory


def trajectory(prompt: list[int], response: list[int], *, temperature: float = 1.0) -> Trajectory:
    return Trajectory(
        schema_version=1,
        key="e0r1_0_0_aa1",
        prompt_token_ids=prompt,
        response_token_ids=response,
        logprobs=[-float(token) for token in response],
        loss_mask=[token != 7 for token in response],
        temperature=temperature,
    )


def two() -> Batch:
    trajectories = [trajectory([2, 3, 4], [5, 7]), trajectory([2], [6, 5, 1])]
    return collate(trajectories, np.array([0.5, -0.5]), pad_id=0)


def test_places_line_up_with_the_tokens_they_predict() -> None:
    batch = two()
    assert batch.token_ids.tolist() == [[2, 3, 4, 5, 7], [2, 6, 5, 1, 0]]
    assert batch.behaviour_logprobs.tolist() == [[0, 0, -5, -7], [-6, -5, -1, 0]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 0], [1, 1, 1, 0]]
    assert batch.lengths.tolist() == [5, 4]
    assert batch.advantages.tolist() == [0.5, -0.5]
    assert batch.first_place == 0


def test_some_rows_are_padded_no_further_than_they_need() -> None:
    row = two().rows(torch.tensor([1]))
    assert row.token_ids.tolist() == [[2, 6, 5, 1]]
    assert row.loss_mask.shape == (1, 3)
    assert two().rows(torch.tensor([0])).first_place == 2


def test_mixed_temperatures_are_refused() -> None:
    trajectories = [trajectory([2], [3]), trajectory([2], [3], temperature=0.7)]
    with pytest.raises(BadTrajectoryError, match=r"\[0\.7, 1\.0\]"):
        collate(trajectories, np.zeros(2), pad_id=0)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.logprobs.append(0.0), "3 log-probabilities"),
        (lambda t: t.loss_mask.pop(), "1 places in the loss mask"),
        (lambda t: t.response_token_ids.clear(), "0 response tokens"),
        (lambda t: t.prompt_token_ids.clear(), "0 prompt"),
        (lambda t: setattr(t, "reward", float("nan")), "reward nan"),
        (lambda t: t.logprobs.__setitem__(0, float("-inf")), "no finite number"),
        (lambda t: setattr(t, "temperature", 0.0), "temperature 0"),
        (lambda t: setattr(t, "schema_version", 2), "schema version 2"),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_named(
    spoil: Callable[[Trajectory], None], message: str
) -> None:
    bad = trajectory([2], [3, 4])
    spoil(bad)
    with pytest.raises(BadTrajectoryError, match=f"e0r1_0_0_aa1: .*{message}"):
        collate([bad], np.zeros(1), pad_id=0)
