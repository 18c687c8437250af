"""File systems that checkpoints lie on: this machine's, with real fsyncs and renames, or fsspec's.

A write is whole or not there: on this machine a temporary file is written, synced, renamed and
its folder synced; elsewhere it is what the driver gives (an object store shows an object once it
is whole). Knows nothing of checkpoints. All of it blocks: call it from a thread.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import fsspec

from headrace.errors import UsageError

TEMPORARY: Final = ".tmp"
"""The end of the name of a file that is being written."""
REMOVALS: Final = 10
"""How often a folder is removed in which others still write."""


class NotAFileError(OSError):
    """A pipe, a socket or a device is where a file should be."""


def nothing() -> None:
    """Do nothing, between two steps of a write."""


class Files(Protocol):
    """One file system. Paths are absolute; failures are OSErrors that name the file."""

    def write(
        self,
        path: str,
        pieces: Iterable[bytes],
        *,
        written: Callable[[], None] = nothing,
        renamed: Callable[[], None] = nothing,
    ) -> None:
        """Write a file whole, or leave none. What was there before is replaced.

        Args:
            path: The file.
            pieces: Its bytes.
            written: Called when all bytes are safe under another name.
            renamed: Called when the file has its name, and its folder is not synced yet.

        """

    def read(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes, in pieces."""

    def size(self, path: str) -> int:
        """Give a file's size in bytes."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""

    def names(self, path: str) -> list[str]:
        """Name what lies in a folder; nothing if there is none."""

    def remove_file(self, path: str) -> None:
        """Remove a file, if it is there, for good."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder with everything in it, if it is there."""

    def move_tree(self, path: str, target: str, *, last: str) -> None:
        """Give a folder another name; `target` is replaced.

        Where that is no single step, `last`, a file in it, is the last to be copied and the first
        to be removed: the folder that has it is whole.
        """


class LocalFiles:
    """This machine's files."""

    def write(
        self,
        path: str,
        pieces: Iterable[bytes],
        *,
        written: Callable[[], None] = nothing,
        renamed: Callable[[], None] = nothing,
    ) -> None:
        """Write beside, sync, rename, sync the folder."""
        final = Path(path)
        beside = final.with_name(final.name + TEMPORARY)
        with _naming(path):
            _make_folder(final.parent)
            try:
                with beside.open("wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                written()
                beside.rename(final)
            except OSError:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
                raise
            renamed()
            _sync(final.parent)

    def read(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes, in pieces. Whoever opens a pipe would wait for its writer."""
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise NotAFileError(errno.EINVAL, "it is no file", path)
        with Path(path).open("rb") as file:
            yield from pieces_of(file)

    def size(self, path: str) -> int:
        """Give a file's size in bytes."""
        return Path(path).stat().st_size

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        return Path(path).exists()

    def names(self, path: str) -> list[str]:
        """Name what lies in a folder."""
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove_file(self, path: str) -> None:
        """Remove, and sync the folder."""
        if Path(path).exists():
            Path(path).unlink(missing_ok=True)
            _sync(Path(path).parent)

    def remove_tree(self, path: str) -> None:
        """Remove from the inside out, more than once if somebody still writes there."""
        if not Path(path).exists():
            return
        for tries_left in reversed(range(REMOVALS)):
            try:
                shutil.rmtree(path)
                break
            except FileNotFoundError:
                if not Path(path).exists():
                    break
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not tries_left:
                    raise
        _sync(Path(path).parent)

    def move_tree(self, path: str, target: str, *, last: str) -> None:
        """Rename, and sync both folders."""
        del last  # a rename is one step
        _make_folder(Path(target).parent)
        self.remove_tree(target)
        Path(path).rename(target)
        _sync(Path(path).parent)
        _sync(Path(target).parent)


class DriverFiles:
    """Files behind a driver of fsspec: an object store, or a process's memory."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def write(
        self,
        path: str,
        pieces: Iterable[bytes],
        *,
        written: Callable[[], None] = nothing,
        renamed: Callable[[], None] = nothing,
    ) -> None:
        """Upload."""
        with _driving(path):
            self._driver.makedirs(_parent(path), exist_ok=True)
            written()
            try:
                with self._driver.open(path, "wb") as file:
                    for piece in pieces:
                        file.write(piece)
            except BaseException:
                with suppress(OSError, NotImplementedError):
                    self._driver.rm_file(path)  # what a driver makes of half a file
                raise
        renamed()

    def read(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes, in pieces."""
        with _driving(path):
            self._driver.invalidate_cache()
            with self._driver.open(path, "rb") as file:
                yield from pieces_of(file)

    def size(self, path: str) -> int:
        """Give a file's size in bytes."""
        with _driving(path):
            self._driver.invalidate_cache()
            return int(self._driver.size(path))

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        with _driving(path):
            self._driver.invalidate_cache()
            return bool(self._driver.exists(path))

    def names(self, path: str) -> list[str]:
        """Name what lies in a folder."""
        with _driving(path):
            self._driver.invalidate_cache()
            try:
                found = self._driver.ls(path, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = (str(name).rstrip("/").rpartition("/")[2] for name in found)
        return sorted(name for name in names if name and name != _name(path))

    def remove_file(self, path: str) -> None:
        """Remove."""
        with _driving(path):
            self._driver.invalidate_cache()
            if self._driver.exists(path):
                self._driver.rm(path)

    def remove_tree(self, path: str) -> None:
        """Remove."""
        with _driving(path):
            self._driver.invalidate_cache()
            if self._driver.exists(path):
                self._driver.rm(path, recursive=True)

    def move_tree(self, path: str, target: str, *, last: str) -> None:
        """Copy, and remove."""
        self.remove_tree(target)
        with _driving(path):
            files = [str(name) for name in self._driver.find(path)]
            files.sort(key=lambda name: name == f"{path}/{last}")
            for name in files:
                copy = target + name.removeprefix(path)
                self._driver.makedirs(_parent(copy), exist_ok=True)
                self._driver.cp_file(name, copy)
        self.remove_file(f"{path}/{last}")
        self.remove_tree(path)


def open_files(url: str) -> tuple[Files, str]:
    """Give the file system of a URL or directory, and the path on it.

    Raises:
        UsageError: there is no driver for it.

    """
    if "://" not in url:
        return LocalFiles(), str(Path(url).absolute())
    try:
        driver, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(
            f"checkpoint.storage: {url} needs a driver that is not installed ({error})"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"checkpoint.storage: {url} is not a URL that fsspec can open ({error}); give a "
            "directory, or file:///…, s3://… or gs://…"
        ) from error
    if isinstance(driver, fsspec.get_filesystem_class("file")):
        return LocalFiles(), str(path)
    return DriverFiles(driver), str(path).rstrip("/")


def pieces_of(file: BinaryIO, size_bytes: int = 2**20) -> Iterator[bytes]:
    """Read a file to its end, in pieces."""
    while piece := file.read(size_bytes):
        yield piece


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each synced into the one that holds it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """A full disk is to be told with the file that it was full for."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, path) from error
        raise


@contextmanager
def _driving(path: str) -> Iterator[None]:
    """Drivers raise what their libraries raise: to us all of it is a storage that does not work."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise OSError(f"{path}: {type(error).__name__}: {text}") from error


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
