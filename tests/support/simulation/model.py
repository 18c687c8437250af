"""The judge's model of a run: the outsider's fold of its durable events, with the scenario's rules.

It stops at the first violation, and can be copied, to be looked at later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from headrace.verify import model
from headrace.verify.told import (
    DROPPED,
    FINISHED,
    LIVE,
    OPEN,
    PENDING,
    RUNNING,
    TRAINED,
    Group,
    Rules,
)
from simulation.engine import ViolationError
from simulation.scenario import B, N, Scenario

__all__ = [
    "DROPPED",
    "FINISHED",
    "LIVE",
    "OPEN",
    "PENDING",
    "RUNNING",
    "TRAINED",
    "Model",
    "check",
]


def check(holds: bool, text: str) -> None:
    """Raise unless it holds."""
    if not holds:
        raise ViolationError(text)


def _say(text: str) -> None:
    raise ViolationError(text)


class Model(model.Model):
    """The run as the durable events tell it."""

    def __init__(self, scenario: Scenario, uid_of: Callable[[int], str]) -> None:
        told = scenario.rules
        rules = Rules(
            n=N,
            batch=B,
            window=told.window_size,
            threshold=told.threshold,
            drops=told.drops,
            basis=told.basis,
            max_failures=told.max_failures,
            max_expiries=told.max_expiries,
            uid_of=uid_of,
        )
        super().__init__(rules, _say)
        self.uid_of = uid_of

    def copy(self) -> Model:
        """Give another one in the same state."""
        twin = copy.copy(self)
        twin.groups = {uid: _copied(group) for uid, group in self.groups.items()}
        twin.counts = dict(self.counts)
        twin.lineages = list(self.lineages)
        twin.trained = {step: list(uids) for step, uids in self.trained.items()}
        twin.parts = [list(part) for part in self.parts] if self.parts is not None else None
        twin.weights = dict(self.weights)
        return twin


def _copied(group: Group) -> Group:
    twin = copy.copy(group)
    twin.sessions = dict(group.sessions)
    twin.drafts = {session: list(made) for session, made in group.drafts.items()}
    return twin
