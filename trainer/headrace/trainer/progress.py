"""Where the trainer is, for those who look: phase, step, and the metrics of each step.

Knows nothing of training or of gRPC. Used from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Mapping

from headrace.v1.trainer_pb2 import TrainerPhase

KEPT_STEPS = 10_000
"""Steps whose metrics are kept for those who watch; all are in the run directory."""


class Progress:
    """What the trainer does now, and what it has done."""

    def __init__(self) -> None:
        self.phase = TrainerPhase.TRAINER_PHASE_STARTING
        self.step = 1
        """The step it is in."""
        self.total_steps = 0
        """0 while not known."""
        self.weight_version = -1
        """The newest published; -1 before the first."""
        self.saved_step = 0
        """The last step that is in a checkpoint; 0 if none."""
        self.snapshot_requested = False
        """Whether somebody has asked for a checkpoint of the step it is in."""
        self.snapshot_stall_s = 0.0
        """For how long training stood still for the last snapshot."""
        self.snapshot_error = ""
        """Why the last snapshot failed; empty if it did not."""
        self.snapshots: Counter[str] = Counter()
        """Snapshots of this process: `saved`, `failed`, `skipped`."""
        self.totals: defaultdict[str, float] = defaultdict(float)
        """Each metric summed up over the steps of this process; where it makes sense."""
        self._steps: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=KEPT_STEPS)
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a committed step."""
        self._steps.append((step, metrics))
        for name, value in metrics.items():
            if math.isfinite(value):
                self.totals[name] += value
        self._wake()

    def go_on(self, step: int, steps: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """Begin after a step of a checkpoint, with the metrics of the steps up to it."""
        self.step = step + 1
        self.saved_step = step
        self._steps.extend(steps)
        self._wake()

    @property
    def last(self) -> Mapping[str, float] | None:
        """The metrics of the last committed step; None before the first."""
        return self._steps[-1][1] if self._steps else None

    def end(self) -> None:
        """Say that no more steps come: those who watch are let go."""
        self._ended = True
        self._wake()

    async def steps(self, after: int) -> AsyncIterator[tuple[int, Mapping[str, float]]]:
        """Yield the steps after one, as they come, until the end."""
        while True:
            changed, ended = self._changed, self._ended
            new = [entry for entry in self._steps if entry[0] > after]
            for entry in new:
                yield entry
                after = entry[0]
            if ended:
                return
            if not new:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
