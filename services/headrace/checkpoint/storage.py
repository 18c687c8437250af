"""Where checkpoints lie: one URL, below which each process writes and reads its own part.

    write_part(uri, …) ──► CheckpointPart ──► (manifest) ──► verify(part) ──► fetch(part, folder)

A part is one file or one folder below a checkpoint's directory; every file of it is named with its
size and SHA-256, taken from the bytes as they are copied. Knows nothing of manifests, and nothing
of what is in a file. All of it blocks: call it from a thread.

The one module of this package that other processes may import.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.checkpoint.filesystems import LocalFiles, nothing, open_files, pieces_of
from headrace.errors import HeadraceError, UsageError
from headrace.v1.resume_pb2 import CheckpointPart, PartFile

MANIFEST: Final = "manifest.json"
"""The file that makes a checkpoint's directory a checkpoint."""
_STEP: Final = re.compile(r"global_step_([1-9][0-9]*)")


class DamagedError(HeadraceError):
    """Files of a checkpoint are missing, or are not what they were when it was made.

    Attributes:
        problems: A line each: the file, what is expected, what is there.

    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def step_name(step: int) -> str:
    """Name the directory of a step's checkpoint."""
    return f"global_step_{step}"


class Storage:
    """A directory on some file system. Paths below it are relative, with `/`.

    Args:
        url: An fsspec URL, or a directory of this machine.

    Raises:
        UsageError: there is no driver for the URL.

    """

    def __init__(self, url: str) -> None:
        self._files, self._root = open_files(url)
        local = isinstance(self._files, LocalFiles)
        self.url = f"file://{self._root}" if local else url.rstrip("/")
        """The URL, without a `/` at its end."""

    def check_is_directory(self) -> None:
        """Find out early that a file is in the way, where that can be told.

        Raises:
            UsageError: it, or a folder that it is to lie in, is a file.

        """
        if not isinstance(self._files, LocalFiles):
            return
        root = Path(self._root)
        there = next(path for path in (root, *root.parents) if path.exists())
        if not there.is_dir():
            raise UsageError(f"checkpoint.storage: {there} is no directory; give another one")

    def check_answers(self) -> None:
        """Find out early that nobody answers there, or not to us.

        Raises:
            UsageError: it cannot be read.

        """
        try:
            self._files.names(self._root)
        except OSError as error:
            raise UsageError(
                f"checkpoint.storage: {self.url} cannot be read: {error}; see that the place is "
                "there, and that its driver finds credentials (docs/checkpoints.md)"
            ) from error

    def join(self, *names: str) -> str:
        """Give the URL of something below."""
        return "/".join((self.url, *names))

    def write_file(self, local: Path, relative: str) -> PartFile:
        """Copy a file of this machine; it has its name once it is whole, and is synced.

        Raises:
            OSError: it could not be written or read; nothing of it is left.

        """
        digest, size_bytes = hashlib.sha256(), 0

        def pieces() -> Iterator[bytes]:
            nonlocal size_bytes
            with local.open("rb") as file:
                for piece in pieces_of(file):
                    digest.update(piece)
                    size_bytes += len(piece)
                    yield piece

        self._files.write(self._path(relative), pieces())
        return PartFile(path=relative, size_bytes=size_bytes, sha256=digest.hexdigest())

    def write_bytes_atomically(
        self,
        relative: str,
        data: bytes,
        *,
        written: Callable[[], None] = nothing,
        renamed: Callable[[], None] = nothing,
    ) -> PartFile:
        """Write a small file, whole or not at all.

        Args:
            relative: The file.
            data: Its bytes.
            written: Called when the bytes are synced under a temporary name.
            renamed: Called when the file has its name, and its folder is not synced.

        Raises:
            OSError: it could not be written; what was there before is still there.

        """
        self._files.write(self._path(relative), [data], written=written, renamed=renamed)
        return PartFile(
            path=relative, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
        )

    def read_bytes(self, relative: str) -> bytes:
        """Read a small file.

        Raises:
            OSError: it is not there (FileNotFoundError), or cannot be read.

        """
        return b"".join(self._files.read(self._path(relative)))

    def exists(self, relative: str = "") -> bool:
        """Whether there is a file or a directory."""
        return self._files.exists(self._path(relative))

    def names(self, relative: str = "") -> list[str]:
        """Name what lies in a directory; nothing if there is none."""
        return self._files.names(self._path(relative))

    def list_steps(self, relative: str = "") -> list[int]:
        """Give the steps that have a directory `global_step_N`, whole or not, the newest first."""
        found = (_STEP.fullmatch(name) for name in self.names(relative))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def remove_file(self, relative: str) -> None:
        """Remove a file, if it is there."""
        self._files.remove_file(self._path(relative))

    def remove_tree(self, relative: str) -> None:
        """Remove a directory, if it is there: a checkpoint ceases to be one at once."""
        self._files.remove_file(self._path(f"{relative}/{MANIFEST}"))
        self._files.remove_tree(self._path(relative))

    def move_tree(self, relative: str, target: str) -> None:
        """Give a directory another name; what has that name is replaced. Safe to repeat."""
        self._files.move_tree(self._path(relative), self._path(target), last=MANIFEST)

    def problem_with(self, file: PartFile, *, read: bool = True) -> str | None:
        """Say what is wrong with a file: that it is missing, its size or, if read, its bytes."""
        place = self.join(file.path)
        try:
            size_bytes = self._files.size(self._path(file.path))
            if size_bytes != file.size_bytes:
                return f"{place}: {size_bytes} bytes, {file.size_bytes} are expected"
            sha256 = self._sha256(file.path) if read else file.sha256
        except ValueError as error:
            return str(error)
        except FileNotFoundError:
            return f"{place} is missing"
        except OSError as error:
            return f"{place} cannot be read: {error}"
        if sha256 != file.sha256:
            return f"{place}: SHA-256 is {sha256}, {file.sha256} is expected"
        return None

    def fetch_file(self, file: PartFile, local: Path) -> None:
        """Copy a file to this machine, and check it on the way.

        Raises:
            DamagedError: it is missing, or has another size or other bytes. `local` is gone.
            OSError: `local` cannot be written.

        """
        problem = self.problem_with(file, read=False)
        if problem is not None:
            raise DamagedError([problem])
        digest = hashlib.sha256()
        local.parent.mkdir(parents=True, exist_ok=True)
        with local.open("wb") as target:
            for piece in self._files.read(self._path(file.path)):
                digest.update(piece)
                target.write(piece)
        if digest.hexdigest() != file.sha256:
            local.unlink()
            raise DamagedError(
                [
                    f"{self.join(file.path)}: SHA-256 is {digest.hexdigest()}, {file.sha256} is "
                    "expected"
                ]
            )

    def _sha256(self, relative: str) -> str:
        digest = hashlib.sha256()
        for piece in self._files.read(self._path(relative)):
            digest.update(piece)
        return digest.hexdigest()

    def _path(self, relative: str) -> str:
        if not relative:
            return self._root
        # A manifest comes from another machine: it must not point outside of its directory.
        parts = PurePosixPath(relative).parts
        if relative.startswith("/") or ".." in parts:
            msg = f"{self.url}: the file name {relative!r} leaves the directory"
            raise ValueError(msg)
        return f"{self._root}/{relative}"


def write_part(uri: str, *, name: str, owner: str, source: Path, target: str) -> CheckpointPart:
    """Write what a process adds to a checkpoint. Safe to repeat: it is written anew.

    Args:
        uri: The checkpoint's directory.
        name: The part: `ledger`, `store` or `trainer`.
        owner: The process.
        source: A file, or a folder, of this machine.
        target: What it is called in the checkpoint: `ledger.pb`, `trainer`, `transfer_queue`.

    Raises:
        OSError: it could not be written: the disk is full, the storage is away.
        UsageError: there is no driver for the URL.

    """
    storage = Storage(uri)
    if source.is_dir():
        storage.remove_tree(target)
        below = sorted(path for path in source.rglob("*") if path.is_file())
        files = [
            storage.write_file(path, f"{target}/{path.relative_to(source).as_posix()}")
            for path in below
        ]
    else:
        files = [storage.write_file(source, target)]
    return CheckpointPart(name=name, owner=owner, uri=uri, files=files)


def verify(part: CheckpointPart, *, read: bool = True) -> None:
    """Check every file of a part: its size and, if `read`, its bytes.

    Raises:
        DamagedError: all files that are wrong, named.
        UsageError: there is no driver for its URL.

    """
    storage = Storage(part.uri)
    problems = [storage.problem_with(file, read=read) for file in part.files]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise DamagedError(found)


def fetch(part: CheckpointPart, folder: Path) -> None:
    """Copy a part to this machine and check it; `folder` is made anew.

    Its files have the paths below `folder` that they have below the checkpoint's directory, such
    as `trainer/…`.

    Raises:
        DamagedError: a file is missing or damaged. `folder` is gone.
        OSError: `folder` cannot be written.
        UsageError: there is no driver for its URL.

    """
    storage = Storage(part.uri)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        for file in part.files:
            storage.fetch_file(file, folder / file.path)
    except (DamagedError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
