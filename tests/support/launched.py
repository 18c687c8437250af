"""`headrace run` as a user starts it, in a folder of its own, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

START_S = 90.0
"""How long all processes may take to announce themselves, on a busy machine."""


def headrace(
    directory: Path, *words: str, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words],
        cwd=directory,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@dataclass
class Launched:
    """A `headrace run` under way; its run directory is `run` below its folder."""

    process: subprocess.Popen[str]
    directory: Path
    output: Path

    @property
    def run(self) -> Path:
        return self.directory / "run"

    def pid(self, name: str) -> int:
        """Give the process id that a process announced."""
        return int(json.loads((self.run / "endpoints" / f"{name}.json").read_text())["pid"])

    @property
    def steps(self) -> int:
        """Steps whose metrics are written."""
        path = self.run / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def until(self, holds: Callable[[], bool], within_s: float = START_S) -> None:
        """Wait for something, as long as the run goes on."""
        deadline = time.monotonic() + within_s
        while not holds():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def until_all_announced(self, names: Sequence[str]) -> None:
        folder = self.run / "endpoints"
        self.until(lambda: all((folder / f"{name}.json").exists() for name in names))

    def kill(self, name: str) -> None:
        """Kill -9 one process of the run."""
        os.kill(self.pid(name), signal.SIGKILL)

    def ended(self, within_s: float) -> tuple[int, str]:
        """Wait for the end; give exit code and output."""
        code = self.process.wait(within_s)
        return code, self.output.read_text()

    def left(self, within_s: float = 10.0) -> list[str]:
        """Name the processes that are still there when they had time to go."""
        deadline = time.monotonic() + within_s
        while (there := living_in(self.directory)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return list(there.values())


@contextmanager
def launched(directory: Path, config: dict[str, Any], *words: str) -> Iterator[Launched]:
    """Start `headrace run`; whatever is left at the end is killed."""
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    output = directory / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", "config.yaml", *words],
            cwd=directory,
            env=_environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield Launched(process, directory, output)
    finally:
        for pid in living_in(directory):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def living_in(directory: Path) -> dict[int, str]:
    """Find processes whose current folder this is: the run's, for nobody else is started there."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if (entry / "cwd").readlink() != directory:
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = b" ".join(words).decode()
        except OSError:
            continue
    return found
