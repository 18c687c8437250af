"""The trainer as a process: everything is put together here."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.config.config import Config
from headrace.config.rundir import RunDirectory
from headrace.errors import TrainerFencedError, UsageError
from headrace.log import get_logger
from headrace.rpc.advertise import advertised
from headrace.rpc.calls import Stopped
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process, ProcessOptions
from headrace.tokenizer import Tokenizer, load_tokenizer
from headrace.trainer.actor import Actor
from headrace.trainer.arrival import CannotResumeError, register
from headrace.trainer.compute import ComputeThread
from headrace.trainer.exposition import ProgressMetrics
from headrace.trainer.loop import LoopSettings, TrainingLoop
from headrace.trainer.model import build_model, pick_device
from headrace.trainer.progress import Progress
from headrace.trainer.publisher import WeightsWriter
from headrace.trainer.recorder import Recorder
from headrace.trainer.rows import read_rows
from headrace.trainer.service import TrainerService
from headrace.trainer.warm_start import SupervisedTrainer
from headrace.trainer.weights_server import WeightsServer
from headrace.v1 import feeder_pb2_grpc, replay_pb2_grpc, store_pb2_grpc
from headrace.v1.replay_pb2 import RegisterTrainerResponse
from headrace.weights.transfer import GRPC_URI

OK = 0
TRAINER_DIED = 4
INTERRUPTED = 130

log = get_logger()


async def run(config: Config, options: ProcessOptions) -> int:
    """Train to the end.

    Returns:
        0: trained to the end. 4: a newer trainer has taken over, or an earlier one was here and
        cannot be followed. 130: told to stop before the end.

    Raises:
        UsageError: the address cannot be listened on, or the model cannot be built.
        BadTrajectoryError: a worker has stored what cannot be trained on.

    """
    process = Process.of_run(config, options)
    progress = Progress()
    process.expose(ProgressMetrics(progress).read)
    weights = WeightsServer(_weights_root(config), run_id=config.run.run_id)
    bound = await process.start(TrainerService(process.status, progress, weights).add_to)
    address = advertised(bound, config.endpoints.advertise_host)
    compute = ComputeThread(threads=config.trainer.threads, seed=config.trainer.seed)
    try:
        await _train(config, process, progress, compute, address)
    except Stopped:
        return INTERRUPTED
    except TrainerFencedError as error:
        log.critical("fenced", error=f"a newer trainer has taken over the run: {error}")
        return TRAINER_DIED
    except CannotResumeError as error:
        log.critical("cannot_resume", error=str(error))
        return TRAINER_DIED
    finally:
        progress.end()
        await compute.close()
        await process.close()
    return OK


async def _train(
    config: Config, process: Process, progress: Progress, compute: ComputeThread, address: str
) -> None:
    tokenizer = await compute.run(load_tokenizer, config.model)
    model = await compute.run(_place_model, config, tokenizer)
    async with (
        open_channel(
            _required(config.endpoints.replay, "endpoints.replay"), process.security
        ) as to_replay,
        open_channel(
            _required(config.endpoints.store, "endpoints.store"), process.security
        ) as to_store,
    ):
        replay = replay_pb2_grpc.ReplayBufferServiceStub(to_replay)
        registered = await register(
            replay,
            trainer_id=f"trainer-{uuid4().hex}",
            address=address,
            waits=process.waits,
            stopping=process.stopping,
        )
        progress.total_steps = registered.total_steps
        if config.trainer.warm_start.steps:
            await _warm_start(config, process, compute, model, tokenizer)
        loop = TrainingLoop(
            _loop_settings(config, registered, tokenizer, address),
            replay=replay,
            store=store_pb2_grpc.TrajectoryStoreServiceStub(to_store),
            actor=await compute.run(_make_actor, config, model, registered.total_steps),
            compute=compute,
            writer=_make_writer(config, registered.lineage),
            progress=progress,
            waits=process.waits,
            stopping=process.stopping,
        )
        recorder = await compute.run(_make_recorder, config)
        try:
            await loop.publish(0)
            process.ready()
            await loop.run(recorder)
        finally:
            await compute.run(recorder.close)


async def _warm_start(
    config: Config, process: Process, compute: ComputeThread, model: Any, tokenizer: Tokenizer
) -> None:
    settings = config.trainer.warm_start
    teacher = SupervisedTrainer(
        model,
        tokenizer=tokenizer,
        config=settings,
        optim=config.trainer.optim,
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        micro_batch_size=config.trainer.micro_batch_size,
    )
    async with open_channel(
        _required(config.endpoints.feeder, "endpoints.feeder"), process.security
    ) as channel:
        feeder = feeder_pb2_grpc.PromptFeederServiceStub(channel)
        for number in range(settings.steps):
            rows = await read_rows(
                feeder,
                offset=number * settings.batch_size,
                count=settings.batch_size,
                timeout_s=config.data.read_timeout_s,
                waits=process.waits,
                stopping=process.stopping,
            )
            loss = await compute.run(teacher.step, rows)
            log.info("warm_start_step", step=number + 1, of=settings.steps, loss=round(loss, 4))


def _place_model(config: Config, tokenizer: Tokenizer) -> Any:
    device = pick_device(config.trainer.device)
    length = config.data.max_prompt_length + config.data.max_response_length
    return build_model(config.model, tokenizer, max_length=length).to(device)


def _make_actor(config: Config, model: Any, total_steps: int) -> Actor:
    parts = config.trainer.parameter_sync_step
    return Actor(
        model,
        algorithm=config.algorithm,
        optim=config.trainer.optim,
        total_updates=total_steps * parts,
        warmup_updates=config.trainer.optim.lr_warmup_steps * parts,
        micro_batch_size=config.trainer.micro_batch_size,
    )


def _make_writer(config: Config, lineage: str) -> WeightsWriter:
    uri = GRPC_URI if config.weights.transport == "grpc" else None
    return WeightsWriter(_weights_root(config), run_id=config.run.run_id, lineage=lineage, uri=uri)


def _weights_root(config: Config) -> Path:
    return config.weights.dir or _run_directory(config).weights


def _make_recorder(config: Config) -> Recorder:
    directory = _run_directory(config)
    board = directory.tensorboard if config.trainer.tensorboard else None
    return Recorder(directory.metrics_file, board)


def _loop_settings(
    config: Config, registered: RegisterTrainerResponse, tokenizer: Tokenizer, address: str
) -> LoopSettings:
    return LoopSettings(
        incarnation=registered.incarnation,
        lineage=registered.lineage,
        part_count=config.trainer.parameter_sync_step,
        divide_by_std=config.algorithm.norm_adv_by_std_in_grpo,
        pad_id=tokenizer.pad_id,
        address=address,
    )


def _run_directory(config: Config) -> RunDirectory:
    assert config.run.run_dir is not None  # filled in before any process is started
    return RunDirectory(config.run.run_dir)


def _required(endpoint: str | None, name: str) -> str:
    if endpoint is None:
        raise UsageError(f"{name} is not set: the trainer needs the host:port of that service")
    return endpoint
