"""One life of a trainer, from its arrival to its last step: everything is put together here."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import torch

from headrace.checkpoint.facts import facts_of
from headrace.config.config import Config
from headrace.failpoints import reach
from headrace.log import get_logger
from headrace.rpc.process import Process
from headrace.tokenizer import Tokenizer, load_tokenizer
from headrace.trainer.actor import Actor
from headrace.trainer.arrival import Resumption, Start, register, without_checkpoints
from headrace.trainer.compute import ComputeThread
from headrace.trainer.departure import Departure
from headrace.trainer.description import describe, fingerprint
from headrace.trainer.home import Home, checkpoint_storage, run_directory, weights_root
from headrace.trainer.loading import load
from headrace.trainer.loop import LoopSettings, TrainingLoop
from headrace.trainer.model import build_model, pick_device
from headrace.trainer.peers import Peers, open_peers
from headrace.trainer.probe import draw_sequences
from headrace.trainer.progress import Progress
from headrace.trainer.publisher import WeightsWriter
from headrace.trainer.recorder import Recorder, rewind
from headrace.trainer.rows import read_rows
from headrace.trainer.saver import Saver
from headrace.trainer.state import StateCopy
from headrace.trainer.upload import SaverSettings
from headrace.trainer.warm_start import SupervisedTrainer
from headrace.v1.replay_pb2 import RegisterTrainerResponse
from headrace.v1.trainer_pb2 import TrainerPhase
from headrace.weights.transfer import GRPC_URI

log = get_logger()


class Training:
    """The trainer's work.

    Args:
        config: the run's configuration.
        process: the process around it.
        departure: says when to leave.
        progress: is told where it is.
        compute: the thread that computes.
        address: where the trainer listens.

    """

    def __init__(
        self,
        config: Config,
        process: Process,
        departure: Departure,
        progress: Progress,
        compute: ComputeThread,
        address: str,
    ) -> None:
        self._config = config
        self._process = process
        self._departure = departure
        self._progress = progress
        self._compute = compute
        self._address = address
        self._trainer_id = f"trainer-{uuid4().hex}"

    async def run(self) -> None:
        """Train to the end.

        Raises:
            TrainerFencedError, CannotFollowError, CannotResumeError, NoValidCheckpointError,
            NotSavedError: it cannot go on.
            DamagedError, PartDamagedError, ShardsDamagedError: the checkpoint cannot be read.
            UsageError: the model cannot be built.
            Stopped: told to stop.

        """
        tokenizer = await self._compute.run(load_tokenizer, self._config.model)
        model = await self._compute.run(_place_model, self._config, tokenizer)
        async with open_peers(self._config, self._process.security) as peers:
            registered = await self._register(peers)
            home = Home.make(self._config, registered.incarnation)
            try:
                await self._live(peers, registered, home, model, tokenizer)
            finally:
                await asyncio.to_thread(home.remove)

    async def _register(self, peers: Peers) -> RegisterTrainerResponse:
        registered = await register(
            peers.replay,
            trainer_id=self._trainer_id,
            address=self._address,
            waits=self._process.waits,
            stopping=self._departure.leaving,
        )
        self._progress.total_steps = registered.total_steps
        return registered

    async def _live(
        self,
        peers: Peers,
        registered: RegisterTrainerResponse,
        home: Home,
        model: Any,
        tokenizer: Tokenizer,
    ) -> None:
        facts, resumption = await self._resumption(peers, registered, home, model, tokenizer)
        start = await resumption.start() if resumption else without_checkpoints(registered)
        if start.is_over:
            self._progress.step = self._progress.saved_step = start.step
            self._progress.phase = TrainerPhase.TRAINER_PHASE_FINISHED
            log.info("already_finished", step=start.step, reason="the run is over, and saved")
            return
        if start.is_resumed:
            registered = await self._register(peers)  # a run that was over may be longer now
        if start.step == 0:
            await self._warm_up(peers, model, tokenizer)
        actor = await self._compute.run(_make_actor, self._config, model, registered.total_steps)
        copy = await self._take_up(start, actor, home)
        saver = self._make_saver(peers, registered, start, home, actor, copy, facts)
        writer = await self._compute.run(
            _make_writer, self._config, start.lineage, actor.model, tokenizer
        )
        loop = self._make_loop(peers, registered, start, tokenizer, actor, writer, saver)
        recorder = await self._compute.run(_make_recorder, self._config, start)
        try:
            await loop.publish(start.step)
            self._process.ready()
            if saver is not None:
                await self._compute.run(copy.reserve, actor)
            if resumption and start.is_resumed:
                self._progress.phase = TrainerPhase.TRAINER_PHASE_RESUMING
                await resumption.opened(start.lineage)
                await self._compute.run(writer.leave_other_lines)
            await loop.run(recorder)
        finally:
            if saver is not None:
                await saver.close()
            await self._compute.run(recorder.close)

    async def _resumption(
        self,
        peers: Peers,
        registered: RegisterTrainerResponse,
        home: Home,
        model: Any,
        tokenizer: Tokenizer,
    ) -> tuple[dict[str, str], Resumption | None]:
        if peers.coordinator is None:
            return {}, None
        self._progress.phase = TrainerPhase.TRAINER_PHASE_RESUMING
        await self._compute.run(describe, home.description, model, tokenizer)
        facts = facts_of(self._config, fingerprint(home.description, tokenizer))
        return facts, Resumption(
            peers.coordinator,
            registered=registered,
            facts=facts,
            waits=self._process.waits,
            stopping=self._departure.leaving,
        )

    async def _warm_up(self, peers: Peers, model: Any, tokenizer: Tokenizer) -> None:
        """Teach the model reference answers: only before the first step."""
        settings = self._config.trainer.warm_start
        if peers.feeder is None:
            return
        self._progress.phase = TrainerPhase.TRAINER_PHASE_STARTING
        teacher = _make_teacher(self._config, model, tokenizer)
        for number in range(settings.steps):
            rows = await read_rows(
                peers.feeder,
                offset=number * settings.batch_size,
                count=settings.batch_size,
                timeout_s=self._config.data.read_timeout_s,
                waits=self._process.waits,
                stopping=self._departure.leaving,
            )
            loss = await self._compute.run(teacher.step, rows)
            log.info("warm_start_step", step=number + 1, of=settings.steps, loss=round(loss, 4))

    async def _take_up(self, start: Start, actor: Actor, home: Home) -> StateCopy:
        """Bring actor, metrics and progress to where the run goes on; give room for copies."""
        if not start.is_resumed:
            return StateCopy()
        tensors: dict[str, torch.Tensor] = {}
        metrics: list[str] = []
        if start.part is not None:
            with self._process.waits.waiting(
                "checkpoint loaded",
                owner="trainer",
                ends_when=f"{start.part.uri} is read",
                stall_after_s=self._config.checkpoint.deadline_s,
            ):
                loaded = await self._compute.run(
                    load, start.part, actor, step=start.step, scratch=home.arriving
                )
            tensors, metrics = loaded.tensors, loaded.metrics
        reach("trainer.loaded")
        steps = await self._compute.run(rewind, home.run.metrics_file, metrics)
        self._progress.go_on(start.step, steps)
        # The device copies faster into memory that is made for it.
        return StateCopy(tensors if actor.device.type == "cpu" else None)

    def _make_saver(
        self,
        peers: Peers,
        registered: RegisterTrainerResponse,
        start: Start,
        home: Home,
        actor: Actor,
        copy: StateCopy,
        facts: dict[str, str],
    ) -> Saver | None:
        if peers.coordinator is None:
            return None
        config = self._config
        settings = SaverSettings(
            incarnation=registered.incarnation,
            run_id=config.run.run_id,
            lineage=start.lineage,
            storage=checkpoint_storage(config),
            facts=facts,
            scratch=home.scratch,
            description=home.description,
            metrics_file=home.run.metrics_file,
            save_freq=config.trainer.save_freq,
            deadline_s=config.checkpoint.deadline_s,
        )
        return Saver(
            settings,
            coordinator=peers.coordinator,
            actor=actor,
            compute=self._compute,
            copy=copy,
            progress=self._progress,
            waits=self._process.waits,
            leaving=self._departure.leaving,
        )

    def _make_loop(
        self,
        peers: Peers,
        registered: RegisterTrainerResponse,
        start: Start,
        tokenizer: Tokenizer,
        actor: Actor,
        writer: WeightsWriter,
        saver: Saver | None,
    ) -> TrainingLoop:
        settings = LoopSettings(
            incarnation=registered.incarnation,
            lineage=start.lineage,
            part_count=self._config.trainer.parameter_sync_step,
            divide_by_std=self._config.algorithm.norm_adv_by_std_in_grpo,
            pad_id=tokenizer.pad_id,
            first_step=start.step + 1,
            address=self._address,
            update_stall_after_s=self._config.watchdog.idle_after_s,
        )
        return TrainingLoop(
            settings,
            replay=peers.replay,
            store=peers.store,
            actor=actor,
            compute=self._compute,
            writer=writer,
            progress=self._progress,
            waits=self._process.waits,
            departure=self._departure,
            saver=saver,
        )


def _place_model(config: Config, tokenizer: Tokenizer) -> Any:
    device = pick_device(config.trainer.device)
    model = build_model(config.model, tokenizer, max_length=_max_length(config))
    return model.to(device)


def _max_length(config: Config) -> int:
    return config.data.max_prompt_length + config.data.max_response_length


def _make_teacher(config: Config, model: Any, tokenizer: Tokenizer) -> SupervisedTrainer:
    return SupervisedTrainer(
        model,
        tokenizer=tokenizer,
        config=config.trainer.warm_start,
        optim=config.trainer.optim,
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        micro_batch_size=config.trainer.micro_batch_size,
    )


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


def _make_writer(config: Config, lineage: str, model: Any, tokenizer: Tokenizer) -> WeightsWriter:
    return WeightsWriter(
        weights_root(config),
        run_id=config.run.run_id,
        lineage=lineage,
        probed=draw_sequences(model, tokenizer, max_length=_max_length(config)),
        uri=GRPC_URI if config.weights.are_served else None,
        lists_tensors=config.weights.transport == "nccl",
    )


def _make_recorder(config: Config, start: Start) -> Recorder:
    directory = run_directory(config)
    board = directory.tensorboard if config.trainer.tensorboard else None
    purge_step = start.step + 1 if start.is_resumed else None
    return Recorder(directory.metrics_file, board, purge_step=purge_step)
