"""What is known of a running run, from the outside. Filled by the watcher, shown by displays."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.client.steps import Steps
from headrace.v1 import checkpoint_pb2, replay_pb2, rollout_pb2, status_pb2, trainer_pb2

SERVICES: Final = frozenset({"replay", "feeder", "store", "trainer", "checkpoint"})
"""The processes of a run beside its workers."""
RATE_WINDOW_S: Final = 15.0
"""The span of time over which tokens per second are counted."""
SILENT_AFTER_S: Final = 5.0
"""A process that has not answered for this long is shown as a wait."""
KEPT_WARNINGS: Final = 3
"""Log warnings that are shown."""


class TokenCount:
    """Tokens that the workers have sampled, over all their lives. Times in seconds."""

    def __init__(self) -> None:
        self.generated = 0
        self.wasted = 0
        """Of those: in sessions that were lost, cancelled or failed."""
        self._last: dict[str, tuple[int, int]] = {}
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, worker: str, generated: int, wasted: int, now: float) -> None:
        """Take a worker's counters; they begin at 0 again when it is started again."""
        before = self._last.get(worker, (0, 0))
        if generated < before[0] or wasted < before[1]:
            before = (0, 0)
        self.generated += generated - before[0]
        self.wasted += wasted - before[1]
        self._last[worker] = (generated, wasted)
        self._recent.append((now, self.generated))
        while now - self._recent[0][0] > RATE_WINDOW_S:
            self._recent.popleft()

    def per_second(self) -> float | None:
        """Give the current speed."""
        if len(self._recent) < 2 or self._recent[-1][0] <= self._recent[0][0]:
            return None
        (begun, before), (ended, after) = self._recent[0], self._recent[-1]
        return (after - before) / (ended - begun)


@dataclass
class View:
    """The latest that each process has said."""

    name: str
    """The run's name."""
    begun: float
    """When the run began."""
    now: float
    """When the view was brought up to date; seconds of the same clock."""
    replay: replay_pb2.GetReplayStatusResponse | None = None
    """The ledger."""
    trainer: trainer_pb2.GetTrainerStatusResponse | None = None
    """The trainer."""
    coordinator: checkpoint_pb2.GetCoordinatorStatusResponse | None = None
    """The checkpoint coordinator; None in a run without checkpoints."""
    workers: dict[str, rollout_pb2.GetWorkerStatusResponse] = field(default_factory=dict)
    """The workers, by name."""
    processes: dict[str, status_pb2.ProcessStatus] = field(default_factory=dict)
    """What each process says about itself, by name."""
    heard: dict[str, float] = field(default_factory=dict)
    """When each process that has announced itself last answered."""
    steps: Steps = field(default_factory=Steps)
    """The trainer's steps."""
    last_resume: str = ""
    """The resume that the steps are known since."""
    tokens: TokenCount = field(default_factory=TokenCount)
    """What the workers have sampled."""
    worker_tokens: defaultdict[str, TokenCount] = field(
        default_factory=lambda: defaultdict(TokenCount)
    )
    """The same by worker."""
    trouble: dict[str, str] = field(default_factory=dict)
    """Why a process did not answer when it was asked last, by name; none if it did."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts by process."""
    deaths: Mapping[str, str] = field(default_factory=dict)
    """How each of those died last."""
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_WARNINGS))
    """The last warnings of the logs."""
    kept: frozenset[str] = frozenset()
    """Processes that should be alive."""
    stopping: bool = False
    """Whether the run is being ended."""
    leaving: tuple[str, ...] = ()
    """The processes that are being ended now."""
    stall_after_s: float = 300.0
    """How long a process may be silent."""
    asker: str = "the launcher"
    """Who asks them."""
    paused_until: float = -math.inf
    """When the run was last known to be paused; before that, waiting was nobody's fault."""

    def waits(self) -> list[tuple[str, status_pb2.Wait]]:
        """Give all waits as (process, wait), the longest first; silence is one, too."""
        staying = {name for name in self.processes if not self._goes_home(name)}
        found = [(n, self._excused(w)) for n in staying for w in self.processes[n].waits]
        found += [
            (name, self._silence(name))
            for name, heard in self.heard.items()
            if name in self.kept
            and not self._goes_home(name)
            and self.now - heard > min(SILENT_AFTER_S, self.stall_after_s)
        ]
        return sorted(found, key=lambda pair: -pair[1].elapsed_s)

    def stalls(self) -> list[tuple[str, status_pb2.Wait]]:
        """Give the waits that have lasted too long."""
        return [(name, wait) for name, wait in self.waits() if wait.stalled]

    @property
    def starting(self) -> list[str]:
        """Processes that have not announced themselves yet."""
        return sorted(name for name in self.kept if name not in self.heard)

    @property
    def restarts_in_words(self) -> list[str]:
        """Say how often each process was started again, and how it died last."""
        return [
            f"{name} {count}" + (f", the last: {self.deaths[name]}" if name in self.deaths else "")
            for name, count in self.restarts.items()
        ]

    @property
    def total_steps(self) -> int:
        """Steps in the run; 0 while not known."""
        return self.replay.total_steps if self.replay is not None else 0

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        return self.replay.saved_step if self.replay is not None else 0

    @property
    def saving_step(self) -> int:
        """The step whose checkpoint is being made; 0 if none is."""
        if self.replay is not None and self.replay.HasField("snapshot"):
            return self.replay.snapshot.step
        saving = trainer_pb2.TRAINER_PHASE_SAVING
        return self.trainer.step if self.trainer and self.trainer.phase == saving else 0

    @property
    def snapshot_error(self) -> str:
        """Why the last snapshot failed; empty if it did not."""
        for said in (self.coordinator, self.trainer):
            if said is not None and said.snapshot_error:
                return said.snapshot_error
        return ""

    def _goes_home(self, name: str) -> bool:
        """Whether it is a worker that was sent home: what it said last does not hold any more."""
        return name in self.workers and self.workers[name].draining

    def _excused(self, wait: status_pb2.Wait) -> status_pb2.Wait:
        """Take it that no wait is a stall for what it waited while the run was paused."""
        if not wait.stalled or self.now - self.paused_until > wait.stall_after_s:
            return wait
        excused = status_pb2.Wait()
        excused.CopyFrom(wait)
        excused.stalled = False
        return excused

    def _silence(self, name: str) -> status_pb2.Wait:
        silent_s = self.now - self.heard[name]
        why = f" ({self.trouble[name]})" if name in self.trouble else ""
        return status_pb2.Wait(
            name=f"an answer to {self.asker}",
            owner=name,
            ends_when=f"{name} answers GetStatus{why}",
            elapsed_s=silent_s,
            stall_after_s=self.stall_after_s,
            stalled=silent_s > self.stall_after_s,
        )
