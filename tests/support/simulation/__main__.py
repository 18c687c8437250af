"""Runs seeds and says what does not hold; `make simulate`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from simulation.running import run_seed, run_seeds


def main() -> int:
    """Run what is asked for; 1 = something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("first", type=int, help="the seed, or the first of them")
    parser.add_argument("last", type=int, nargs="?", help="the last of them")
    parser.add_argument("--trace", action="store_true", help="print every transition of a seed")
    parser.add_argument("--transitions", type=int, help="stop after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    if options.last is None:
        outcome = run_seed(options.first, trace=options.trace)
        print(", ".join(f"{name} {count}" for name, count in sorted(outcome.counts.items())))
        print(f"seed {outcome.seed}: {outcome.transitions} transitions, {outcome.digest:08x}")
        print(outcome.violation or "all holds")
        return bool(outcome.violation)
    begun, total, bad = time.monotonic(), 0, 0
    seen: Counter[str] = Counter()
    for number, outcome in enumerate(
        run_seeds(options.first, options.last, transitions=options.transitions, jobs=options.jobs),
        1,
    ):
        total += outcome.transitions
        seen += outcome.counts
        if outcome.violation:
            bad += 1
            print(outcome.report, flush=True)
        if number % 200 == 0:
            rate = total / (time.monotonic() - begun)
            print(f"{number} seeds, {total} transitions, {rate:.0f}/s, {bad} bad", flush=True)
    print(", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
    rate = total / (time.monotonic() - begun)
    print(f"{total} transitions, {rate:.0f}/s, {bad} seeds bad")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
