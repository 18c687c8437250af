"""What weights are called in a vLLM server: the label that it gives to what it generates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from headrace.v1 import prompt_pb2

_FORM: Final = re.compile(r"headrace:([A-Za-z0-9.-]+):(\d+):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Tag:
    """A version of the weights, by name and content."""

    lineage: str
    version: int
    checksum: str
    """SHA-256 of the manifest, hexadecimal."""

    @classmethod
    def of(cls, published: prompt_pb2.PublishedWeights) -> Self:
        """Name published weights."""
        return cls(published.id.lineage, published.id.version, published.checksum)

    @classmethod
    def parse(cls, label: str) -> Self | None:
        """Read a label; None if it is none of ours, as a fresh server's `default`."""
        match = _FORM.fullmatch(label)
        return None if match is None else cls(match[1], int(match[2]), match[3])

    @property
    def weights(self) -> prompt_pb2.WeightsId:
        """The version's name in the ledger."""
        return prompt_pb2.WeightsId(lineage=self.lineage, version=self.version)

    def is_after(self, other: Tag) -> bool:
        """Whether it is a later version of the same line."""
        return self.lineage == other.lineage and self.version > other.version

    def __str__(self) -> str:
        return f"headrace:{self.lineage}:{self.version}:{self.checksum}"
