"""How long a replay buffer takes to load its journal, against how much ever settled.

Run as `python benchmarks/bench_restart.py`. With compaction it should follow what is live.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from ledger_world import World, settings

from headrace.replay.base import to_base
from headrace.replay.journal.file import FileJournal
from headrace.replay.load import load_until

KEEP_SETTLED = 10_000
EVERY_EVENTS = 2_000


def fill(directory: Path, settled: int, *, compacted: bool) -> None:
    """Write the journal of a run that trained `settled` groups, 64 a step, and has 192 live."""
    rules = settings(n=2, batch_size=64, window_size=192)
    world = World(rules, row_count=settled + 10_000, capacity_bytes=10**12)
    journal = FileJournal(directory, fsync=False, segment_events=EVERY_EVENTS)
    for _ in range(settled // 64):
        world.step()
        journal.append(world.ledger.take_events())
        base = journal.base.position if journal.base else 0
        if compacted and journal.position - base >= EVERY_EVENTS:
            journal.write_base(to_base(world.ledger, keep_settled=KEEP_SETTLED))
            journal.trim(journal.position - EVERY_EVENTS)
    journal.close()


def load_s(directory: Path) -> float:
    """Load it, as a restart does; seconds of CPU, the best of three."""

    def once() -> float:
        begun = time.process_time()
        journal = FileJournal(directory, fsync=False, writable=False)
        load_until(journal, journal.position)
        journal.close()
        return time.process_time() - begun

    return min(once() for _ in range(3))


def measure(sizes: list[int], tell: Callable[[str], None]) -> dict[tuple[int, bool], float]:
    """Measure each size with and without compaction."""
    found = {}
    for settled in sizes:
        for compacted in (False, True):
            with tempfile.TemporaryDirectory() as name:
                fill(Path(name), settled, compacted=compacted)
                found[settled, compacted] = load_s(Path(name))
        tell(
            f"{settled:>9,} settled   whole journal {found[settled, False]:7.3f} s   "
            f"compacted {found[settled, True]:7.3f} s"
        )
    return found


def main() -> None:
    """Print a line per size, and how each way grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 16k settled groups")
    sizes = (
        [1_000, 4_000, 16_000] if parser.parse_args().quick else [1_000, 10_000, 50_000, 200_000]
    )
    found = measure(sizes, print)
    for compacted in (False, True):
        growth = found[sizes[-1], compacted] / found[sizes[0], compacted]
        name = "compacted" if compacted else "whole journal"
        print(f"{sizes[0]:,} -> {sizes[-1]:,}: {name} x {growth:.1f}")


if __name__ == "__main__":
    main()
