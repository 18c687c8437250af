"""The JSON files that lie beside weights: each says its schema, and is read by one that knows it.

Knows nothing of what they hold, and reads and writes no files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Document = TypeVar("_Document")


class WeightsDamagedError(HeadraceError):
    """A weight directory is not what its manifest says."""


def to_bytes(document: DataclassInstance, *, indent: int | None = None) -> bytes:
    """Serialize. Equal documents give equal bytes."""
    return (json.dumps(asdict(document), indent=indent, sort_keys=True) + "\n").encode()


def parse(
    data: bytes, *, source: str, what: str, schema: int, make: Callable[[Any], _Document]
) -> _Document:
    """Read a document's bytes.

    Args:
        data: The bytes.
        source: Their name, for messages.
        what: What they should be, for messages.
        schema: The schema version that is known here.
        make: Makes the document of its JSON; a ValueError, KeyError, TypeError or AttributeError
            of it says that this is none.

    Raises:
        WeightsDamagedError: not such a document, or one of another schema.

    """
    try:
        value = json.loads(data)
        found = value["schema_version"]
        if found != schema:
            raise WeightsDamagedError(
                f"{source}: schema version {found} is not {schema}, the one known here"
            )
        return make(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsDamagedError(f"{source}: not {what}: {error!r}") from error
