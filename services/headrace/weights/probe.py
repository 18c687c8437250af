"""What the trainer says of a few token sequences, beside each version of its weights.

Whoever loads the version must find the same. Knows the JSON form; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.weights import document

SCHEMA_VERSION = 1
PROBE_NAME = "probe.json"


@dataclass(frozen=True)
class ScoredSequence:
    """A sequence, and how likely its tokens are."""

    token_ids: Sequence[int]
    """At least two."""
    logprobs: Sequence[float]
    """Of each token after the first, at temperature 1."""


@dataclass(frozen=True)
class TrainerProbe:
    """Sequences that are the same for all versions of a run, and what one version says of them."""

    schema_version: int
    dtype: str
    """Number format of the trainer's weights, as torch calls it."""
    sequences: Sequence[ScoredSequence]

    def to_bytes(self) -> bytes:
        """Serialize. Equal probes give equal bytes."""
        return document.to_bytes(self)


def parse(data: bytes, *, source: str) -> TrainerProbe:
    """Read a probe's bytes.

    Raises:
        WeightsDamagedError: not a probe, or one of another schema. `source` names it.

    """
    return document.parse(
        data, source=source, what="a probe of weights", schema=SCHEMA_VERSION, make=_probe
    )


def _probe(value: Mapping[str, Any]) -> TrainerProbe:
    sequences = [_sequence(each) for each in value["sequences"]]
    return TrainerProbe(value["schema_version"], str(value["dtype"]), sequences)


def _sequence(value: Mapping[str, Any]) -> ScoredSequence:
    token_ids = [int(each) for each in value["token_ids"]]
    logprobs = [float(each) for each in value["logprobs"]]
    if len(token_ids) < 2 or len(logprobs) != len(token_ids) - 1:
        msg = f"{len(token_ids)} tokens and {len(logprobs)} log-probabilities"
        raise ValueError(msg)
    return ScoredSequence(token_ids, logprobs)
