"""Runs seeds: `python -m simulation FIRST [LAST] [--trace] [--mutant NAME] [--transitions N]`."""

from __future__ import annotations

import argparse
import sys
import time

from simulation.engine import Violation
from simulation.scenario import scenario
from simulation.world import World


def main() -> int:
    """Run what is asked for; 1 = something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--transitions", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    begun, total, bad = time.perf_counter(), 0, 0
    seed, last = options.first, options.last if options.last is not None else options.first
    while seed <= last or total < options.transitions:
        world = World(scenario(seed))
        if options.trace:
            world.trace = print
        try:
            world.run_to_the_end()
        except Violation as violation:
            bad += 1
            print(f"seed {seed}: transition {world.transitions}: {violation}")
            if not options.keep_going:
                print(f"again: python -m simulation {seed} --trace")
                return 1
        total += world.transitions
        if options.first == last:
            print(f"seed {seed}: {world.transitions} transitions, digest {world.digest:08x}")
            print(dict(world.judge.counts))
        seed += 1
    seconds = time.perf_counter() - begun
    print(f"{seed - options.first} seeds, {total} transitions, {total / seconds:.0f}/s, {bad} bad")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
