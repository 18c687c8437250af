"""The one table: what headrace costs, and how it compares, a line for each thing measured.

Rates of a shared machine mean little, so there are none: a cost is CPU time or a wait, a
comparison is a ratio of rates, above 1 where headrace is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.ratio import Ratio


@dataclass(frozen=True)
class Row:
    """A line of the table. A line with a name alone is a heading."""

    name: str
    cost: str = ""
    """Of headrace."""
    peer: Ratio | None = None
    """Headrace's rate / that of TransferQueue, or of what the line names."""
    bare: Ratio | None = None
    """Headrace's rate / that of a bare pipeline in one process."""

    @property
    def is_heading(self) -> bool:
        """Whether it has a name only."""
        return not (self.cost or self.peer or self.bare)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """What is printed."""
        return self.name, self.cost, str(self.peer or ""), str(self.bare or "")


_HEAD = ("", "headrace", "/ TransferQueue", "/ bare pipeline")


def microseconds(seconds: float) -> str:
    """Write CPU time."""
    return f"{seconds * 1e6:,.0f} us"


def milliseconds(*seconds: float) -> str:
    """Write durations, such as two percentiles."""
    return " / ".join(f"{value * 1e3:.2f}" for value in seconds) + " ms"


def render(rows: Sequence[Row]) -> str:
    """Lay the table out for a terminal."""
    table = [_HEAD, *(row.cells for row in rows)]
    headings = [False, *(row.is_heading for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(4)]
    lines: list[str] = []
    for cells, is_heading in zip(table, headings, strict=True):
        name = cells[0] if is_heading else f"  {cells[0]}"
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        lines += [""] if is_heading else []
        lines.append("  ".join((name.ljust(widths[0] + 2), *rest)).rstrip())
    return "\n".join(lines)
