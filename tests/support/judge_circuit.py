"""Failing workers, as the judge reads design 2.3: whom to blame, and what an open circuit lets in.

Each method is told what happened, and says what is wrong with it; nothing, if it may be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from judge_rules import Rules

from headrace.v1 import replay_pb2

WORKERS_FAIL = replay_pb2.CIRCUIT_CAUSE_WORKERS_FAIL
FILTER_BUDGET = replay_pb2.CIRCUIT_CAUSE_FILTER_BUDGET


@dataclass
class Circuit:
    """Who failed at what, and whether everything stops for it."""

    rules: Rules
    cause: int = 0
    """Why it is open; 0 = closed."""
    ejected: set[str] = field(default_factory=set)
    fed: int = 0
    """Prompts let in since it opened."""
    lost_probes: int = 0
    """Prompts that a probe could have been made with, and that were dropped since it opened."""
    failures: Counter[str] = field(default_factory=Counter)
    """By prompt: all that workers ever reported of it."""
    streaks: dict[str, set[str]] = field(default_factory=dict)
    """By worker: the prompts it failed at since its last success."""
    owes_closing: bool = False
    """Somebody succeeded, and was believed: the next event must close it."""

    def feed(self, probes: int) -> str:
        """A fresh prompt came in, while there were so many that are PENDING or RUNNING."""
        if not self.cause:
            return ""
        self.fed += 1
        if self.cause != WORKERS_FAIL:
            return "while the circuit is open"
        if probes:
            return f"while the circuit is open, with {probes} left to probe with"
        if self.fed > self.rules.eject_after + self.lost_probes:
            return f"while the circuit is open, as number {self.fed}"
        return ""

    def lease(self, worker: str, held: int) -> str:
        """A worker was given leases and holds so many now."""
        if self.cause == FILTER_BUDGET:
            return "was given leases while the filter's budget is used up"
        if held > 1 and (self.cause or worker in self.ejected):
            return f"holds {held} probes"
        return ""

    def fail(self, worker: str, uid: str) -> None:
        self.failures[uid] += 1
        self.streaks.setdefault(worker, set()).add(uid)

    def succeed(self, worker: str) -> None:
        self.ejected.discard(worker)
        self.streaks.pop(worker, None)

    def set_aside(self, uid: str) -> str:
        """A prompt is FAILED."""
        failures = self.failures[uid]
        return f"is FAILED after {failures} failures" if failures < self.rules.max_failures else ""

    def eject(self, worker: str) -> str:
        self.ejected.add(worker)
        streak = len(self.streaks.get(worker, ()))
        early = streak < self.rules.eject_after
        return f"is ejected for failing at {streak} prompts" if early else ""

    def open(self, cause: int) -> str:
        fault = "opened twice" if self.cause else ""
        if cause == WORKERS_FAIL and not self.ejected:
            fault = "opened, and no worker is ejected"
        self.cause, self.fed, self.lost_probes = cause, 0, 0
        return fault

    def close(self) -> str:
        fault = "" if self.cause else "closed twice"
        self.cause, self.owes_closing = 0, False
        self.ejected.clear()
        self.streaks.clear()
        return fault

    def drop(self, reason: str, *, was_probe: bool, is_worn: bool) -> None:
        """A prompt is dropped; `is_worn` if that is for its leases that ran out."""
        self.lost_probes += was_probe
        if reason == "failed" and self.cause and not is_worn:
            self.owes_closing = True
