"""What headrace's parts can do on this machine, beside TransferQueue used directly: `make bench`.

One table. Everything of ours that changes a prompt's state is on disk before it is answered
(fsync); the peer keeps its state in memory. What is compared runs in turn in one run, and a ratio
is the median over rounds: on a shared machine the figures themselves mean little.

    python benchmarks/bench.py            a few minutes
    python benchmarks/bench.py --quick    under a minute on idle cores, with fewer rounds
    python benchmarks/bench.py --only cycle feed
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median

import bench_cycle
import bench_feed
import bench_sampling
import bench_store
import bench_store_log
from bench_table import Row, milliseconds, render
from interleave import percentile
from peer_process import running_peer

from headrace.log import configure

PARTS = {
    "cycle": bench_cycle.measure,
    "feed": bench_feed.measure,
    "store": bench_store.measure,
    "store-log": bench_store_log.measure,
    "sampling": bench_sampling.measure,
}


def disk() -> list[Row]:
    """Time what every durable answer waits for: 4 KiB written and synced, where journals lie."""
    seconds = []
    with tempfile.NamedTemporaryFile() as file:
        for number in range(50):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), number * 4096)
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - begun)
    took = f"{milliseconds(median(seconds))} / {milliseconds(percentile(seconds, 99))}"
    return [
        Row(f"disk of {tempfile.gettempdir()}"),
        Row("4 KiB written and synced: p50 / p99", took),
    ]


async def measure(parts: Sequence[str], *, quick: bool) -> list[Row]:
    """Measure the parts, one after the other, beside one peer."""
    rows = disk()
    async with running_peer() as tq:
        for part in parts:
            begun = time.perf_counter()
            rows += await PARTS[part](tq, quick=quick)
            print(f"{part}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return rows


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts")
    arguments = parser.parse_args()
    configure("bench", "bench", level="error")
    print(render(asyncio.run(measure(arguments.only, quick=arguments.quick))))


if __name__ == "__main__":
    main()
