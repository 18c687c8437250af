"""`headrace checkpoints`: what there is to go on from, and whether it is whole.

Needs no running service, and no torch: it reads what lies in the storage. A running coordinator is
asked, as it knows which directory is not complete because it is being written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import CaOption, TokenFileOption
from headrace.cli.look import JsonOption, ReplayOption, RunOption

if TYPE_CHECKING:
    from headrace.checkpoint.directory import CheckpointDirectory, Found
    from headrace.rpc.security import Security
    from headrace.v1.checkpoint_pb2 import ListCheckpointsResponse

DAMAGED = 1
"""Exit code of a checkpoint that is not whole."""

app = typer.Typer(help="List checkpoints, and check them.", invoke_without_command=True)

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage", metavar="URL", help="Instead: where they lie, an fsspec URL or a directory."
    ),
]


@app.callback()
def checkpoints(
    context: typer.Context,
    run: RunOption = None,
    storage: StorageOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """List checkpoints: newest first, those that a resume left behind last.

    The sizes of all files are compared; `headrace checkpoints verify` reads every byte.

    Example: `headrace checkpoints --run runs/sort-digits`
    """
    if context.invoked_subcommand is not None:
        return
    from headrace.cli.checkpoint_tables import checkpoints_table
    from headrace.cli.find import tool_security
    from headrace.cli.look import print_answer

    security = tool_security(replay, token_file, ca)
    if replay is not None:
        answer = _asked_through(run, storage, replay, security)
    else:
        answer = _listed(run, storage)
    print_answer(answer, checkpoints_table(answer.checkpoints), as_json=json)


@app.command()
def verify(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR_OR_URL",
            help="A checkpoint (…/global_step_N), or where checkpoints lie: then all of them.",
        ),
    ],
) -> None:
    """Read every byte of a checkpoint and compare it with its manifest. Exits with 1 if it differs.

    Each damaged file is named, with what is expected and what is there.

    Example: `headrace checkpoints verify runs/sort-digits/checkpoints/global_step_20`
    """
    from headrace.client.words import size
    from headrace.errors import UsageError

    try:
        found = _examined(place)
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error}") from error
    for one in found:
        for problem in one.problems:
            typer.echo(f"damaged: {problem}", err=True)
        if one.manifest is not None and not one.problems:
            manifest = one.manifest
            file_count = sum(len(part.files) for part in manifest.parts)
            typer.echo(
                f"valid: {one.uri}: step {one.step}, line {manifest.lineage}, {file_count} files, "
                f"{size(manifest.size_bytes)}"
            )
    if any(one.problems for one in found):
        raise typer.Exit(DAMAGED)


def _examined(place: str) -> list[Found]:
    from headrace.checkpoint.directory import CheckpointDirectory, examine
    from headrace.checkpoint.storage import Storage
    from headrace.errors import UsageError

    storage = Storage(place)
    if not storage.exists():
        raise UsageError(f"there is nothing at {place}")
    if not storage.list_steps():
        return [examine(place, read=True)]
    directory = CheckpointDirectory(storage)
    return [*directory.find(read=True), *directory.find_abandoned(read=True)]


def _listed(run: Path | None, url: str | None) -> ListCheckpointsResponse:
    from headrace.checkpoint.listing import list_checkpoints
    from headrace.errors import UsageError
    from headrace.v1.checkpoint_pb2 import ListCheckpointsResponse

    asked = None if url is not None else _asked(run)
    if asked is not None:
        return asked
    directory = directory_of(run, url)
    try:
        found = list_checkpoints(directory, read=False)
        if problem := directory.pointer_problem():
            typer.echo(problem, err=True)
    except OSError as error:
        raise UsageError(f"{directory.storage.url} cannot be read: {error}") from error
    return ListCheckpointsResponse(checkpoints=found)


def _asked_through(
    run: Path | None, storage: str | None, replay: str, security: Security
) -> ListCheckpointsResponse:
    """Ask the coordinator that a replay buffer knows of."""
    from headrace.cli.places import Places
    from headrace.client.checkpoints import list_checkpoints
    from headrace.errors import UsageError
    from headrace.rpc.channel import open_sync_channel
    from headrace.v1.checkpoint_pb2 import ListCheckpointsResponse

    if storage is not None:
        raise UsageError("--storage and --replay both say where the checkpoints are: give one")
    places = Places.find(run, replay, security)
    with open_sync_channel(places.find_process("checkpoint"), security) as channel:
        return ListCheckpointsResponse(checkpoints=list_checkpoints(channel, verify=False))


def _asked(run: Path | None) -> ListCheckpointsResponse | None:
    """Ask the run's coordinator; None if it does not answer."""
    from headrace.cli.find import run_directory
    from headrace.client.asking import AwayError
    from headrace.client.checkpoints import list_checkpoints
    from headrace.client.finding import announced_address
    from headrace.config.load import load_config
    from headrace.rpc.channel import open_sync_channel
    from headrace.rpc.security import Security
    from headrace.v1.checkpoint_pb2 import ListCheckpointsResponse

    directory = run_directory(run)
    address = announced_address(directory, "checkpoint")
    if address is None:
        return None
    security = Security.for_looking(load_config(directory.config_file))
    with open_sync_channel(address, security) as channel:
        try:
            found = list_checkpoints(channel, verify=False)
        except AwayError:
            return None
    return ListCheckpointsResponse(checkpoints=found)


def directory_of(run: Path | None, url: str | None = None) -> CheckpointDirectory:
    """Open a run's checkpoints, by default the newest run's, or those at a URL.

    Raises:
        UsageError: there is no such run, or the URL needs a driver that is not installed.

    """
    from headrace.checkpoint.directory import CheckpointDirectory, storage_of
    from headrace.checkpoint.storage import Storage
    from headrace.cli.find import run_directory
    from headrace.config.load import load_config
    from headrace.errors import UsageError

    if url is not None:
        if run is not None:
            raise UsageError("--run and --storage both say where the checkpoints are: give one")
        return CheckpointDirectory(Storage(url))
    directory = run_directory(run)
    config = load_config(directory.config_file)
    if config.checkpoint.storage is None:  # the directory may have been moved since
        return CheckpointDirectory(Storage(str(directory.checkpoints)))
    return CheckpointDirectory(storage_of(config))
