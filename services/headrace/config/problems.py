"""Turns pydantic's errors into lines that a user can act on. Opens no file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.config.schema import (
    KIND,
    alternatives,
    entry_of,
    kind_of,
    known_keys,
    sections,
)
from headrace.config.section import Section
from headrace.config.suggest import suggest

LONGEST_VALUE = 60
"""Characters of a wrong value that are shown."""


class _Place:
    """Where in the configuration an error lies."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.section: type[Section] | None = None
        """The section the last part belongs to."""
        self.off_branch = False
        """The error comes from a member of a union that was not meant."""

    @property
    def key(self) -> str:
        return ".".join(self.parts)


def _locate(root: type[Section], raw: Any, loc: Sequence[str | int]) -> _Place:
    """Follow pydantic's location, leaving out the names of union members in it."""
    place = _Place()
    place.section = root
    here: list[Any] = [root]
    value = raw
    for part in loc:
        if len(here) > 1:  # a union: this part names the member that was tried
            meant_section = isinstance(value, dict)
            chosen = [s for s in here if _is_section(s) and _names(s, str(part))]
            others = [member for member in here if not _is_section(member)]
            here = chosen or others
            place.off_branch = meant_section != bool(chosen)
            continue
        member: Any = here[0] if here else None
        place.parts.append(str(part))
        value = _child(value, part)
        if _is_section(member):
            place.section = member
            field = member.model_fields.get(str(part))
            here = alternatives(field.annotation) if field is not None else []
        else:
            place.section = None
            entry = entry_of(member)
            here = [entry] if entry else []
    return place


def _is_section(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, Section)


def _names(section: type[Section], label: str) -> bool:
    return label == kind_of(section) or re.search(rf"\b{section.__name__}\b", label) is not None


def _child(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


class Problem:
    """One thing that is wrong: the key it concerns, and a sentence without the key."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        self.text = text


def problems(root: type[Section], raw: dict[str, Any], error: ValidationError) -> list[Problem]:
    """Translate every error, in the order of the configuration."""
    known = known_keys(root)
    found = []
    for detail in error.errors(include_url=False):
        place = _locate(root, raw, detail["loc"])
        if not place.off_branch:
            found.append(_problem(place, detail, known))
    return found


def _problem(place: _Place, detail: ErrorDetails, known: list[str]) -> Problem:
    kind, key, value = detail["type"], place.key, detail["input"]
    if kind == "extra_forbidden":
        if key in known and place.section is not None and (chosen := kind_of(place.section)):
            whole = ".".join(place.parts[:-1])
            return Problem(
                key,
                f"{key}: is no key of kind {chosen}; to change the kind, give {whole} as a whole",
            )
        return Problem(key, unknown_key(key, known))
    if kind == "missing":
        return Problem(key, f"{key}: is required{_purpose(place)}")
    if kind == "union_tag_not_found":
        key = f"{key}.{KIND}"
        return Problem(key, f"{key}: is required{_purpose(place)}")
    if kind == "union_tag_invalid":
        key, context = f"{key}.{KIND}", detail.get("ctx", {})
        expected = str(context["expected_tags"]).replace(", ", " or ")
        return Problem(key, f"{key} = {_shown(context['tag'])}: should be {expected}")
    if kind == "value_error":
        reason = str(detail["msg"]).removeprefix("Value error, ")
        return Problem(key, f"{key}: {reason}" if key and not reason.startswith(key) else reason)
    if kind in {"model_type", "dict_type"}:
        return Problem(key, f"{key} = {_shown(value)}: should be a mapping of keys to values")
    return Problem(key, f"{key} = {_shown(value)}: {_what_is_wrong(str(detail['msg']))}")


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Say that a key does not exist, and which one may be meant."""
    meant = suggest(key, known)
    return f"{key}: unknown key" + (f"; did you mean {meant}?" if meant else "")


def _what_is_wrong(message: str) -> str:
    message = message.replace("Input is not a valid path", "should be a path")
    message = re.sub(r" for <class '[^']*'>", "", message)
    return re.sub(r"^(Input|String|List|Tuple|Dictionary|Value) ", "", message)


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _purpose(place: _Place) -> str:
    """Quote the first sentence about a field."""
    field = place.section.model_fields.get(place.parts[-1]) if place.section else None
    if field is None or not field.description:
        return ""
    first = " ".join(field.description.split()).split(". ")[0].rstrip(".")
    choices = [kind for s in sections(field.annotation) if (kind := kind_of(s))]
    return f" ({' | '.join(choices) if choices else first})"
