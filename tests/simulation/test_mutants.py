"""Bugs put back on purpose, one at a time: the simulation goes red, or it is not finished."""

from __future__ import annotations

import pytest
from simulation.mutants import MUTANTS, Mutant, applied
from simulation.running import run_seed

SEEDS = 4000
"""Within so many each is found; most are by the first few."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulation_finds(mutant: Mutant) -> None:
    with applied(mutant):
        seeds = (*range(mutant.shown_by, SEEDS), *range(mutant.shown_by))
        found = (outcome for outcome in map(run_seed, seeds) if outcome.violation)
        assert next(found, None), f"{mutant.name}: no seed below {SEEDS} shows it"
