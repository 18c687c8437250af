"""What a reward service is sent, and what it answers: JSON both ways.

A list of objects goes out; a list as long comes back, of numbers, or `{"reward", "parts"}`, or
`{"error"}`. Knows nothing of HTTP. docs/rewards.md describes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import HeadraceError
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import Score, Scoring, as_number


class MalformedError(HeadraceError):
    """The answer is not what was agreed on."""


def encode(scorings: Sequence[Scoring]) -> bytes:
    """Write what is to be scored."""
    return json.dumps([_item(scoring) for scoring in scorings]).encode()


def decode(data: bytes, count: int) -> list[Score | RewardError]:
    """Read the scores of `count` responses; a score that is none is an error of its own.

    Raises:
        MalformedError: Not a JSON list of `count` items.

    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"its answer is not JSON: {error}") from error
    if not isinstance(values, list):
        raise MalformedError(f"its answer is not a list, but {_shown(values)}")
    if len(values) != count:
        raise MalformedError(f"its answer has {len(values)} items for {count} responses")
    return [_score(value) for value in values]


def _item(scoring: Scoring) -> dict[str, Any]:
    return {
        "prompt": scoring.prompt,
        "response": scoring.response,
        "answer": scoring.answer,
        "metadata": json.loads(scoring.metadata_json) if scoring.metadata_json else {},
        "finish_reason": scoring.finish_reason,
        "data_source": scoring.data_source,
    }


def _score(value: object) -> Score | RewardError:
    if isinstance(value, Mapping) and value.get("error") is not None:
        return RewardError(f"the reward service says: {_shown(value['error'])}")
    try:
        return _parsed(value) if isinstance(value, Mapping) else Score(as_number(value), {})
    except (ValueError, TypeError, OverflowError) as error:
        return RewardError(f"the reward service's answer: {error}")


def _parsed(value: Mapping[str, Any]) -> Score:
    if unknown := sorted(value.keys() - {"reward", "parts", "error"}):
        raise ValueError(f"a score has unknown keys {unknown}; named parts belong into `parts`")
    if "reward" not in value:
        raise ValueError("a score has no `reward`")
    parts = value.get("parts") or {}
    if not isinstance(parts, Mapping):
        raise TypeError(f"a score's parts must be a mapping, not {_shown(parts)}")
    named = {name: as_number(part) for name, part in parts.items()}
    return Score(as_number(value["reward"]), named)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.split())[:300]
