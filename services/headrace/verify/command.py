"""Two plays and a verdict: what `headrace verify-resume` does."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from headrace.config.config import Config
from headrace.verify.play import Played, play, processes
from headrace.verify.rehearsal import rehearse
from headrace.verify.strikes import Strikes
from headrace.verify.verdict import SHOWN, Line, judge


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be verified, and how hard."""

    directory: Path
    """Where the rehearsals keep their files; made anew."""
    kills: int
    seed: int
    steps: int
    rounds: int
    """Plays, at most, in which the named points are reached that were not reached before."""
    limit_s: float
    """How long one play may take."""


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    undisturbed: Played
    struck: tuple[Played, ...]
    lines: tuple[tuple[Line, ...], ...]
    """By play that was struck."""

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return self.undisturbed.exit_code == 0 and not any(
            line.wrong for lines in self.lines for line in lines
        )

    @property
    def unreached(self) -> list[str]:
        """Named points that nobody came to in any play."""
        return self.struck[-1].strikes.unreached if self.struck else []

    @property
    def reached(self) -> list[str]:
        """Named points that killed somebody, in all plays."""
        return [point for played in self.struck for point in played.strikes.reached]


def verify(config: Config, wanted: Wanted, report: Callable[[str], None]) -> Outcome:
    """Play a configuration undisturbed, then struck, and judge.

    Raises:
        UsageError: it cannot be rehearsed, or the directory cannot be used.

    """
    shutil.rmtree(wanted.directory, ignore_errors=True)

    def rehearsal(name: str) -> Config:
        return rehearse(
            config, run_dir=wanted.directory / name, steps=wanted.steps, seed=wanted.seed
        )

    def played(name: str, strikes: Strikes) -> Played:
        said = time.monotonic()

        def tell(line: str) -> None:
            report(f"{time.monotonic() - said:5.0f} s  {name}: {line}")

        return asyncio.run(play(rehearsal(name), strikes, limit_s=wanted.limit_s, report=tell))

    undisturbed = played("undisturbed", Strikes.none())
    if undisturbed.exit_code != 0:
        return Outcome(undisturbed, (), ())
    names = processes(rehearsal("struck-1"))
    strikes = Strikes.planned(kills=wanted.kills, seed=wanted.seed, processes=names)
    struck: list[Played] = []
    lines: list[tuple[Line, ...]] = []
    for number in range(1, wanted.rounds + 1):
        one = played(f"struck-{number}", strikes)
        struck.append(one)
        lines.append(tuple(judge(undisturbed, one)))
        if not one.strikes.unreached or one.exit_code != 0:
            break
        strikes = one.strikes.again()
    return Outcome(undisturbed, tuple(struck), tuple(lines))


def table_of(outcome: Outcome) -> Table:
    """Lay the verdict out, for a terminal."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for index, first in enumerate(outcome.lines[0] if outcome.lines else ()):
        wrong = [text for lines in outcome.lines for text in lines[index].wrong]
        table.add_row(
            "[red]BROKEN[/]" if wrong else "[green]holds[/]", f"{first.key}: {first.what}"
        )
        for text in wrong[:SHOWN]:
            table.add_row("", f"[red]{text}[/]")
        if len(wrong) > SHOWN:
            table.add_row("", f"[red]and {len(wrong) - SHOWN} more[/]")
    return table
