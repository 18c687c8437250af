"""The metrics of a step, and how they are written down."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.trainer.metrics import StepMetrics
from headrace.trainer.recorder import Recorder
from headrace.trainer.sampling import Part
from headrace.v1.prompt_pb2 import SampledGroup, TrajectoryRef
from headrace.v1.trajectory_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    Trajectory,
    WeightSpan,
)


def spans(versions: tuple[int, ...], count: int) -> list[WeightSpan]:
    """A token of each version, as far as there are any, the rest by the last."""
    versions = versions[-count:]
    begins = range(len(versions))
    ends = [*begins[1:], count]
    return [
        WeightSpan(version=versions[begin], begin=begin, end=end)
        for begin, end in zip(begins, ends, strict=True)
    ]


def part(uid: str, versions: tuple[int, ...], rewards: tuple[float, ...]) -> Part:
    trajectories = tuple(
        Trajectory(
            key=f"{uid}_{i}_0_aa1",
            prompt_token_ids=[2] * 3,
            response_token_ids=[3] * (i + 1),
            loss_mask=[True] * i + [False],
            reward=reward,
            reward_parts={"exact": float(reward == 1)},
            weight_spans=spans(versions, i + 1),
            finish_reason=FINISH_REASON_LENGTH if i else FINISH_REASON_STOP,
        )
        for i, reward in enumerate(rewards)
    )
    references = [TrajectoryRef(key=t.key) for t in trajectories]
    return Part((SampledGroup(uid=uid, trajectories=references),), trajectories)


def step() -> dict[str, float]:
    gathered = StepMetrics(6)
    gathered.add_part(
        part("e0r5", (4,), (1.0, 0.0)),
        np.array([1.0, -1.0]),
        {"actor/lr": 0.2, "actor/grad_norm": 1.0, "training/rollout_probs_diff_max": 0.3},
    )
    gathered.add_part(
        part("e1r0", (3, 5), (0.0, 0.0, 0.5, 0.5)),
        np.zeros(4),
        {"actor/lr": 0.1, "actor/grad_norm": 4.0, "training/rollout_probs_diff_max": 0.1},
    )
    gathered.add_seconds("gen", 1.5)
    gathered.add_seconds("gen", 0.5)
    return gathered.summary(step_s=4.0)


def test_a_step_is_the_sum_of_its_parts() -> None:
    found = step()
    assert found["training/global_step"] == 6
    assert found["training/epoch"] == 1
    assert found["critic/rewards/mean"] == pytest.approx(1 / 3)
    assert found["reward_parts/exact/mean"] == pytest.approx(1 / 6)
    assert (found["response_length/max"], found["response_length/min"]) == (4, 1)
    assert found["response_length/clip_ratio"] == pytest.approx(4 / 6)
    assert found["prompt_length/mean"] == 3
    assert found["perf/total_num_tokens"] == 6 * 3 + (1 + 2) + (1 + 2 + 3 + 4)
    assert found["perf/throughput"] == found["perf/total_num_tokens"] / 4.0
    assert (found["timing_s/gen"], found["timing_s/step"]) == (2.0, 4.0)


def test_advantages_are_those_of_the_tokens_that_are_trained_on() -> None:
    found = step()
    # The first part trains on one token, of advantage -1; the second on 0 + 1 + 2 + 3.
    assert found["critic/advantages/mean"] == pytest.approx(-1 / 7)
    assert found["critic/advantages/max"] == 0


def test_staleness_counts_from_the_weights_before_the_step() -> None:
    found = step()
    name = "training/off_policy"
    assert found[f"{name}/trajectory_staleness/max"] == 1  # version 4 in step 6: one update old
    assert found[f"{name}/trajectory_staleness/min"] == 0
    assert found[f"{name}/trajectory_staleness_worst/max"] == 2
    assert found[f"{name}/trajectory_spans/max"] == 3


def test_tokens_are_counted_by_the_weights_that_made_them() -> None:
    shares = {
        name.rsplit("/", 1)[1]: share for name, share in step().items() if "/token_share/" in name
    }
    # In step 6: 1 + 2 tokens by version 4; of 1 + 2 + 3 + 4 three by 3, the others by 5.
    assert shares == {
        "0": pytest.approx(7 / 13),
        "1": pytest.approx(3 / 13),
        "2": pytest.approx(3 / 13),
    }


def test_updates_are_joined_by_what_they_mean() -> None:
    found = step()
    assert found["actor/lr"] == 0.1
    assert found["training/rollout_probs_diff_max"] == 0.3
    assert found["actor/grad_norm"] == pytest.approx((1.0 * 2 + 4.0 * 4) / 6)


def test_each_step_is_a_line_of_json_and_what_is_no_number_is_null(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    recorder.write(1, {"a": 0.5, "b": float("nan")})
    recorder.write(2, {"a": 1.5, "b": float("inf")})
    recorder.close()

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "a": 0.5, "b": None},
        {"step": 2, "a": 1.5, "b": None},
    ]


def test_tensorboard_can_read_the_metrics(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    recorder.write(7, {"critic/rewards/mean": 0.5})
    recorder.close()

    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    (event,) = board.Scalars("critic/rewards/mean")
    assert (event.step, event.value) == (7, 0.5)
