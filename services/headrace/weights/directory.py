"""Weight versions as directories: written whole or not at all, verified, pruned.

Knows nothing of torch or of models: the trainer passes a callback that saves the files, and a
worker reads them after `verify`. A directory is called `{run_id}_{lineage}_v{version:08d}` and
holds `config.json`, `model.safetensors`, `probe.json` and `manifest.json`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from headrace.weights.document import WeightsDamagedError
from headrace.weights.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    FileEntry,
    Manifest,
    parse,
)

__all__ = [
    "FileEntry",
    "Manifest",
    "WeightsDamagedError",
    "name_of",
    "prune",
    "prune_other_lines",
    "verify",
    "write",
]


def name_of(run_id: str, lineage: str, version: int) -> str:
    """Name the directory of a weight version."""
    return f"{run_id}_{lineage}_v{version:08d}"


def write(
    root: Path, *, run_id: str, lineage: str, version: int, write_files: Callable[[Path], None]
) -> tuple[Path, str]:
    """Write a weight version below `root`, and return its directory and checksum.

    `write_files` saves the files into the directory it is given. Everything is on disk before the
    directory takes its name, so a directory with the right name is complete. A directory that has
    the name already is replaced: one that was announced is never written again.

    The checksum is the SHA-256 of `manifest.json`'s bytes, hexadecimal.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / name_of(run_id, lineage, version)
    fresh = _hidden(final, "new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    write_files(fresh)
    manifest = Manifest(SCHEMA_VERSION, run_id, lineage, version, _entries(fresh))
    data = manifest.to_bytes()
    (fresh / MANIFEST_NAME).write_bytes(data)
    _sync_tree(fresh)
    if final.exists():
        _remove(final)
    fresh.rename(final)
    _sync(root)
    return final, hashlib.sha256(data).hexdigest()


def verify(directory: Path, *, without: Collection[str] = ()) -> tuple[Manifest, str]:
    """Check every file of a weight version but some, and return its manifest and checksum.

    Raises:
        WeightsDamagedError: the manifest or a file is missing, or a file has other bytes.

    """
    try:
        data = (directory / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise WeightsDamagedError(f"{directory}: no readable {MANIFEST_NAME}: {error}") from error
    manifest = parse(data, source=str(directory / MANIFEST_NAME))
    for name, entry in manifest.files.items():
        if name not in without:
            _verify_file(directory / name, entry)
    return manifest, hashlib.sha256(data).hexdigest()


def prune(root: Path, *, run_id: str, lineage: str, oldest_needed: int) -> None:
    """Remove this line's versions below `oldest_needed`, and what a killed writer left behind.

    Only the line's one writer may call it. A reader sees a directory whole or not at all.
    """
    pattern = re.compile(re.escape(f"{run_id}_{lineage}_v") + r"(\d{8,})")
    for path in root.iterdir():
        name = path.name
        if match := pattern.fullmatch(name):
            if int(match[1]) < oldest_needed:
                _remove(path)
        elif name.startswith(".") and pattern.match(name, 1):
            shutil.rmtree(path, ignore_errors=True)


def prune_other_lines(root: Path, *, run_id: str, lineage: str) -> None:
    """Remove all versions of the run's other lines, which nobody loads any more."""
    pattern = re.compile(r"\.?" + re.escape(run_id) + r"_([A-Za-z0-9.-]+)_v\d{8,}(\..+)?")
    for path in root.iterdir():
        match = pattern.fullmatch(path.name)
        if match is None or match[1] == lineage:
            continue
        if path.name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)
        else:
            _remove(path)


def _entries(directory: Path) -> dict[str, FileEntry]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): FileEntry(path.stat().st_size, _sha256(path))
        for path in files
    }


def _verify_file(path: Path, entry: FileEntry) -> None:
    try:
        size = path.stat().st_size
        if size != entry.size_bytes:
            raise WeightsDamagedError(f"{path}: {size} bytes, {entry.size_bytes} are expected")
        found = _sha256(path)
    except OSError as error:
        raise WeightsDamagedError(f"{path}: not readable: {error}") from error
    if found != entry.sha256:
        raise WeightsDamagedError(f"{path}: SHA-256 is {found}, {entry.sha256} is expected")


def _remove(directory: Path) -> None:
    # Renamed first, so that nobody finds half a directory under its name.
    hidden = _hidden(directory, "old")
    shutil.rmtree(hidden, ignore_errors=True)
    directory.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _hidden(directory: Path, suffix: str) -> Path:
    return directory.with_name(f".{directory.name}.{suffix}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_tree(directory: Path) -> None:
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
