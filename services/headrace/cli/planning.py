"""`headrace resume --plan`: what a trainer that came now would go on from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.facts import facts_of
from headrace.checkpoint.planner import Planner
from headrace.cli.checkpoint_tables import plan_table
from headrace.cli.checkpoints import directory_of
from headrace.cli.ending import NO_CHECKPOINT
from headrace.cli.find import run_directory
from headrace.cli.logtail import ERROR_PREFIX
from headrace.cli.look import print_answer
from headrace.client.asking import ask
from headrace.client.finding import DirectoryLedger, announced_address
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import NoValidCheckpointError, UsageError
from headrace.rpc.channel import open_sync_channel
from headrace.rpc.security import Security
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import checkpoint_pb2_grpc, replay_pb2, store_pb2

PLAN_S = 600.0
"""How long it may take to read every byte of a checkpoint."""


def show_plan(run: Path | None, *, as_json: bool) -> None:
    """Print the plan: the running coordinator's, or one made from what lies there.

    Raises:
        UsageError, CannotResumeError: there is no run, or it cannot be gone on with.

    """
    directory = run_directory(run)
    config = load_config(directory.config_file)
    try:
        plan = _asked(directory, config)
    except NoValidCheckpointError as error:
        for line in str(error).splitlines():
            typer.echo(f"{ERROR_PREFIX}{line}", err=True)
        raise typer.Exit(NO_CHECKPOINT) from None
    print_answer(plan, plan_table(plan), as_json=as_json)


def _asked(directory: RunDirectory, config: Config) -> pb.ResumePlan:
    address = announced_address(directory, "checkpoint")
    if address is None:
        return _made(directory, config)
    with open_sync_channel(address, Security.for_looking(config)) as channel:
        stub = checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(channel)
        answer = ask(
            stub.PlanResume,
            pb.PlanResumeRequest(),
            who="the checkpoint coordinator",
            patience_s=0.0,
            timeout_s=PLAN_S,
        )
    return answer.plan


def _made(directory: RunDirectory, config: Config) -> pb.ResumePlan:
    """Plan without any process. The store's log is taken to bring its rows back."""
    checkpoints: CheckpointDirectory = directory_of(directory.path)
    status = _status(directory, config)
    store = store_pb2.GetStoreStatusResponse(
        store_incarnation=status.store_incarnation if config.store.durability == "log" else "new",
        row_count=1,
    )
    try:
        plan = asyncio.run(Planner(config, checkpoints).plan(status, store, facts_of(config, None)))
    except OSError as error:
        raise UsageError(f"{checkpoints.storage.url} cannot be read: {error}") from error
    return plan.message()


def _status(directory: RunDirectory, config: Config) -> replay_pb2.GetReplayStatusResponse:
    if config.journal.kind == "file" and not directory.journal.exists():
        return replay_pb2.GetReplayStatusResponse(fresh=True)
    return DirectoryLedger(directory, Security.for_looking(config)).status()
