"""Writes docs/configuration.md from the models, so that it cannot fall behind them."""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.config.config import Config
from headrace.config.schema import KIND, NAME, entry_of, kind_of, sections
from headrace.config.section import Section

INTRODUCTION = """\
# Configuration

<!-- Generated from services/headrace/config by `make docs`. Do not edit. -->

One YAML file configures a run. Every key below can be overridden on the command line, the value
written in YAML:

```
headrace run examples/sort_digits.yaml run.name=mine rollout.n=8 trainer.optim.lr=5e-4 'rollout.engine={kind: scripted}'
headrace config show examples/sort_digits.yaml rollout.n=8      # everything as it would be used
headrace config check examples/sort_digits.yaml                 # nothing but what is wrong
```

An unknown key is an error. Paths to files count from the configuration file's folder, those to
what a run makes (`run.run_dir`, `checkpoint.storage`) and goes on from (`resume.path`) from the
current one.
"""


def reference() -> str:
    """Give the whole page."""
    parts = [INTRODUCTION]
    for name, field in Config.model_fields.items():
        parts.extend(_part(name, field, level=2))
    return "\n".join(parts)


def _part(key: str, field: FieldInfo, level: int, of: type[Section] | None = None) -> list[str]:
    """Give a heading, a table, and then the sections below it."""
    [section] = [of] if of is not None else sections(field.annotation)
    kind = kind_of(section)
    title = f"`{key}` of kind `{kind}`" if kind else f"`{key}`"
    text = section.__doc__ if of is not None else field.description
    lines = [f"{'#' * level} {title}", "", _prose(text), ""]
    lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [_row(f"{key}.{name}", inner) for name, inner in section.model_fields.items()]
    lines.append("")
    for name, inner in section.model_fields.items():
        below = sections(inner.annotation)
        single = len(below) == 1 and _is_plain(inner.annotation)
        for member in below:
            lines += _part(f"{key}.{name}", inner, min(level + 1, 4), of=None if single else member)
        if entry := entry_of(inner.annotation):
            lines += _part(f"{key}.{name}.{NAME}", inner, min(level + 1, 4), of=entry)
    return lines


def _row(key: str, field: FieldInfo) -> str:
    meaning = field.description or ("Chooses this kind." if key.endswith(f".{KIND}") else None)
    cells = [f"`{key}`", _type(field.annotation), _default(field), _prose(meaning)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _prose(text: str | None) -> str:
    return " ".join((text or "").split())


def _is_plain(annotation: Any) -> bool:
    return isinstance(annotation, type)


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(argument) for argument in arguments))
    if origin is typing.Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of any of {_type(arguments[0])}"
        return f"list of {len(arguments)} {_type(arguments[0])}s"
    if origin is list:
        return f"list of {_type(arguments[0])}s"
    if origin is dict:
        return "mapping"
    if annotation is type(None):
        return "null"
    if issubclass(annotation, BaseModel):
        return "section"
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}
    name = str(annotation.__name__)
    return names.get(name, name.lower())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if isinstance(value, Section):
        kind = kind_of(type(value))
        return f"kind `{kind}`" if kind else ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return "[" + ", ".join(f"{item:g}" for item in value) + "]"
    return str(value) if value not in ("", {}) else "empty"
