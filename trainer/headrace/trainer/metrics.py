"""The metrics of a step, by the names that the peers use where they mean the same.

Plain numbers: knows trajectories and groups; knows nothing of tensors or of where metrics go.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace.trainer.sampling import Part
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, Trajectory

_UID = re.compile(r"e(\d+)r\d+")
_LAST = ("actor/lr", "actor/kl_coef")
"""Metrics of which a step reports its last part's."""


class StepMetrics:
    """Gathers what happened in one step, part by part.

    Args:
        step: the step, from 1.

    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._trajectories: list[Trajectory] = []
        self._advantages: list[npt.NDArray[np.float64]] = []
        self._updates: list[tuple[int, Mapping[str, float]]] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._epoch = 0

    def add_part(
        self, part: Part, advantages: npt.NDArray[np.float64], update: Mapping[str, float]
    ) -> None:
        """Take a part: its trajectories, their advantages [N], and the update's metrics."""
        self._trajectories += part.trajectories
        self._advantages.append(advantages)
        self._updates.append((len(part.trajectories), update))
        for group in part.groups:
            if match := _UID.fullmatch(group.uid):
                self._epoch = max(self._epoch, int(match[1]))

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add to the time of a phase: `gen`, `update_actor`, `update_weights`."""
        self._seconds[phase] += seconds

    def summary(self, *, step_s: float) -> dict[str, float]:
        """Sum the step up. It took `step_s` seconds.

        `timing_s/gen` is the time that the trainer waited for the batch, reading it included.
        """
        trajectories = self._trajectories
        advantages = np.concatenate(self._advantages)
        prompts = np.array([len(t.prompt_token_ids) for t in trajectories])
        responses = np.array([len(t.response_token_ids) for t in trajectories])
        trained = np.array([sum(t.loss_mask) for t in trajectories])
        cut_off = np.array([t.finish_reason == FINISH_REASON_LENGTH for t in trajectories])
        tokens = int(prompts.sum() + responses.sum())
        return {
            "training/global_step": self._step,
            "training/epoch": self._epoch,
            **_spread("critic/rewards", np.array([t.reward for t in trajectories])),
            # Per token, as the peers have it: a long response counts for more.
            **_spread("critic/advantages", np.repeat(advantages, trained)),
            **_reward_parts(trajectories),
            **_spread("response_length", responses),
            "response_length/clip_ratio": float(cut_off.mean()),
            **_spread("prompt_length", prompts),
            **_versions(trajectories, newest=self._step - 1),
            **_updates(self._updates),
            **{f"timing_s/{phase}": seconds for phase, seconds in self._seconds.items()},
            "timing_s/step": step_s,
            "perf/total_num_tokens": tokens,
            "perf/time_per_step": step_s,
            "perf/throughput": tokens / step_s if step_s > 0 else 0.0,
        }


def _spread(name: str, values: npt.NDArray[np.number]) -> dict[str, float]:
    if not values.size:
        return {}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Give the mean of each named part over the trajectories that have it."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.reward_parts.items():
            values[name].append(value)
    return {f"reward_parts/{name}/mean": float(np.mean(found)) for name, found in values.items()}


def _versions(trajectories: Sequence[Trajectory], *, newest: int) -> dict[str, float]:
    """Say how old the weights were: by the newest and by the oldest that made any token.

    A token's staleness is 0 if the newest weights made it. Shares are of all tokens.
    """
    made: Counter[int] = Counter()
    for span in (span for t in trajectories for span in t.weight_spans):
        made[newest - span.version] += span.end - span.begin
    spans = [[span.version for span in t.weight_spans] for t in trajectories]
    youngest = np.array([max(versions) for versions in spans if versions])
    oldest = np.array([min(versions) for versions in spans if versions])
    name = "training/off_policy"
    return {
        **_spread(f"{name}/trajectory_staleness", newest - youngest),
        **_spread(f"{name}/trajectory_staleness_worst", newest - oldest),
        **_spread(f"{name}/trajectory_spans", youngest - oldest + 1),
        **{f"{name}/token_share/{age}": made[age] / made.total() for age in sorted(+made)},
    }


def _updates(updates: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Join the parts' metrics: the last, the largest, or the mean weighted by sequences."""
    found = {}
    for name in updates[-1][1]:
        values = [metrics[name] for _, metrics in updates]
        if name in _LAST:
            found[name] = values[-1]
        elif name.endswith("_max"):
            found[name] = max(values)
        else:
            found[name] = float(np.average(values, weights=[count for count, _ in updates]))
    return found
