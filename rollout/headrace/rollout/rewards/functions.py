"""How one response is scored: the functions themselves.

Knows nothing of processes and time limits. Runs in the scoring processes, so it imports little:
no torch, no gRPC, and reasoning-gym only if that is what scores.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a score is made from."""

    prompt: str
    """The prompt as text, the chat template applied."""
    response: str
    """The response as text, without the stop token."""
    answer: str
    """The reference answer; empty if there is none."""
    metadata_json: str
    """The row's other columns, a JSON object; may be empty."""
    finish_reason: str
    """`stop` or `length`."""
    data_source: str = ""
    """The name of the source that the row is from."""


TOLD: Final = ("prompt", "response", "answer", "metadata", "finish_reason", "data_source")
"""What a function of the user's can be told."""


class Score(NamedTuple):
    """What a response is worth."""

    reward: float
    """Finite."""
    parts: dict[str, float]
    """Named parts, for metrics."""


@dataclass(frozen=True)
class RewardSpec:
    """Which function scores. Small, and sent along with each task."""

    kind: str
    """`exact_match`, `positional`, `reasoning_gym` or `python`."""
    function: str | None = None
    """`module:function`, for `python`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of it."""
    answer_tag: str | None = None
    """For `reasoning_gym`: the answer stands in the last element of this name; None = it is all
    of the response."""


class RewardUnusableError(Exception):
    """The reward function itself cannot be used; no response is to blame."""


Scorer = Callable[[Scoring], Score]


def make_scorer(spec: RewardSpec) -> Scorer:
    """Return the function that scores.

    Raises:
        RewardUnusableError: It cannot be imported, or its package is missing.

    """
    if spec.kind == "python":
        assert spec.function is not None, "checked with the configuration"
        return _python(spec.function, spec.options)
    if spec.kind == "reasoning_gym":
        return _reasoning_gym(spec.answer_tag)
    return {"exact_match": exact_match, "positional": positional}[spec.kind]


def exact_match(scoring: Scoring) -> Score:
    """1 if the response is the answer, but for white space around it; else 0."""
    right = scoring.response.strip() == scoring.answer.strip()
    return Score(float(right), {"exact": float(right)})


def positional(scoring: Scoring) -> Score:
    """0.5 x share of right positions + 0.5 if all are right.

    The positions are the answer's characters and the stop after them: `length` + 1 of them. The
    stop is right if the response stopped by itself just there.
    """
    response, answer = scoring.response, scoring.answer
    stopped = len(response) == len(answer) and scoring.finish_reason == "stop"
    right = sum(a == b for a, b in zip(response, answer, strict=False)) + stopped
    share = right / (len(answer) + 1)
    exact = float(right == len(answer) + 1)
    return Score(0.5 * share + 0.5 * exact, {"exact": exact, "share": share})


def _reasoning_gym(answer_tag: str | None) -> Scorer:
    try:
        import reasoning_gym
        from reasoning_gym.utils import extract_answer
    except ImportError as error:
        raise RewardUnusableError(
            "reward.kind: reasoning_gym needs a package that is not installed: "
            f"pip install 'headrace[reasoning-gym]' ({error})"
        ) from error

    @cache
    def dataset(name: str, options_json: str) -> Any:
        # Scoring does not depend on how many rows there are, nor on their seed.
        return reasoning_gym.create_dataset(name, size=1, seed=0, **json.loads(options_json))

    def score(scoring: Scoring) -> Score:
        row = _metadata(scoring).get("reasoning_gym")
        if row is None:
            raise ValueError("the row does not come from data.source.kind: reasoning_gym")
        entry = row["entry"] if "entry" in row else ast.literal_eval(row["entry_literal"])
        rows = dataset(row["name"], json.dumps(row["options"], sort_keys=True))
        if answer_tag is None:
            return as_score(rows.score_answer(scoring.response.strip(), entry))
        answer = extract_answer(scoring.response, tag_name=answer_tag)
        if answer is None:  # some scorers give a little for that, too
            return Score(0.0, {"answered": 0.0})
        return Score(as_number(rows.score_answer(answer, entry)), {"answered": 1.0})

    return score


def _python(path: str, options: Mapping[str, Any]) -> Scorer:
    function = _find(path)
    takes = _taken(function, path, options)

    def score(scoring: Scoring) -> Score:
        told = {
            "prompt": scoring.prompt,
            "response": scoring.response,
            "answer": scoring.answer,
            "metadata": _metadata(scoring),
            "finish_reason": scoring.finish_reason,
            "data_source": scoring.data_source,
        }
        return as_score(function(**{name: told[name] for name in takes}, **options))

    return score


def _taken(function: Callable[..., Any], path: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what of `TOLD` a function takes, and see that it can be called with that."""
    if twice := sorted(options.keys() & set(TOLD)):
        raise RewardUnusableError(f"reward.options: {twice[0]} is what each response brings itself")
    try:
        signature = _signature(function)
    except (TypeError, ValueError):  # some of those written in C have none
        return TOLD
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    takes = tuple(
        name for name in TOLD if name in kinds or inspect.Parameter.VAR_KEYWORD in kinds.values()
    )
    try:
        signature.bind(**dict.fromkeys([*takes, *options]))
    except TypeError as error:
        raise RewardUnusableError(
            f"reward.function: {path} cannot be called: {error}; there are {', '.join(TOLD)}, as "
            "keyword arguments, and reward.options"
        ) from error
    return takes


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Give what is called, or what is behind it if that only passes everything on."""
    signature = inspect.signature(function, follow_wrapped=False)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    passes_on = kinds and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return inspect.signature(function) if passes_on else signature


def _find(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # an installed script does not look in the current folder by itself
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs foreign code
        raise RewardUnusableError(
            f"reward.function: cannot import {module_name}: {type(error).__name__}: {error}; "
            f"modules are looked for in {here} and among installed packages"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise RewardUnusableError(f"reward.function: {module_name} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def as_score(value: object) -> Score:
    """Take a number, or a mapping with `reward` and named parts.

    Raises:
        ValueError: Neither, or not finite.

    """
    if isinstance(value, Mapping):
        if "reward" not in value:
            raise ValueError(f"the score has no `reward`, only {sorted(map(str, value))}")
        parts = {str(name): as_number(part) for name, part in value.items() if name != "reward"}
        return Score(as_number(value["reward"]), parts)
    return Score(as_number(value), {})


def as_number(value: object) -> float:
    """Take a finite number.

    Raises:
        ValueError: It is none.

    """
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ValueError(f"a score must be a number, not {value!r:.100}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a score must be finite, not {number}")
    return number


def _metadata(scoring: Scoring) -> dict[str, Any]:
    return json.loads(scoring.metadata_json) if scoring.metadata_json else {}
