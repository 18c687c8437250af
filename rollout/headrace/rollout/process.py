"""The worker as a process: engine, rewards, channels, service, loops.

What an engine needs is imported only if it is configured.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import AsyncExitStack
from typing import Final

from headrace.config.config import Config
from headrace.errors import UsageError
from headrace.log import get_logger
from headrace.rollout.direct import DirectWay
from headrace.rollout.download import Downloads
from headrace.rollout.engines.base import Engine
from headrace.rollout.engines.make import make_engine
from headrace.rollout.engines.receiver import Receiver
from headrace.rollout.metrics import TimedRewards, Timings, WorkerMetrics
from headrace.rollout.rewards.make import make_rewards
from headrace.rollout.scratch import Scratch
from headrace.rollout.service import WorkerService
from headrace.rollout.weights_group import WeightsGroup
from headrace.rollout.worker import Worker, WorkerSettings
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process, ProcessOptions
from headrace.tokenizer.load import load_tokenizer
from headrace.v1 import replay_pb2_grpc, store_pb2_grpc, trainer_pb2_grpc

OK: Final = 0

_MOST_LEASES_PER_CALL: Final = 256
_ANSWER_BYTES: Final = 2 * 2**20
"""Half of the largest message, for an answer with many prompts."""
_BYTES_PER_PROMPT_TOKEN: Final = 16
"""Its id, its text, and the row's other columns, roughly."""

log = get_logger()


async def run(config: Config, options: ProcessOptions) -> int:
    """Work until told to stop, and hand back what is not done.

    Returns:
        The exit code, 0.

    Raises:
        UsageError: The tokenizer, the device, the reward function or an endpoint cannot be used.

    """
    async with AsyncExitStack() as stack:
        process = Process.of_run(config, options)
        stack.push_async_callback(process.close)
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        timings = Timings(process.registry)
        engine = await asyncio.to_thread(
            make_engine,
            config,
            tokenizer,
            waits=process.waits,
            batch_ended=timings.batch_ended,
        )
        rewards = TimedRewards(make_rewards(config.reward, process.waits), timings)
        stack.push_async_callback(rewards.close)
        stack.push_async_callback(engine.close)
        replay = await stack.enter_async_context(
            open_channel(_endpoint("replay", config.endpoints.replay), process.security)
        )
        store = await stack.enter_async_context(
            open_channel(_endpoint("store", config.endpoints.store), process.security)
        )
        own = settings(config, options.name)
        downloads, direct = await _ways(config, engine, own.worker_id, process, stack)
        worker = Worker(
            own,
            engine=engine,
            rewards=rewards,
            decode=tokenizer.decode,
            replay_stub=replay_pb2_grpc.ReplayBufferServiceStub(replay),
            store_stub=store_pb2_grpc.TrajectoryStoreServiceStub(store),
            downloads=downloads,
            direct=direct,
            waits=process.waits,
            stopping=process.stopping,
        )
        process.expose(WorkerMetrics(worker, stopping=process.stopping.is_set).read)
        service = WorkerService(
            worker, status=process.status, stop=process.stop, stopping=process.stopping.is_set
        )
        await process.start(service.add_to)
        await rewards.start()
        await engine.start()
        process.ready(lambda: worker.weights.current is not None or worker.weights.ended)
        await _work(worker)
    return OK


async def _work(worker: Worker) -> None:
    """Run the worker; a user's mistake that one of its loops has met is raised as such."""
    try:
        await worker.run()
    except ExceptionGroup as group:
        mistakes, rest = group.split(UsageError)
        if mistakes is None or rest is not None:
            raise
        raise UsageError(str(_first(mistakes))) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _ways(
    config: Config, engine: Engine, worker_id: str, process: Process, stack: AsyncExitStack
) -> tuple[Downloads | None, DirectWay | None]:
    """Make ready for weights that the trainer serves, if it does, or sends."""
    if not config.weights.are_served:
        return None, None
    scratch = stack.enter_context(Scratch(config.weights.tmpdir))
    channel = await stack.enter_async_context(
        open_channel(_endpoint("trainer", config.endpoints.trainer), process.security)
    )
    trainer = trainer_pb2_grpc.TrainerServiceStub(channel)
    downloads = Downloads(trainer, scratch.path)
    if config.weights.transport != "nccl" or not isinstance(engine, Receiver):
        return downloads, None
    group = WeightsGroup(trainer, worker_id=worker_id, timeout_s=config.weights.nccl_timeout_s)
    stack.push_async_callback(group.close)
    return downloads, DirectWay(engine, group, downloads)


def settings(config: Config, name: str) -> WorkerSettings:
    """Take the worker's part of the configuration; the name is new with each life."""
    most = config.rollout.max_groups_in_flight
    prompt_bytes = _BYTES_PER_PROMPT_TOKEN * config.data.max_prompt_length
    return WorkerSettings(
        worker_id=f"{name}-{os.getpid()}-{secrets.token_hex(3)}",
        max_groups_in_flight=None if most == "auto" else most,
        group_size=config.rollout.n,
        max_leases_per_call=max(1, min(_MOST_LEASES_PER_CALL, _ANSWER_BYTES // prompt_bytes)),
        max_generation_s=config.rollout.max_generation_s,
        lease_s=config.ledger.lease_s,
        report_every=config.rollout.journal_tokens_every,
        idle_after_s=config.watchdog.idle_after_s,
    )


def _endpoint(name: str, address: str | None) -> str:
    if address is None:
        raise UsageError(f"endpoints.{name} is not set: give the {name}'s host:port")
    return address
