"""The list of files of one weight version, with size and SHA-256 of each.

Knows the manifest's JSON form; reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from headrace.weights import document

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """One file of a weight version."""

    size_bytes: int
    sha256: str
    """Of the file's bytes, hexadecimal."""


@dataclass(frozen=True)
class Manifest:
    """One weight version: whose it is and what files it has."""

    schema_version: int
    run_id: str
    lineage: str
    version: int
    """The trainer step after which it was written; 0 = initial."""
    files: Mapping[str, FileEntry]
    """By path relative to the directory, with forward slashes."""

    def to_bytes(self) -> bytes:
        """Serialize. Equal manifests give equal bytes."""
        return document.to_bytes(self, indent=1)


def parse(data: bytes, *, source: str) -> Manifest:
    """Read a manifest's bytes.

    Raises:
        WeightsDamagedError: not a manifest, or one of another schema. `source` names it.

    """
    return document.parse(
        data, source=source, what="a manifest of weights", schema=SCHEMA_VERSION, make=_manifest
    )


def _manifest(value: Mapping[str, Any]) -> Manifest:
    return Manifest(
        schema_version=value["schema_version"],
        run_id=str(value["run_id"]),
        lineage=str(value["lineage"]),
        version=int(value["version"]),
        files={_checked(name): _entry(entry) for name, entry in value["files"].items()},
    )


def _entry(value: Mapping[str, Any]) -> FileEntry:
    return FileEntry(size_bytes=int(value["size_bytes"]), sha256=str(value["sha256"]))


def _checked(name: str) -> str:
    # A manifest comes from another machine: it must not point outside of its directory.
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        msg = f"file name {name!r} leaves the directory"
        raise ValueError(msg)
    return name
