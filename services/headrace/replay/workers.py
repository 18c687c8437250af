"""Workers as they are heard of. Lives in memory only: a restart hears of them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import WorkerUnknownError


@dataclass
class Heard:
    """When a worker was heard of last, and what it said."""

    at: float
    """Monotonic seconds."""
    weight_version: int = -1
    """The weights it leased with last."""
    lineage: str = ""
    """Their time line."""
    goes_home: bool = False
    """Whether it is to end."""


class Workers:
    """Who is there."""

    def __init__(self, *, clock: Callable[[], float], timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self.heard: dict[str, Heard] = {}

    def hear(self, worker_id: str) -> None:
        """Note a sign of life."""
        entry = self.heard.setdefault(worker_id, Heard(self._clock()))
        entry.at = self._clock()

    def send_home(self, worker_id: str) -> None:
        """Have it told, when it calls next, that it is to end.

        Raises:
            WorkerUnknownError: it was not heard of lately.

        """
        if worker_id not in self.live():
            raise WorkerUnknownError(f"no worker {worker_id!r} was heard of lately")
        self.heard[worker_id].goes_home = True

    def goes_home(self, worker_id: str) -> bool:
        """Whether it was sent home."""
        return self.heard[worker_id].goes_home

    def confirm(self, worker_id: str, lineage: str, version: int) -> None:
        """Note the weights that it has loaded."""
        self.hear(worker_id)
        entry = self.heard[worker_id]
        entry.lineage, entry.weight_version = lineage, version

    def confirmed(self) -> set[tuple[str, int]]:
        """Weights, (lineage, version), that somebody who is there has loaded."""
        return {(self.heard[name].lineage, self.heard[name].weight_version) for name in self.live()}

    def live(self) -> set[str]:
        """Who was heard of lately. The others are forgotten."""
        oldest = self._clock() - self._timeout_s
        self.heard = {name: entry for name, entry in self.heard.items() if entry.at >= oldest}
        return set(self.heard)

    def silent_s(self, worker_id: str) -> float:
        """Seconds since it was heard of."""
        return self._clock() - self.heard[worker_id].at
