"""The store as a process: TransferQueue, the service around it, sweep and probe.

The only process that imports TransferQueue. With a log, it comes back with the rows and as the
incarnation that it was; without one, each start is a new incarnation and an empty store, and groups
that lose their rows are generated again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc.advertise import advertised
from headrace.rpc.calls import Stopped
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process, ProcessOptions
from headrace.store.log import StoreLog
from headrace.store.metrics import StoreMetrics
from headrace.store.probe import until_dead
from headrace.store.refill import refill
from headrace.store.registration import Registration
from headrace.store.restorer import RowRestorer, Starting
from headrace.store.saver import RowSaver
from headrace.store.scratch import Scratch
from headrace.store.service import StoreService
from headrace.store.store import TrajectoryStore
from headrace.store.succession import remove_others
from headrace.store.sweep import Sweeper
from headrace.v1 import replay_pb2_grpc

OK = 0
INTERNAL_ERROR = 1


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
    log = StoreLog.open(
        _folder(config),
        run_id=config.run.run_id,
        new_incarnation=uuid4().hex,
        fsync=config.store.fsync == "always",
    )
    remove_others(log.directory, log.identity.rows)
    return log


def _folder(config: Config) -> Path:
    assert config.run.run_dir is not None
    return RunDirectory(config.run.run_dir).store


async def _run(config: Config, replay: str, options: ProcessOptions, log: StoreLog | None) -> int:
    process = Process.of_run(config, options)
    service = StoreService(process.status)
    address = advertised(await process.start(service.add_to), config.endpoints.advertise_host)
    starting = Starting(
        run_id=config.run.run_id,
        unit_count=config.store.storage_units,
        timeout_s=config.store.call_timeout_s,
        waits=process.waits,
        hold_s=config.checkpoint.deadline_s,
    )
    scratch = Scratch(_folder(config))
    await asyncio.to_thread(scratch.clean)
    try:
        backend = await starting.backend()
    except UsageError:
        await process.close()
        raise
    store = TrajectoryStore(
        backend.queue,
        incarnation=uuid4().hex if log is None else log.incarnation,
        capacity_bytes=config.store.capacity_bytes,
        now=time.monotonic,
        log=log,
    )
    restorer = RowRestorer(store, backend, starting=starting, scratch=scratch)
    try:
        async with open_channel(replay, process.security) as channel:
            stub = replay_pb2_grpc.ReplayBufferServiceStub(channel)
            parts = _Parts(config, process, service, store, restorer, scratch)
            return await _serve(parts, options.name, stub, address)
    except Stopped:
        return OK
    finally:
        await process.close()
        await service.close()
        await restorer.close()
        if store.life.log is not None:
            store.life.log.close()


@dataclass(frozen=True)
class _Parts:
    """What a store's process is made of."""

    config: Config
    process: Process
    service: StoreService
    store: TrajectoryStore
    restorer: RowRestorer
    scratch: Scratch


async def _serve(
    parts: _Parts,
    name: str,
    replay: replay_pb2_grpc.ReplayBufferServiceAsyncStub,
    address: str,
) -> int:
    config, process, store, restorer = parts.config, parts.process, parts.store, parts.restorer
    await restorer.backend.queue.open_probe()
    sweeper = Sweeper(
        store,
        replay,
        address=address,
        waits=process.waits,
        stopping=process.stopping,
        unknown=restorer.begun.set,
    )
    saver = RowSaver(
        store,
        scratch=parts.scratch,
        run_id=config.run.run_id,
        owner=name,
        unit_count=config.store.storage_units,
        waits=process.waits,
    )
    process.expose(StoreMetrics(store, sweeper, saver, restorer).read)
    log = store.life.log
    if log is not None:
        await refill(store, log, stopping=process.stopping, tell=parts.service.not_yet)
    registration = Registration(store, replay, address=address, process=process)
    if registration.take_up_hold(unix_time_s=time.time()):
        restorer.begun.set()
    else:
        await registration.register()
    parts.service.open(store, sweeper, saver, restorer)
    process.ready()
    return await _until_over(config, process, store, sweeper, registration.follow(restorer.begun))


async def _until_over(
    config: Config,
    process: Process,
    store: TrajectoryStore,
    sweeper: Sweeper,
    registering: Coroutine[Any, Any, None],
) -> int:
    """Sweep and probe until told to stop, or until TransferQueue is dead."""
    stopped = asyncio.create_task(process.until_stopped())
    # A checkpoint keeps TransferQueue busy for longer than a probe may take.
    dead = asyncio.create_task(until_dead(lambda: None if store.is_quiet else store.life.queue))
    sweeping = asyncio.create_task(
        sweeper.run(every_s=config.store.sweep_every_s, grace_s=config.store.sweep_grace_s)
    )
    beside = (asyncio.create_task(registering), asyncio.create_task(store.keep_hold()))
    tasks = (stopped, dead, sweeping, *beside)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    process.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # an error of ours ends the process with its traceback
    return INTERNAL_ERROR if dead in done else OK
