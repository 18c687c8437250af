"""What the feeder asks of a data set, and what a row is.

Knows no kind of source and no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from headrace.errors import UsageError

SAMPLED_ROWS = 16
"""Rows that go into the fingerprint of a source whose content cannot be hashed as a whole."""

Messages = list[dict[str, str]]
"""A chat: messages of `role` and `content`."""


@dataclass(frozen=True)
class Row:
    """One row of a data set."""

    prompt: str | Messages
    """Text, or a chat that still needs the chat template."""
    answer: str
    """The reference answer; empty if there is none."""
    data_source: str
    """The name that a reward may depend on."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The other columns. They can be written as JSON."""


class Source(Protocol):
    """A data set with a length and O(1) access by index.

    Reading may take its time (the feeder reads in a thread, one row at a time), and always gives
    the same row for the same index.
    """

    @property
    def name(self) -> str:
        """What messages call it: the file, the data set, the function."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row:
        """Read row `index`, from 0.

        Raises:
            UsageError: the row is not usable; the message says which and why.

        """

    def fingerprint(self) -> str:
        """Digest the content, the same in every process that opens the same data."""


@dataclass(frozen=True)
class Columns:
    """Which column of a row is what."""

    prompt_key: str
    """The prompt: text, or a list of chat messages."""
    answer_key: str | None
    """The reference answer; None if there is none."""
    data_source: str
    """The row's, unless it has a text column of that name."""
    advice: str
    """What to do when a column is missing."""
    may_lack_answer: bool = False
    """Whether a row without the answer's column has an empty answer."""


def row_from_columns(values: object, columns: Columns, *, where: str) -> Row:
    """Take a row's columns apart.

    Args:
        values: A mapping of column names to values.
        columns: Which column is what.
        where: How messages name the row, such as `words.jsonl:3`.

    Raises:
        UsageError: a column is missing or of the wrong kind.

    """
    prompt_key, answer_key = columns.prompt_key, columns.answer_key
    if not isinstance(values, Mapping):
        raise UsageError(f"{where}: not a JSON object or mapping but {_kind(values)}")
    for key in (prompt_key, answer_key):
        if key == answer_key and columns.may_lack_answer:
            continue
        if key is not None and key not in values:
            there = ", ".join(map(str, values)) or "none"
            raise UsageError(
                f"{where}: no column {key!r}; the columns are: {there}; {columns.advice}"
            )
    prompt = check_prompt(values[prompt_key], where=f"{where}: {prompt_key}")
    answer = "" if answer_key is None else _answer_text(values.get(answer_key), where)
    given = values.get("data_source")
    metadata = {key: value for key, value in values.items() if key not in (prompt_key, answer_key)}
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: its other columns cannot be written as JSON: {error}") from None
    return Row(
        prompt=prompt,
        answer=answer,
        data_source=_utf8(given, where)
        if given and isinstance(given, str)
        else columns.data_source,
        metadata=metadata,
    )


def row_from_json(text: str, columns: Columns, *, where: str) -> Row:
    """Take the JSON text of a row apart.

    Raises:
        UsageError: it is no JSON object, or a column is missing or of the wrong kind.

    """
    try:
        values = json.loads(text.rstrip(), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: malformed JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: malformed JSON: {error}") from None
    return row_from_columns(values, columns, where=where)


def check_prompt(value: object, *, where: str) -> str | Messages:
    """Accept text or chat messages.

    Raises:
        UsageError: it is neither, or empty.

    """
    if isinstance(value, str):
        if not value:
            raise UsageError(f"{where}: is empty")
        return _utf8(value, where)
    if isinstance(value, list) and value:
        for message in value:
            if (
                not isinstance(message, Mapping)
                or set(message) != {"role", "content"}
                or not all(isinstance(text, str) for text in message.values())
            ):
                raise UsageError(
                    f"{where}: a chat message must have the texts `role` and `content` and "
                    f"nothing else; this one is {_shorten(message)}"
                )
        return [{key: _utf8(text, where) for key, text in message.items()} for message in value]
    raise UsageError(
        f"{where}: must be text or a list of chat messages, and is {_shorten(value)} "
        f"({_kind(value)})"
    )


def sample_digest(source: Source, **identity: object) -> str:
    """Digest what a procedural source was made from, and a sample of its rows.

    The sample shows a change of the code that makes the rows, which no name or version tells.
    """
    size = len(source)
    count = min(size, SAMPLED_ROWS)
    rows = [source[i * (size - 1) // max(1, count - 1)] for i in range(count)]
    told = {
        "identity": identity,
        "size": size,
        "rows": [[row.prompt, row.answer, row.data_source, row.metadata] for row in rows],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()


def one_line(error: BaseException) -> str:
    """Write an error of foreign code on one line, its type first."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _answer_text(value: object, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _utf8(value, where)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise UsageError(f"{where}: the answer is not text but {_kind(value)}") from None


def _utf8(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: half of a surrogate pair, which is no text") from None
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kind(value: object) -> str:
    return type(value).__name__


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
