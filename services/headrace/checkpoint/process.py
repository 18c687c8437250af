"""The checkpoint coordinator as a process: the wiring, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import version
from uuid import uuid4

from headrace.checkpoint.changes import Changes
from headrace.checkpoint.directory import CheckpointDirectory, storage_of
from headrace.checkpoint.facts import facts_of
from headrace.checkpoint.metrics import CheckpointMetrics
from headrace.checkpoint.peers import Peers
from headrace.checkpoint.planner import Planner
from headrace.checkpoint.resume import Resume
from headrace.checkpoint.resumes import Resumes
from headrace.checkpoint.service import CheckpointService
from headrace.checkpoint.snapshot import SnapshotSteps
from headrace.checkpoint.snapshots import Snapshots
from headrace.config.config import Config
from headrace.errors import UsageError
from headrace.log import get_logger
from headrace.rpc.calls import Stopped
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process, ProcessOptions
from headrace.v1 import replay_pb2_grpc, store_pb2_grpc

log = get_logger()


async def run(config: Config, options: ProcessOptions) -> int:
    """Coordinate checkpoints until told to stop.

    Returns:
        The exit code: 0.

    Raises:
        UsageError: a peer's address is missing, the storage needs a driver that is not installed,
            or the port is taken.

    """
    if config.endpoints.replay is None or config.endpoints.store is None:
        raise UsageError(
            "endpoints.replay, endpoints.store: the checkpoint coordinator needs the host:port of "
            "both"
        )
    directory = CheckpointDirectory(storage_of(config))
    process = Process.of_run(config, options)
    service = CheckpointService(process.status)
    async with (
        open_channel(config.endpoints.replay, process.security) as to_replay,
        open_channel(config.endpoints.store, process.security) as to_store,
    ):
        peers = Peers(
            replay_pb2_grpc.ReplayBufferServiceStub(to_replay),
            store_pb2_grpc.TrajectoryStoreServiceStub(to_store),
            waits=process.waits,
            stopping=process.stopping,
            work_s=config.checkpoint.deadline_s,
        )
        try:
            await process.start(service.add_to)
            await _serve(config, process, service, peers, directory)
        except Stopped:
            pass
        finally:
            await process.close()
    return 0


async def _serve(
    config: Config,
    process: Process,
    service: CheckpointService,
    peers: Peers,
    directory: CheckpointDirectory,
) -> None:
    changes = Changes(process.stopping)
    steps = SnapshotSteps(config, directory, peers, changes=changes, version=version("headrace"))
    snapshots = Snapshots(
        config, directory, peers, steps, changes=changes, new_id=lambda: uuid4().hex
    )
    planner = Planner(config, directory)

    def resume_for(incarnation: int, facts: Mapping[str, str]) -> Resume:
        return Resume(
            incarnation,
            facts,
            config=config,
            directory=directory,
            peers=peers,
            planner=planner,
            snapshots=snapshots,
            changes=changes,
            new_id=lambda: uuid4().hex[:16],
        )

    resumes = Resumes(resume_for, peers, changes=changes)
    process.expose(CheckpointMetrics(snapshots, resumes).read)
    status = await peers.status()
    resumes.remember(status)
    try:
        await snapshots.take_up(status)
    except OSError as error:  # the next snapshot or resume tries again
        log.warning("storage_not_reached", storage=directory.storage.url, detail=str(error))
    service.open(
        snapshots=snapshots,
        resumes=resumes,
        planner=planner,
        directory=directory,
        peers=peers,
        changes=changes,
        own_facts=facts_of(config, None),
        stopping=process.stopping,
    )
    process.ready()
    try:
        await process.until_stopped()
    finally:
        changes.wake()
        await asyncio.gather(snapshots.close(), resumes.close())
