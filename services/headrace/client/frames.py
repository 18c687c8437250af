"""Answers as pandas tables. Imports pandas when one is made."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.client.steps import read_lines
from headrace.client.words import reason_name, state_name
from headrace.errors import UsageError
from headrace.v1 import prompt_pb2

if TYPE_CHECKING:
    import pandas as pd

PROMPT_COLUMNS: Final = (
    "uid",
    "ordinal",
    "state",
    "reason",
    "step",
    "attempt",
    "failures",
    "expiries",
    "worker",
    "sessions",
    "reward",
    "tokens",
    "min_version",
    "max_version",
    "base",
    "last_error",
)


def needs(package: str) -> Any:
    """Import a package of the extra `notebook`.

    Raises:
        UsageError: it is not installed.

    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the package {error.name!r} is not installed; pip install 'headrace[notebook]'"
        ) from error


def prompts_frame(groups: Iterable[prompt_pb2.PromptGroup]) -> pd.DataFrame:
    """One row per prompt, by ordinal. `reward` is the mean over its sessions, NaN without any."""
    rows = [_prompt(group) for group in groups]
    frame: pd.DataFrame = needs("pandas").DataFrame(rows, columns=list(PROMPT_COLUMNS))
    return frame


def _prompt(group: prompt_pb2.PromptGroup) -> tuple[object, ...]:
    sessions = group.sessions
    rewards = [session.reward for session in sessions]
    return (
        group.uid,
        group.ordinal,
        state_name(group.state),
        reason_name(group.drop_reason),
        group.step,
        group.attempt,
        group.failure_count,
        group.expiry_count,
        group.worker_id,
        len(sessions),
        sum(rewards) / len(rewards) if rewards else math.nan,
        sum(session.token_count for session in sessions),
        min((session.min_version for session in sessions), default=-1),
        max((session.max_version for session in sessions), default=-1),
        group.base,
        group.last_error,
    )


def steps_frame(steps: Mapping[int, Mapping[str, float]]) -> pd.DataFrame:
    """One row per step, one column per metric; the index is the step."""
    pandas = needs("pandas")
    index = pandas.Index(sorted(steps), name="step")
    frame: pd.DataFrame = pandas.DataFrame([steps[step] for step in index], index=index)
    return frame


def read_steps(file: Path) -> dict[int, dict[str, float]]:
    """Read a run directory's `metrics.jsonl`: metrics by step."""
    return {
        step: {name: math.nan if v is None else float(v) for name, v in values.items()}
        for step, values in read_lines(file).items()
    }
