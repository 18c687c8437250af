"""A reward of one's own: countdown, for a model that does not do quite as it is told.

    reward: {kind: python, function: "examples.countdown_reward:score"}     # in the project's folder

The expression is what stands between `<answer>` and `</answer>`, or else the last thing that looks
like one. 1 if it is right, as reasoning_gym's own scorer says; at most 0.2 for the right numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

EXPRESSION = re.compile(r"[\d(][\d\s()]*(?:[-+*/][\d\s()]+)+")


def score(*, response: str, metadata: dict[str, Any], **_: Any) -> dict[str, float]:
    """Score one response."""
    from reasoning_gym.utils import extract_answer

    entry = metadata["reasoning_gym"]["entry"]
    expression = extract_answer(response) or ["", *EXPRESSION.findall(response)][-1].strip()
    right = float(_scorer().score_answer(expression, entry) == 1.0)
    used = Counter(map(int, re.findall(r"\d+", expression)))
    given = Counter(entry["metadata"]["numbers"])
    shared = (used & given).total() / max(used.total(), given.total())
    return {"reward": max(right, 0.2 * shared), "right": right, "numbers": shared}


@cache
def _scorer() -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset("countdown", size=1)
