"""`headrace export`: a checkpoint as a model that other tools load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.look import RunOption

if TYPE_CHECKING:
    from headrace.checkpoint.storage import Storage
    from headrace.v1.resume_pb2 import CheckpointPart

NEWEST = "latest"
PART = "trainer"


def export(
    step: Annotated[
        str, typer.Argument(metavar="STEP", help="The checkpoint's step, or `latest`.")
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that is made.")],
    run: RunOption = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Instead: where checkpoints lie, a URL or a directory."),
    ] = None,
) -> None:
    """Write the model of a checkpoint as a Hugging Face directory, with its tokenizer.

    Works while the run lives, and without it.

    Example: `headrace export 200 sorted --run runs/sort-digits`
    """
    where = _storage(run, storage)
    number = _step(step, where)
    part = _part(where, number)
    try:
        from headrace.trainer.export import export as write
    except ModuleNotFoundError as error:
        from headrace.errors import UsageError

        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(
            f"the package {error.name!r} is not installed; pip install 'headrace[trainer]'"
        ) from error
    count = write(part, directory.absolute())
    typer.echo(f"{directory}: step {number}, {count:,} parameters")


def _storage(run: Path | None, url: str | None) -> Storage:
    from headrace.checkpoint.directory import storage_of
    from headrace.checkpoint.storage import Storage
    from headrace.cli.find import run_directory
    from headrace.config.load import load_config
    from headrace.errors import UsageError

    if url is None:
        return storage_of(load_config(run_directory(run).config_file))
    if run is not None:
        raise UsageError("--run and --storage both say where the checkpoints are: give one")
    return Storage(url)


def _step(word: str, storage: Storage) -> int:
    from headrace.errors import UsageError

    steps = storage.list_steps()
    if word == NEWEST and steps:
        from headrace.checkpoint.directory import CheckpointDirectory

        return CheckpointDirectory(storage).latest() or steps[0]
    if word.isdecimal() and int(word) in steps:
        return int(word)
    there = ", ".join(map(str, steps)) or "none"
    raise UsageError(f"{storage.url} has no checkpoint of step {word}; there are: {there}")


def _part(storage: Storage, step: int) -> CheckpointPart:
    from headrace.checkpoint.directory import CheckpointDirectory
    from headrace.errors import UsageError

    found = CheckpointDirectory(storage).look(step)
    if found.manifest is None:
        raise UsageError(f"the checkpoint cannot be used: {'; '.join(found.problems)}")
    return next(part for part in found.manifest.parts if part.name == PART)
