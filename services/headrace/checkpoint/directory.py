"""The checkpoints of a run, as directories in its storage.

    {storage}/global_step_{N}/   manifest.json  ledger.pb  trainer/…  transfer_queue/…
    {storage}/latest_checkpointed_iteration.txt
    {storage}/abandoned/{lineage}/global_step_{M}/        # of a line that a resume left behind

A directory without a manifest is of a snapshot that did not come to its end, or was damaged. In
which order these are written and removed is told in `headrace.checkpoint.snapshot`. All of it
blocks: call it from a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headrace.checkpoint.filesystems import NotAFileError
from headrace.checkpoint.manifest import Manifest, parse
from headrace.checkpoint.storage import MANIFEST, DamagedError, Storage, step_name
from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.failpoints import reach
from headrace.v1.checkpoint_pb2 import Checkpoint
from headrace.v1.resume_pb2 import PartFile

LATEST: Final = "latest_checkpointed_iteration.txt"
"""Names the newest checkpoint, for people and other tools; a resume does not rely on it."""
ABANDONED: Final = "abandoned"
READERS: Final = 4
"""Files that are read at a time."""


@dataclass(frozen=True)
class Found:
    """A directory that is a checkpoint, or should be."""

    step: int
    uri: str
    manifest: Manifest | None
    """None if there is none that can be read."""
    problems: tuple[str, ...] = ()
    """What is wrong with it, a line each, as far as it was examined."""
    unfinished: bool = False
    """There is no manifest at all."""
    abandoned_line: str = ""
    """The line it was left behind with."""

    def message(self, *, is_latest: bool = False) -> Checkpoint:
        """Give it as the API has it."""
        checkpoint = Checkpoint(
            step=self.step,
            uri=self.uri,
            problem="; ".join(self.problems),
            is_latest=is_latest,
            abandoned=bool(self.abandoned_line),
            lineage=self.abandoned_line,
        )
        if self.manifest is not None:
            checkpoint.lineage = self.manifest.lineage
            checkpoint.unix_time_s = self.manifest.unix_time_s
            checkpoint.size_bytes = self.manifest.size_bytes
            checkpoint.counts.CopyFrom(self.manifest.counts)
        return checkpoint


def storage_of(config: Config) -> Storage:
    """Open the storage of a run.

    Raises:
        UsageError: none is configured and there is no run directory, it is a file, or it needs a
            driver that is not installed.

    """
    if config.checkpoint.storage is not None:
        storage = Storage(config.checkpoint.storage)
        storage.check_is_directory()
        return storage
    if config.run.run_dir is None:
        raise UsageError("checkpoint.storage: give a URL or a directory, or run.run_dir")
    return Storage(str(RunDirectory(config.run.run_dir).checkpoints))


def examine(uri: str, *, read: bool | None = None) -> Found:
    """Look at one checkpoint's directory, wherever it lies.

    Args:
        uri: The directory, `…/global_step_N` or a copy of it by another name.
        read: None = only the manifest is looked at; False = the size of every file, too; True =
            every byte.

    Raises:
        UsageError: there is no driver for the URL.
        OSError: the storage cannot be reached.

    """
    storage = Storage(uri)
    source = storage.join(MANIFEST)
    name = storage.url.rpartition("/")[2]
    step = int(name.rpartition("_")[2]) if name.removeprefix("global_step_").isdecimal() else 0
    try:
        manifest = parse(storage.read_bytes(MANIFEST), source=source, uri=storage.url)
    except (FileNotFoundError, NotADirectoryError):
        problem = f"{source} is missing: the snapshot did not come to its end, or lost it"
        return Found(step, storage.url, None, (problem,), unfinished=True)
    except IsADirectoryError:
        return Found(step, storage.url, None, (f"{source} is a directory",))
    except NotAFileError:
        return Found(step, storage.url, None, (f"{source} is no file",))
    except DamagedError as error:
        return Found(step, storage.url, None, error.problems)
    problems: list[str] = []
    if step and manifest.step != step:
        problems.append(f"{source} is that of step {manifest.step}")
    if read is not None:
        problems += _damage(storage, manifest, read=read)
    return Found(manifest.step, storage.url, manifest, tuple(problems))


def _damage(storage: Storage, manifest: Manifest, *, read: bool) -> Iterator[str]:
    files = [file for part in manifest.parts for file in part.files]

    def look(file: PartFile) -> str | None:
        return storage.problem_with(file, read=read)

    with ThreadPoolExecutor(READERS, thread_name_prefix="verify") as pool:
        for problem in pool.map(look, files):
            if problem is not None:
                yield problem


class CheckpointDirectory:
    """What lies in a run's storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def uri(self, step: int) -> str:
        """Give the directory of a step's checkpoint."""
        return self.storage.join(step_name(step))

    def look(self, step: int, *, read: bool | None = None) -> Found:
        """Look at a step's checkpoint; see `examine`."""
        return examine(self.uri(step), read=read)

    def find(self, *, read: bool | None = None) -> list[Found]:
        """Look at all that a resume did not leave behind, newest first; see `examine`."""
        return [self.look(step, read=read) for step in self.storage.list_steps()]

    def find_abandoned(self, *, read: bool | None = None) -> list[Found]:
        """Look at those that a resume left behind, by line, newest first; see `examine`."""
        found = []
        for line in self.storage.names(ABANDONED):
            for step in self.storage.list_steps(f"{ABANDONED}/{line}"):
                uri = self.storage.join(ABANDONED, line, step_name(step))
                one = examine(uri, read=read)
                found.append(Found(step, uri, one.manifest, one.problems, one.unfinished, line))
        return found

    def latest(self) -> int | None:
        """Give the step that the pointer names; None if there is none, or no number in it."""
        try:
            text = self.storage.read_bytes(LATEST).decode("ascii", "replace").strip()
        except (FileNotFoundError, IsADirectoryError, NotAFileError):
            return None
        return int(text) if text.isdecimal() else None

    def pointer_problem(self) -> str:
        """Say that the pointer is no file, which no snapshot can put its step into; else nothing."""
        try:
            self.storage.read_bytes(LATEST)
        except FileNotFoundError:
            return ""
        except (IsADirectoryError, NotAFileError):
            return f"{self.storage.join(LATEST)} is no file: remove it, or no snapshot can succeed"
        return ""

    def write_manifest(self, manifest: Manifest) -> None:
        """Make a step's directory a checkpoint.

        Raises:
            OSError: it could not be written; it is as it was.

        """
        self.storage.write_bytes_atomically(
            f"{step_name(manifest.step)}/{MANIFEST}",
            manifest.to_bytes(),
            written=lambda: reach("manifest.written"),
            renamed=lambda: reach("manifest.renamed"),
        )

    def point_to(self, step: int) -> None:
        """Have the pointer name a step; 0 removes it.

        Raises:
            OSError: it could not be written; it is as it was.

        """
        if step == 0:
            self.storage.remove_file(LATEST)
            return
        self.storage.write_bytes_atomically(
            LATEST,
            str(step).encode(),
            written=lambda: reach("latest.written"),
            renamed=lambda: reach("latest.renamed"),
        )

    def remove(self, step: int) -> None:
        """Remove a step's directory: first its manifest, so that no half of it looks whole."""
        self.storage.remove_tree(step_name(step))

    def remove_abandoned(self, found: Found) -> None:
        """Remove one that a resume left behind, and its line's directory after the last."""
        line = f"{ABANDONED}/{found.abandoned_line}"
        self.storage.remove_tree(f"{line}/{step_name(found.step)}")
        if not self.storage.names(line):
            self.storage.remove_tree(line)

    def move_aside(self, found: Found, line: str) -> None:
        """Leave a checkpoint of a line behind. Safe to repeat."""
        name = step_name(found.step)
        self.storage.move_tree(name, f"{ABANDONED}/{line}/{name}")
