"""What must be the same when a run goes on as when it was saved, and what may change.

    always the same   tokenizer, rollout.n, rollout.temperature, data.train_batch_size (and the data
                      set, which has its own fingerprint)
    configuration     model, reward, algorithm, trainer.optim, trainer.parameter_sync_step
    free              everything else: window, threshold, workers, storage units, lease times, …

What has a name of `resume.allow` before it may change if that names it. A fact is a configuration key with its value as JSON.
Pure: reads no files, so that the tokenizer's fingerprint is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from headrace.config.checkpoint import Allowance
from headrace.config.config import Config

TOKENIZER: Final = "tokenizer"
N: Final = "rollout.n"
BATCH_SIZE: Final = "data.train_batch_size"
TEMPERATURE: Final = "rollout.temperature"

_SECTIONS: Final[dict[str, Callable[[Config], Any]]] = {
    "model": lambda config: config.model,
    "reward": lambda config: config.reward,
    "algorithm": lambda config: config.algorithm,
    "trainer.optim": lambda config: config.trainer.optim,
}
"""Sections whose every key is a fact."""
_NOT_FACTS: Final = {
    "model.tokenizer",  # its fingerprint is one
    "model.enable_gradient_checkpointing",
    "reward.timeout_s",
    "reward.processes",
    "reward.http",  # how the service is called is none of the run's results
}
_TOO_LONG: Final = 200
"""Characters of a value in a message."""


def facts_of(config: Config, tokenizer_fingerprint: str | None) -> dict[str, str]:
    """Give the facts of a configuration.

    Args:
        config: The configuration.
        tokenizer_fingerprint: A digest of what the tokenizer does; None if it is not known here.

    """
    facts = {
        N: json.dumps(config.rollout.n),
        BATCH_SIZE: json.dumps(config.data.train_batch_size),
        TEMPERATURE: json.dumps(config.rollout.temperature),
        "trainer.parameter_sync_step": json.dumps(config.trainer.parameter_sync_step),
    }
    if tokenizer_fingerprint is not None:
        facts[TOKENIZER] = tokenizer_fingerprint
    for section, read in _SECTIONS.items():
        values: dict[str, Any] = read(config).model_dump(mode="json")
        for name, value in values.items():
            if (key := f"{section}.{name}") not in _NOT_FACTS:
                facts[key] = json.dumps(value, sort_keys=True)
    facts["trainer.optim.lr_min_ratio"] = json.dumps(config.trainer.optim.end_ratio)
    return facts


def compare(
    before: Mapping[str, str], now: Mapping[str, str], allow: Collection[Allowance]
) -> tuple[list[str], list[str]]:
    """Compare the facts of a checkpoint with those of the run that is to go on.

    A key that only one side has is a difference, but for two: a tool that does not load the
    tokenizer cannot tell, nor can a checkpoint that was made when temperatures were not facts.

    Returns:
        Refusals, and differences that `allow` accepts: a line each, with both sides.

    """
    refusals, notes = [], []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        unknown = (key == TOKENIZER and new is None) or (key == TEMPERATURE and old is None)
        if old == new or unknown:
            continue
        sides = f"{key} is {_short(new)}, and {_short(old)} in the checkpoint"
        allowance = _allowance(key)
        if allowance is None:
            refusals.append(f"{sides}: that cannot change within a run; set it back")
        elif allowance in allow:
            notes.append(f"{sides}: accepted by resume.allow")
        else:
            refusals.append(f"{sides}: set it back, or accept it with resume.allow=[{allowance}]")
    return refusals, notes


def _allowance(key: str) -> Allowance | None:
    return None if key in (TOKENIZER, N, BATCH_SIZE, TEMPERATURE) else "configuration"


def _short(value: str | None) -> str:
    if value is None:
        return "not set"
    return value if len(value) <= _TOO_LONG else f"{value[:_TOO_LONG]}…"
