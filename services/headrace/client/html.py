"""Small pieces of HTML for notebooks, without style sheets: light and dark themes both read well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

COLOURS: Final = {
    "pending": "#9aa5b1",
    "running": "#f0a202",
    "finished": "#2a9d8f",
    "failed": "#d1495b",
    "sampled": "#3d6fb6",
    "trained": "#264653",
    "dropped": "#7a5c61",
}
"""A colour per state, the same in tables and plots."""

_CELL: Final = "padding:2px 12px 2px 0;text-align:left;vertical-align:top;border:none"
_QUIET: Final = "opacity:0.65"


class Html(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def text(value: object) -> str:
    """Give a value as HTML."""
    return value if isinstance(value, Html) else escape(str(value))


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Lay out names and values."""
    rows = "".join(
        f'<tr style="background:none"><td style="{_CELL};{_QUIET};white-space:nowrap">{text(name)}'
        f'</td><td style="{_CELL}">{text(value)}</td></tr>'
        for name, value in pairs
    )
    return Html(f'<table style="border-collapse:collapse;margin:4px 0">{rows}</table>')


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Lay out rows in columns."""
    head = "".join(
        f'<th style="{_CELL};{_QUIET};font-weight:normal">{text(h)}</th>' for h in header
    )
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{_CELL}">{text(cell)}</td>' for cell in row)
        + "</tr>"
        for row in rows
    )
    return Html(
        '<table style="border-collapse:collapse;margin:4px 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def bar(counts: Mapping[str, int], total: int) -> Html:
    """Draw counts by state as a bar; `total` is its full width, if it is more than their sum."""
    width = max(total, sum(counts.values()), 1)
    pieces = "".join(
        f'<div title="{text(state)}: {count}" style="width:{100 * count / width:.2f}%;'
        f'background:{COLOURS[state]}"></div>'
        for state, count in counts.items()
        if count
    )
    key = " ".join(
        f'<span style="white-space:nowrap;margin-right:10px"><span style="color:{COLOURS[state]}">'
        f"&#9632;</span> {text(state)} {count}</span>"
        for state, count in counts.items()
    )
    return Html(
        '<div style="display:flex;height:12px;max-width:480px;border-radius:3px;overflow:hidden;'
        f'background:rgba(128,128,128,0.2);margin:4px 0">{pieces}</div><div>{key}</div>'
    )


def progress(done: int, total: int) -> Html:
    """Draw a thin bar of what is done."""
    share = 100 * done / total if total else 0
    return Html(
        '<div style="height:4px;max-width:480px;border-radius:2px;overflow:hidden;'
        'background:rgba(128,128,128,0.2);margin:4px 0"><div style="height:4px;'
        f'width:{share:.2f}%;background:{COLOURS["sampled"]}"></div></div>'
    )


def alarm(words: object) -> Html:
    """Show words in red."""
    return Html(f'<span style="color:{COLOURS["failed"]};font-weight:600">{text(words)}</span>')


def title(words: object, beside: object = "") -> Html:
    """Head a view."""
    return Html(
        f'<div style="margin-top:4px"><b>{text(words)}</b> '
        f'<span style="{_QUIET}">{text(beside)}</span></div>'
    )
