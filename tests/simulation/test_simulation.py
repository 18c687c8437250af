"""Whole runs in one thread, with everything that can go wrong, judged from outside.

A seed that fails prints the command that replays it, transition by transition.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from simulation.running import Outcome, run_seed, run_seeds
from simulation.scenario import scenario, without_faults
from simulation.world import World

PROJECT = Path(__file__).parents[2]
TRANSITIONS = int(os.environ.get("HEADRACE_SIMULATION_TRANSITIONS", "1000000"))
FOUND_BY = (
    20,
    28,
    48,
    60,
    73,
    79,
    131,
    215,
    229,
    231,
    234,
    279,
    296,
    353,
    471,
    794,
    1310,
    3597,
    4023,
    30870,
    31604,
    34007,
)
"""Seeds that found something once, in the code or in the simulation itself."""


@pytest.mark.timeout(1800)
def test_a_million_transitions_break_no_invariant() -> None:
    outcomes = list(run_seeds(0, 10**6, transitions=TRANSITIONS, jobs=min(4, os.cpu_count() or 1)))
    bad = [outcome.report for outcome in outcomes if outcome.violation]
    assert not bad, "\n".join(bad)
    assert sum(outcome.transitions for outcome in outcomes) >= TRANSITIONS
    if TRANSITIONS >= 10**6:
        _assert_that_much_went_wrong(outcomes)


def _assert_that_much_went_wrong(outcomes: list[Outcome]) -> None:
    """A simulation in which nothing happens proves nothing."""
    seen: Counter[str] = Counter()
    for outcome in outcomes:
        seen += outcome.counts
    expected = {
        "killed_replay": 100,
        "killed_store": 100,
        "killed_trainer": 100,
        "killed_coordinator": 100,
        "killed_feeder": 100,
        "killed_worker": 100,
        "frozen_trainer": 20,
        "frozen_replay": 20,
        "frozen_worker": 20,
        "lost_stores": 50,
        "lost_journals": 20,
        "restores": 5,
        "rollbacks": 100,
        "untrained_steps": 30,
        "checkpoints": 200,
        "damaged": 3,
        "rows_lost": 10,
        "groups_returned": 10,
        "groups_dropped": 100,
        "snapshots_joined": 5,
        "resumes_begun_once_more": 5,
        "rollbacks_refused": 2,
        "engine_failures": 50,
    }
    assert {name: seen[name] for name, least in expected.items() if seen[name] < least} == {}


@pytest.mark.parametrize("seed", FOUND_BY)
def test_a_seed_that_found_something_once_finds_nothing(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, outcome.report


@pytest.mark.parametrize("seed", [1, 7, 42])
def test_without_faults_every_row_is_trained_or_dropped_by_a_rule(seed: int) -> None:
    world = World(without_faults(scenario(seed)))
    world.run_to_the_end()
    assert world.judge.counts["rollbacks"] == 0
    assert world.judge.counts["step_committed"] == world.judge.model.committed


def test_a_run_with_nothing_left_but_prompts_that_nobody_can_do_ends_when_they_are_given_up() -> (
    None
):
    drawn = without_faults(scenario(1))
    rules = replace(drawn.rules, window_size=8, epochs=1, strategy="none", threshold=None)
    bad = frozenset(range(5))
    world = World(
        replace(drawn, rules=rules, row_count=8, bad_rows=bad, long_rows=frozenset(), fails=0.0)
    )
    world.run_to_the_end()
    assert world.judge.counts["prompts_given_up"] == len(bad)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_replays_bit_for_bit_in_every_process(hash_seed: str) -> None:
    seeds = (3, 11, 42)
    here = [(o.transitions, o.digest) for o in map(run_seed, seeds)]
    again = [(o.transitions, o.digest) for o in map(run_seed, seeds)]
    script = (
        "from simulation.running import run_seed\n"
        f"print([(o.transitions, o.digest) for o in map(run_seed, {seeds})])"
    )
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": str(PROJECT / "tests" / "support"),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert here == again
    assert there.stdout.strip() == str(here)
