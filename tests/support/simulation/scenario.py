"""What a seed means: the run's settings, its data set, and how often what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from headrace.replay.settings import LedgerSettings

B = 4
N = 2


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often what goes wrong, while faults are on. Rates are per transition."""

    crash: float = 0.0
    """Somebody dies and is started again; now and then two or more at once."""
    freeze: float = 0.0
    """Somebody stops for long, and then goes on as if nothing had been (a zombie)."""
    store_loss: float = 0.0
    """The store dies and loses all rows, log or no log."""
    journal_loss: float = 0.0
    """The replay buffer dies and loses its whole journal."""
    outage: float = 0.0
    """All engines fail for a while: the circuit opens."""
    damage: float = 0.0
    """A file of a checkpoint loses its bytes, where an older checkpoint is there."""
    lost: float = 0.0
    """Of each message."""
    repeated: float = 0.0
    """Of each message."""
    late: float = 0.0
    """Of each message: it comes long after its call was given up."""
    write_fails: float = 0.0
    """Of each part of a snapshot: the disk is full."""
    unreadable: float = 0.0
    """Of each group that a trainer gets: it cannot read the rows."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run."""

    seed: int
    rules: LedgerSettings
    row_count: int
    chunk: int
    """G."""
    part_count: int
    save_freq: int
    """0 = no checkpoints."""
    keep_checkpoints: int
    salvage: bool
    durable_store: bool
    worker_count: int
    fails: float
    """Of each session: the engine raises."""
    bad_rows: frozenset[int]
    """Rows that no engine can do."""
    long_rows: frozenset[int]
    """Rows that are too long."""
    compact_every: int
    """Events."""
    keep_settled: int
    drafts: bool
    """Whether responses take time, are made by whatever weights the engine has then, and are
    reported on the way."""
    faults: Faults
    fault_ticks: int
    """Faults stop after so many ticks."""
    heal_limit: int
    """Transitions after that, at most, until the run has to be at its end."""

    @property
    def is_exact(self) -> bool:
        """Whether all rows are trained, whatever happens (design 2.2)."""
        rules = self.rules
        return (
            not rules.drops
            and not self.bad_rows
            and not self.long_rows
            and not self.fails
            and not self.faults.outage
            and not rules.filter_groups
            and (self.row_count * rules.epochs) % B == 0
        )


def scenario(seed: int) -> Scenario:
    """Make the scenario of a seed."""
    draw = random.Random(f"scenario {seed}")
    save_freq = draw.choice([1, 1, 2, 2, 4, 0])
    epochs = draw.choice([1, 1, 2])
    row_count = draw.choice([24, 22, 28, 32, 40]) // epochs
    strategy: Literal["drop", "wait", "none"] = draw.choice(["drop", "drop", "wait", "none"])
    window_size = draw.choice([0, 4, 8, 12])
    basis: Literal["generated", "fed"] = draw.choice(["generated", "generated", "generated", "fed"])
    threshold = draw.choice([1, 2, 3, 5]) if strategy != "none" else None
    if basis == "fed" and threshold is not None:
        threshold = max(threshold, -(-window_size // B) + 1)  # what the configuration insists on
    odd = draw.random() < 0.3
    rules = LedgerSettings(
        n=N,
        batch_size=B,
        basis=basis,
        window_size=window_size,
        threshold=threshold,
        strategy=strategy,
        epochs=epochs,
        saves=save_freq > 0,
        max_failures=2,
        max_expiries=1000,
        eject_after=3,
        filter_groups=draw.random() < 0.2,
        max_filtered_groups=10**6,
        max_trajectory_bytes=10,
    )
    return Scenario(
        seed=seed,
        rules=rules,
        row_count=row_count,
        chunk=draw.choice([1, 3, 4, 7]),
        part_count=draw.choice([1, 1, 2]),
        save_freq=save_freq,
        keep_checkpoints=draw.choice([1, 2, 3]),
        salvage=draw.random() < 0.85,
        durable_store=draw.random() < 0.6,
        worker_count=draw.choice([1, 2, 3]),
        fails=draw.choice([0.0, 0.0, 0.02]),
        bad_rows=frozenset(draw.sample(range(row_count), draw.choice([1, 2, 4])) if odd else ()),
        long_rows=frozenset(draw.sample(range(row_count), 2) if odd else ()),
        compact_every=draw.choice([40, 120, 10**9]),
        # Without checkpoints a trainer can be followed only as long as nothing is forgotten.
        keep_settled=draw.choice([0, 3, 1000]) if save_freq else 1000,
        # By a die of its own: the others fall as they did before there were any.
        drafts=random.Random(f"drafts {seed}").random() < 0.4,
        faults=_faults(draw),
        fault_ticks=draw.choice([2000, 4000, 6000]),
        heal_limit=60_000,
    )


def _faults(draw: random.Random) -> Faults:
    """Draw a climate: each kind of fault is off, rare or frequent."""
    network = draw.choice([0.0, 0.01, 0.05])
    faults = Faults(
        crash=draw.choice([0.0, 0.002, 0.004, 0.012]),
        freeze=draw.choice([0.0, 0.001, 0.003]),
        store_loss=draw.choice([0.0, 0.0005, 0.002]),
        journal_loss=draw.choice([0.0, 0.0, 0.0005, 0.002]),
        outage=draw.choice([0.0, 0.0, 0.0008]),
        damage=draw.choice([0.0, 0.004, 0.012]),
        lost=network,
        repeated=draw.choice([0.0, 0.01, 0.05]),
        late=draw.choice([0.0, 0.005, 0.02]),
        write_fails=draw.choice([0.0, 0.05]),
        unreadable=draw.choice([0.0, 0.0, 0.05, 0.3]),
    )
    if draw.random() < 0.05:  # and once in a while nothing goes wrong at all
        faults = Faults()
    return faults


def without_faults(of: Scenario) -> Scenario:
    """Give the same run, undisturbed."""
    return replace(of, faults=Faults(), fault_ticks=0)
