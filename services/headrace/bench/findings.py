"""What a part of the benchmark found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from headrace.bench.goal import Goal
from headrace.bench.laps import Laps
from headrace.bench.table import Row, render

SCHEMA_VERSION: Final = 1


@dataclass
class Findings:
    """Lines of the table, goals, and the figures that both come from."""

    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    laps: dict[str, Laps] = field(default_factory=dict)
    """By what was done."""
    waits_s: dict[str, list[float]] = field(default_factory=dict)
    """Single waits in seconds, by what was waited for."""

    def __iadd__(self, other: Findings) -> Self:
        self.rows += other.rows
        self.goals += other.goals
        self.notes += other.notes
        self.laps |= other.laps
        self.waits_s |= other.waits_s
        return self

    def to_text(self) -> str:
        """Give the table, the goals and what was left out."""
        blocks: list[Iterable[str]] = [
            [render(self.rows)],
            ["goals", *(f"  {goal}" for goal in self.goals)] if self.goals else [],
            self.notes,
        ]
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def to_json(self) -> str:
        """Give everything, with the figures of each round."""
        return json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "rows": [asdict(row) for row in self.rows],
                "goals": [asdict(goal) | {"is_met": goal.is_met} for goal in self.goals],
                "notes": self.notes,
                "rounds": {
                    name: [asdict(lap) for lap in laps.counted] for name, laps in self.laps.items()
                },
                "waits_s": self.waits_s,
            },
            indent=1,
        )
