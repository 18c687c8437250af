"""Advantages within groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.advantage import grpo_advantages


def test_a_group_is_centred_and_divided_by_its_own_deviation() -> None:
    rewards = np.array([1.0, 10.0, 2.0, 30.0, 3.0])
    groups = np.array([0, 1, 0, 1, 0])
    found = grpo_advantages(rewards, groups, divide_by_std=True)
    assert found[[0, 2, 4]] == pytest.approx([-1, 0, 1], abs=1e-5)
    assert found[[1, 3]] == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5)


def test_without_the_division_only_the_mean_is_taken_off() -> None:
    rewards = np.array([1.0, 2.0, 6.0])
    found = grpo_advantages(rewards, np.zeros(3, dtype=np.int64), divide_by_std=False)
    assert found.tolist() == [-2.0, -1.0, 3.0]


@given(reward=st.floats(-1e6, 1e6), count=st.integers(2, 40))
def test_equal_rewards_teach_nothing_at_all(reward: float, count: int) -> None:
    groups = np.zeros(count, dtype=np.int64)
    found = grpo_advantages(np.full(count, reward), groups, divide_by_std=True)
    assert found.tolist() == [0.0] * count


def test_the_reward_of_a_group_of_one_is_its_advantage() -> None:
    rewards = np.array([0.7, 1.0, 0.0])
    found = grpo_advantages(rewards, np.array([0, 1, 1]), divide_by_std=True)
    assert found[0] == 0.7
