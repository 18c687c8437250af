"""What a scoring process does: score, one after the other, and say what went wrong.

Knows nothing of time limits; its parent kills it. Runs in the scoring processes only.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence

from headrace.rollout.rewards.functions import (
    RewardSpec,
    RewardUnusableError,
    Score,
    Scorer,
    Scoring,
    make_scorer,
)

_made: dict[str, Scorer | str] = {}


def initialize(spec: RewardSpec, limit_s: float) -> None:
    """Import what scores, so that it does not count against the first response.

    Its parent does not kill a process that is not at a call yet, so this one ends itself.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    too_long = threading.Timer(limit_s, os._exit, [1])
    too_long.daemon = True
    too_long.start()
    _scorer(spec)
    too_long.cancel()


def check(spec: RewardSpec) -> str:
    """Return why the function cannot be used, or nothing."""
    scorer = _scorer(spec)
    return scorer if isinstance(scorer, str) else ""


def score_some(
    spec: RewardSpec, scorings: Sequence[Scoring], stop_after_s: float
) -> list[Score | str]:
    """Score the first one, and further ones until time is up.

    Returns:
        For as many of the first as were scored: the score, or the error in one line.

    """
    scorer = _scorer(spec)
    begun = time.monotonic()
    found: list[Score | str] = []
    for scoring in scorings:
        found.append(scorer if isinstance(scorer, str) else _score(scorer, scoring))
        if time.monotonic() - begun > stop_after_s:
            break
    return found


def _score(scorer: Scorer, scoring: Scoring) -> Score | str:
    try:
        return scorer(scoring)
    except Exception as error:  # whatever foreign code raises is this response's error
        return one_line(error)


def _scorer(spec: RewardSpec) -> Scorer | str:
    key = repr(spec)
    if key not in _made:
        try:
            _made[key] = make_scorer(spec)
        except RewardUnusableError as error:
            _made[key] = str(error)
    return _made[key]


def one_line(error: BaseException) -> str:
    """Say what an error is, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _end_with_parent() -> None:
    """A scoring that hangs must not outlive a worker that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
