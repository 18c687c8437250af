"""The benchmarks' one table: ours, the peer's, and the ratio with both figures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A line of the table. A line with a name alone is a heading."""

    name: str
    ours: str = ""
    theirs: str = ""
    ratio: str = ""


HEAD = Row("", "headrace", "TransferQueue", "ratio (quartiles)")


def per_second(rate: float) -> str:
    """Write a rate."""
    return f"{rate:,.0f}/s"


def milliseconds(seconds: float) -> str:
    """Write a duration that a person would give in milliseconds."""
    return f"{seconds * 1e3:.2f} ms"


def microseconds(seconds: float) -> str:
    """Write a duration that a person would give in microseconds."""
    return f"{seconds * 1e6:.0f} us"


def render(rows: Sequence[Row]) -> str:
    """Lay the table out for a terminal."""
    cells = [(row.name, row.ours, row.theirs, row.ratio) for row in (HEAD, *rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = []
    for row, line in zip((HEAD, *rows), cells, strict=True):
        heading = row.name and not row.ours and not row.theirs
        name = row.name.ljust(widths[0]) if heading else f"  {row.name}".ljust(widths[0] + 2)
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines += [""] if heading else []
        lines.append("  ".join((name, *rest)).rstrip())
    return "\n".join(lines)
