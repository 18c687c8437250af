"""Where checkpoints lie. Renames are atomic; what is being written is torn until it is whole."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from headrace.checkpoint.directory import Found
from headrace.checkpoint.manifest import Manifest


class DamagedError(Exception):
    """A part is missing, or is not what its manifest says."""


@dataclass
class Directory:
    """One checkpoint, or what may become one."""

    parts: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None


class _Torn:
    """What a part is while it is being written, or after its bytes were hurt."""

    def __repr__(self) -> str:
        return "torn"


TORN = _Torn()
PARTS = ("ledger", "store", "trainer")


class Storage:
    """`checkpoint.storage`."""

    def __init__(self) -> None:
        self.directories: dict[int, Directory] = {}
        """By step."""
        self.abandoned: list[Directory] = []
        self.latest: int | None = None

    @staticmethod
    def uri(step: int) -> str:
        """Where a step's checkpoint lies."""
        return f"global_step_{step}"

    def write(self, uri: str, part: str, content: Any) -> None:
        """Write a part as a whole."""
        self.directories.setdefault(_step(uri), Directory()).parts[part] = content

    def read(self, uri: str, part: str) -> Any:
        """Read a part.

        Raises:
            DamagedError: it is not there, or not whole.

        """
        directory = self.directories.get(_step(uri))
        content = directory.parts.get(part) if directory else None
        if content is None or content is TORN:
            raise DamagedError(f"{uri}/{part}")
        return content

    def remove(self, step: int) -> None:
        """Remove a directory, the manifest first."""
        self.directories.pop(step, None)

    def move_aside(self, step: int) -> None:
        """Move a directory to `abandoned/`."""
        self.abandoned.append(self.directories.pop(step))

    def manifest(self, step: int) -> Manifest | None:
        """Give a step's manifest, if there is one."""
        directory = self.directories.get(step)
        return directory.manifest if directory else None

    def look(self, step: int, *, read: bool = True) -> Found:
        """Look at a step's checkpoint; `read` = at every byte of it."""
        directory, uri = self.directories.get(step), self.uri(step)
        if directory is None or directory.manifest is None:
            return Found(step, uri, None, ("there is no manifest",), unfinished=True)
        problems = tuple(self._problems(directory)) if read else ()
        return Found(step, uri, directory.manifest, problems)

    def find(self) -> list[Found]:
        """Look at all manifests, newest step first."""
        return [self.look(step, read=False) for step in sorted(self.directories, reverse=True)]

    @staticmethod
    def _problems(directory: Directory) -> list[str]:
        assert directory.manifest
        return [
            f"{part.name} is damaged"
            for part in directory.manifest.parts
            if digest_of(directory.parts.get(part.name)) != part.files[0].sha256
        ]


def digest_of(content: Any) -> str:
    """Digest a part's content; the same in every process."""
    data = content if isinstance(content, bytes) else repr(content).encode()
    return f"{zlib.crc32(data):08x}"


def _step(uri: str) -> int:
    return int(uri.rpartition("_")[2])
