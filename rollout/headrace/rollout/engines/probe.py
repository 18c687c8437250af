"""Whether an engine computes what the trainer does: log-probabilities of a few fixed sequences.

A silent mismatch is the worst fault here: training goes on, on a policy that was never sampled
from. Reads files and compares numbers; knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from headrace.log import get_logger
from headrace.rollout.engines.base import EngineError
from headrace.weights import probe as form
from headrace.weights.document import WeightsDamagedError
from headrace.weights.manifest import MANIFEST_NAME
from headrace.weights.manifest import parse as parse_manifest
from headrace.weights.probe import PROBE_NAME, TrainerProbe

TOLERANCE: Final = {"float32": 1e-3}
"""Of the mean absolute gap, in nats, where both sides compute in this number format."""
ROUGH_TOLERANCE: Final = 0.1
"""The same for any other formats: bfloat16 beside float32 gave 0.02 with a small model."""

log = get_logger()


class ProbeError(EngineError):
    """The engine says something else than the trainer.

    Attributes:
        mean: The mean absolute gap, in nats; NaN if something was no number.

    """

    def __init__(self, message: str, *, mean: float) -> None:
        super().__init__(message)
        self.mean = mean


@dataclass(frozen=True)
class Probe:
    """What the trainer says of a version."""

    version: int
    trainer: TrainerProbe

    @property
    def sequences(self) -> list[list[int]]:
        """What is to be scored: token ids, at least two each."""
        return [list(each.token_ids) for each in self.trainer.sequences]

    def check(
        self, found: Sequence[Sequence[float]], *, dtype: str, tolerance: float | None = None
    ) -> float:
        """Compare what the engine finds, and return the mean absolute gap in nats.

        Args:
            found: Per sequence, the log-probability of each token after the first, temperature 1.
            dtype: Number format of the engine's weights, as torch calls it.
            tolerance: The largest mean gap; None = by the number formats of both sides.

        Raises:
            ProbeError: The gap is larger, or there are not as many numbers as tokens.

        """
        wanted = [each.logprobs for each in self.trainer.sequences]
        counts = [len(each) for each in found]
        if counts != [len(each) for each in wanted]:
            raise ProbeError(
                f"the engine gave {sum(counts)} log-probabilities in {len(counts)} sequences, "
                f"{sum(map(len, wanted))} in {len(wanted)} were asked for",
                mean=float("nan"),
            )
        pairs = zip(chain.from_iterable(found), chain.from_iterable(wanted), strict=True)
        gaps = [abs(ours - theirs) for ours, theirs in pairs]
        mean = sum(gaps) / len(gaps)
        formats = {dtype, self.trainer.dtype}
        limit = tolerance if tolerance is not None else _tolerance(formats)
        if not mean <= limit:  # also if it is no number
            raise ProbeError(self._complaint(mean, max(gaps), limit, dtype), mean=mean)
        return mean

    def _complaint(self, mean: float, most: float, limit: float, dtype: str) -> str:
        return (
            f"weights of version {self.version} are refused: the engine's log-probabilities differ "
            f"from the trainer's by {mean:.3g} nats on average, {most:.3g} at most; {limit:g} are "
            f"tolerated. The trainer computes in {self.trainer.dtype}, the engine in {dtype}: see "
            "whether both mean the same model, then the engine's version and settings; raise "
            "rollout.engine.logprob_tolerance only if you know where the gap is from"
        )


def read(directory: Path) -> Probe | None:
    """Read the probe of a version whose files were checked.

    None if the trainer wrote none, which is warned about once for each run.

    Raises:
        EngineError: It cannot be read.

    """
    try:
        manifest = parse_manifest((directory / MANIFEST_NAME).read_bytes(), source=str(directory))
        if PROBE_NAME not in manifest.files:
            _warn(manifest.run_id)
            return None
        path = directory / PROBE_NAME
        return Probe(manifest.version, form.parse(path.read_bytes(), source=str(path)))
    except (OSError, WeightsDamagedError) as error:
        raise EngineError(f"the probe cannot be read: {error}") from error


@cache
def _warn(run_id: str) -> None:
    log.warning(
        "weights_without_probe",
        run=run_id,
        effect="nothing tells whether this engine computes what the trainer does",
        reason=f"the trainer wrote no {PROBE_NAME}: it is of an older version",
    )


def _tolerance(formats: set[str]) -> float:
    return max(TOLERANCE.get(each, ROUGH_TOLERANCE) for each in formats)
