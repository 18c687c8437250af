"""The store as a process: TransferQueue, the service around it, sweep and probe.

The only process that imports TransferQueue. With a log, it comes back with the rows and as the
incarnation that it was; without one, each start is a new incarnation and an empty store, and groups
that lose their rows are generated again.
"""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.log import get_logger
from headrace.rpc.advertise import advertised
from headrace.rpc.calls import Stopped, persist
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process, ProcessOptions
from headrace.store.log import StoreLog
from headrace.store.metrics import StoreMetrics
from headrace.store.nodes import Nodes
from headrace.store.probe import until_dead
from headrace.store.queue import TransferQueue
from headrace.store.refill import refill
from headrace.store.service import StoreService
from headrace.store.store import TrajectoryStore
from headrace.store.sweep import Sweeper
from headrace.v1 import replay_pb2, replay_pb2_grpc

OK = 0
INTERNAL_ERROR = 1

_log = get_logger()


async def run(config: Config, options: ProcessOptions) -> int:
    """Serve until told to stop. Returns the exit code: 1 if TransferQueue died.

    Raises:
        UsageError: no replay buffer is named, the log is not this store's, the address cannot be
            listened on, or TransferQueue is not installed.

    """
    if config.endpoints.replay is None:
        raise UsageError("endpoints.replay: the store needs the replay buffer's host:port")
    log = _open_log(config)
    try:
        return await _run(config, config.endpoints.replay, options, log)
    finally:
        if log is not None:
            log.close()


def _open_log(config: Config) -> StoreLog | None:
    if config.store.durability == "memory":
        return None
    assert config.run.run_dir is not None
    return StoreLog.open(
        RunDirectory(config.run.run_dir).store,
        run_id=config.run.run_id,
        new_incarnation=uuid4().hex,
        fsync=config.store.fsync == "always",
    )


async def _run(config: Config, replay: str, options: ProcessOptions, log: StoreLog | None) -> int:
    process = Process.of_run(config, options)
    service = StoreService(process.status)
    address = advertised(await process.start(service.add_to), config.endpoints.advertise_host)
    try:
        nodes = await asyncio.to_thread(Nodes.start, unit_count=config.store.storage_units)
    except UsageError:
        await process.close()
        raise
    client = nodes.attach(f"headrace_store_{config.run.run_id}")
    try:
        async with open_channel(replay, process.security) as channel:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
            return await _serve(config, process, service, client, stub, address, log)
    except Stopped:
        return OK
    finally:
        await process.close()
        await service.close()
        await asyncio.to_thread(client.close)
        await asyncio.to_thread(nodes.close)


async def _serve(
    config: Config,
    process: Process,
    service: StoreService,
    client: object,
    replay: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
    address: str,
    log: StoreLog | None,
) -> int:
    queue = TransferQueue(
        client,
        unit_count=config.store.storage_units,
        timeout_s=config.store.call_timeout_s,
        waits=process.waits,
    )
    await queue.open_probe()
    store = TrajectoryStore(
        queue,
        incarnation=uuid4().hex if log is None else log.incarnation,
        capacity_bytes=config.store.capacity_bytes,
        now=time.monotonic,
        log=log,
    )
    sweeper = Sweeper(
        store, replay, address=address, waits=process.waits, stopping=process.stopping
    )
    process.expose(StoreMetrics(store, sweeper, log).read)
    if log is not None:
        await refill(store, log, stopping=process.stopping, tell=service.not_yet)
    await _register(process, store, replay, address, log)
    service.open(store, sweeper)
    process.ready()
    return await _until_over(config, process, queue, sweeper)


async def _register(
    process: Process,
    store: TrajectoryStore,
    replay: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
    address: str,
    log: StoreLog | None,
) -> None:
    answer = await persist(
        replay.RegisterStore,
        replay_pb2.RegisterStoreRequest(
            store_incarnation=store.incarnation,
            capacity_bytes=store.capacity_bytes,
            address=address,
        ),
        waits=process.waits,
        name="the store's registration",
        owner="replay",
        stopping=process.stopping,
    )
    _log.info(
        "store_registered",
        store_incarnation=store.incarnation,
        lost_group_count=answer.lost_group_count,
    )
    if log is not None and log.is_new and answer.lost_group_count:
        _log.warning(
            "store_log_missing",
            directory=str(log.directory),
            lost_group_count=answer.lost_group_count,
            detail="the log of the store before is not here; its groups are generated again",
        )


async def _until_over(
    config: Config, process: Process, queue: TransferQueue, sweeper: Sweeper
) -> int:
    """Sweep and probe until told to stop, or until TransferQueue is dead."""
    stopped = asyncio.create_task(process.until_stopped())
    dead = asyncio.create_task(until_dead(queue))
    sweeping = asyncio.create_task(
        sweeper.run(every_s=config.store.sweep_every_s, grace_s=config.store.sweep_grace_s)
    )
    tasks = (stopped, dead, sweeping)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    process.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # an error of ours ends the process with its traceback
    return INTERNAL_ERROR if dead in done else OK
