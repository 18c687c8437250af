"""Runs seeds, one after the other or on several processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from simulation.engine import ViolationError
from simulation.scenario import scenario
from simulation.world import World

SEEDS_PER_TASK = 10


@dataclass(frozen=True)
class Outcome:
    """What came of one seed."""

    seed: int
    transitions: int
    digest: int
    """Of everything that happened."""
    violation: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    """What was seen: events, faults."""

    @property
    def report(self) -> str:
        """Say what does not hold, and how to see it again."""
        return f"seed {self.seed}, transition {self.transitions}: {self.violation}\n  {again(self.seed)}"


def again(seed: int) -> str:
    """Give the command that replays a seed exactly."""
    return f"PYTHONPATH=tests/support python -m simulation {seed} --trace"


def run_seed(seed: int, *, trace: bool = False) -> Outcome:
    """Run one seed to its end."""
    world = World(scenario(seed))
    if trace:
        world.trace = print
    violation = ""
    try:
        world.run_to_the_end()
    except ViolationError as found:
        violation = str(found)
    except Exception as error:  # whatever breaks is a find
        if trace:
            raise
        violation = f"something broke: {error!r}"
    return Outcome(seed, world.transitions, world.digest, violation, world.judge.counts)


def run_seeds(first: int, last: int, *, transitions: int | None, jobs: int) -> Iterator[Outcome]:
    """Run seeds until the last is done, or so many transitions are made; in no order."""
    if jobs == 1:
        done = 0
        for seed in range(first, last + 1):
            outcome = run_seed(seed)
            yield outcome
            done += outcome.transitions
            if transitions is not None and done >= transitions:
                return
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        tasks: set[Future[list[Outcome]]] = set()
        seed = first
        done = 0
        while seed <= last or tasks:
            while seed <= last and len(tasks) < 2 * jobs:
                upto = min(seed + SEEDS_PER_TASK, last + 1)
                tasks.add(pool.submit(_run_some, seed, upto))
                seed = upto
            ready, tasks = wait(tasks, return_when=FIRST_COMPLETED)
            for task in ready:
                for outcome in task.result():
                    done += outcome.transitions
                    yield outcome
            if transitions is not None and done >= transitions:
                seed = last + 1
                for task in tasks:
                    task.cancel()
                tasks = {task for task in tasks if not task.cancelled()}


def _run_some(first: int, end: int) -> list[Outcome]:
    return [run_seed(seed) for seed in range(first, end)]
