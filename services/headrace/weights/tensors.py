"""The list of tensors of one weight version, with a digest of each.

Beside versions that may also be received as tensors, without the file that holds them: the manifest
covers the list, and the list the tensors. Knows the JSON form; reads no files and knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.weights import document

SCHEMA_VERSION: Final = 1
TENSORS_NAME: Final = "tensors.json"
WEIGHTS_NAME: Final = "model.safetensors"
"""The file that the tensors are in."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor, as it is in the file."""

    name: str
    dtype: str
    """Its number format, as torch calls it: `bfloat16`."""
    shape: Sequence[int]
    digest: str
    """Of its bytes, as `headrace.weights.digest` makes it; 16 hexadecimal digits."""


@dataclass(frozen=True)
class TensorList:
    """All tensors of a version, in the order in which they are sent."""

    schema_version: int
    tensors: Sequence[TensorEntry]

    def to_bytes(self) -> bytes:
        """Serialize. Equal lists give equal bytes."""
        return document.to_bytes(self)


def parse(data: bytes, *, source: str) -> TensorList:
    """Read a list's bytes.

    Raises:
        WeightsDamagedError: not a list of tensors, or one of another schema. `source` names it.

    """
    return document.parse(
        data, source=source, what="a list of tensors", schema=SCHEMA_VERSION, make=_list
    )


def _list(value: Mapping[str, Any]) -> TensorList:
    return TensorList(value["schema_version"], [_entry(each) for each in value["tensors"]])


def _entry(value: Mapping[str, Any]) -> TensorEntry:
    shape = [int(each) for each in value["shape"]]
    return TensorEntry(str(value["name"]), str(value["dtype"]), shape, str(value["digest"]))
