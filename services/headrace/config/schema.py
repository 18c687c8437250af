"""What keys the configuration has. Looks at the models only, never at a file."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from headrace.config.section import Section

KIND = "kind"
"""The key that says which of several sections a union holds."""
NAME = "NAME"
"""Stands for a key of the user's choice, in a mapping of names to sections."""


def alternatives(annotation: Any) -> list[Any]:
    """Give the members of a union, or the annotation alone; None and markers taken off."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        members = [m for a in typing.get_args(annotation) for m in alternatives(a)]
        return [member for member in members if member is not type(None)]
    return [annotation]


def sections(annotation: Any) -> list[type[Section]]:
    """Give the sections a field of this annotation may hold."""
    return [
        member
        for member in alternatives(annotation)
        if isinstance(member, type) and issubclass(member, Section)
    ]


def entry_of(annotation: Any) -> type[Section] | None:
    """Give the section that a mapping of names to sections holds, if it is one."""
    if typing.get_origin(annotation) is not dict:
        return None
    found = sections(typing.get_args(annotation)[1])
    return found[0] if len(found) == 1 else None


def kind_of(section: type[Section]) -> str | None:
    """Give the value of `kind` that chooses this section, if one does."""
    field = section.model_fields.get(KIND)
    if field is None or typing.get_origin(field.annotation) is not typing.Literal:
        return None
    values = typing.get_args(field.annotation)
    return str(values[0]) if len(values) == 1 else None


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Walk all fields below a section as (dotted key, field), sections included."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        yield key, field
        for inner in sections(field.annotation):
            yield from fields(inner, f"{key}.")
        if entry := entry_of(field.annotation):
            yield from fields(entry, f"{key}.{NAME}.")


def known_keys(section: type[Section]) -> list[str]:
    """List every dotted key once, in the order of the models."""
    return list(dict.fromkeys(key for key, _ in fields(section)))
