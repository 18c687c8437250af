"""Where checkpoints lie. Renames are atomic; what is being written is torn until it is whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Damaged(Exception):
    """A part is missing, or is not what its manifest says."""


@dataclass(frozen=True)
class Manifest:
    """What makes a directory a checkpoint."""

    snapshot_id: str
    step: int
    lineages: tuple[tuple[str, int], ...]
    """(id, fork step), oldest first."""
    store_incarnation: str
    digests: dict[str, int]
    """By part."""

    @property
    def lineage(self) -> str:
        """The time line of the step."""
        return self.lineages[-1][0]


@dataclass
class Directory:
    """One checkpoint, or what may become one."""

    parts: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None


class _Torn:
    """What a part is while it is being written, or after its bytes were hurt."""


TORN = _Torn()
PARTS = ("ledger", "store", "trainer")


class Storage:
    """`checkpoint.storage`."""

    def __init__(self) -> None:
        self.directories: dict[str, Directory] = {}
        """By uri."""
        self.abandoned: list[Directory] = []
        self.latest: int | None = None

    @staticmethod
    def uri(step: int) -> str:
        """Where a step's checkpoint lies."""
        return f"global_step_{step}"

    def write(self, uri: str, part: str, content: Any) -> None:
        """Write a part as a whole."""
        self.directories.setdefault(uri, Directory()).parts[part] = content

    def read(self, uri: str, part: str) -> Any:
        """Read a part.

        Raises:
            Damaged: it is not there, or not whole.

        """
        directory = self.directories.get(uri)
        content = directory.parts.get(part) if directory else None
        if content is None or content is TORN:
            raise Damaged(f"{uri}/{part}")
        return content

    def remove(self, uri: str) -> None:
        """Remove a directory, the manifest first."""
        self.directories.pop(uri, None)

    def move_aside(self, uri: str) -> None:
        """Move a directory to `abandoned/`."""
        self.abandoned.append(self.directories.pop(uri))

    def problem(self, uri: str) -> str:
        """Say what is wrong with a checkpoint; empty if it is whole."""
        directory = self.directories.get(uri)
        if directory is None or directory.manifest is None:
            return "there is no manifest"
        for part in PARTS:
            content = directory.parts.get(part)
            if content is None or content is TORN:
                return f"{part} is damaged"
            if digest_of(content) != directory.manifest.digests[part]:
                return f"{part} is not what it was"
        return ""

    def manifests(self) -> list[Manifest]:
        """Give all, newest step first, whole or not."""
        found = [each.manifest for each in self.directories.values() if each.manifest]
        return sorted(found, key=lambda manifest: -manifest.step)


def digest_of(content: Any) -> int:
    """Digest a part's content; the same in every process."""
    import zlib

    data = content if isinstance(content, bytes) else repr(content).encode()
    return zlib.crc32(data)
