"""The whole configuration, and the checks that look across sections."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Self

from pydantic import model_validator

from headrace.config.checkpoint import CheckpointConfig, ResumeConfig
from headrace.config.data import DataConfig, StreamSource
from headrace.config.model import ModelConfig
from headrace.config.rollout import RewardConfig, RolloutConfig, TorchEngine
from headrace.config.section import Section
from headrace.config.security import SecurityConfig
from headrace.config.services import (
    EndpointsConfig,
    JournalConfig,
    LauncherConfig,
    LedgerConfig,
    RunSection,
    StoreConfig,
    WatchdogConfig,
    WeightsConfig,
)
from headrace.config.trainer import AlgorithmConfig, SamplerConfig, TrainerConfig
from headrace.config.vllm import LEAST_TEMPERATURE, VllmEngine
from headrace.config.vllm_server import VllmServerEngine

BYTES_PER_TOKEN = 16
"""Most bytes of a serialized trajectory per token: ids, log-probability, mask."""
BYTES_PER_TRAJECTORY = 4096
"""Most bytes of a serialized trajectory beside its tokens: key, reward parts, spans."""


class Config(Section):
    """Everything a run is configured by."""

    run: RunSection = RunSection()
    """The run as a whole."""
    data: DataConfig
    """The data set."""
    model: ModelConfig
    """The policy and its tokenizer."""
    rollout: RolloutConfig = RolloutConfig()
    """The rollout workers."""
    reward: RewardConfig = RewardConfig()
    """How a response is scored."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """GRPO."""
    sampler: SamplerConfig = SamplerConfig()
    """What may be trained on."""
    trainer: TrainerConfig = TrainerConfig()
    """The training loop."""
    ledger: LedgerConfig = LedgerConfig()
    """Leases, failures and the circuit."""
    journal: JournalConfig = JournalConfig()
    """The ledger's journal."""
    store: StoreConfig = StoreConfig()
    """The trajectory store."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints of the whole run."""
    resume: ResumeConfig = ResumeConfig()
    """How a run goes on."""
    weights: WeightsConfig = WeightsConfig()
    """How weights travel."""
    endpoints: EndpointsConfig = EndpointsConfig()
    """Where the services are."""
    security: SecurityConfig = SecurityConfig()
    """Who may call, and whether others can listen. A token and TLS are both needed on every
    address but loopback; `headrace certs init` makes the files. They are read when a process
    starts."""
    watchdog: WatchdogConfig = WatchdogConfig()
    """No silent stall."""
    launcher: LauncherConfig = LauncherConfig()
    """How `headrace run` looks after its children."""

    @property
    def window_size(self) -> int:
        """floor(W x B), in decimal arithmetic: 0.1 x 30 is 3."""
        warmup = Decimal(str(self.trainer.num_warmup_batches))
        return math.floor(warmup * self.data.train_batch_size)

    @property
    def max_trajectory_bytes(self) -> int:
        """The longest a serialized trajectory can be; what the room gate reserves per session."""
        tokens = self.data.max_prompt_length + self.data.max_response_length
        return BYTES_PER_TRAJECTORY + BYTES_PER_TOKEN * tokens

    @property
    def steady_state_span(self) -> int:
        """ceil(floor(W x B) / B) + 1: the span that `basis: fed` reaches in steady state."""
        return -(-self.window_size // self.data.train_batch_size) + 1

    def warnings(self) -> list[str]:
        """Say what is allowed and probably not meant, one line each."""
        found = []
        threshold = self.sampler.max_off_policy_threshold
        drops = self.sampler.max_off_policy_strategy == "drop" and threshold is not None
        if drops and self.trainer.trainer_mode != "sync" and threshold is not None:
            need = self.steady_state_span
            if threshold < need:
                found.append(
                    f"sampler.max_off_policy_threshold = {threshold} is below {need} = "
                    "ceil(floor(W x B) / B) + 1: groups will be dropped unless generation keeps up"
                )
            elif threshold == need and self.window_size > 0:
                found.append(
                    f"sampler.max_off_policy_threshold = {threshold} leaves no slack over the "
                    "steady-state span: a slow group is dropped"
                )
        if self.reward.sends_token_in_the_clear:
            found.append(
                f"reward.url = {self.reward.url}: the token of reward.http.token_file can be read by "
                "everybody on the way; use https"
            )
        engine = self.rollout.engine
        if isinstance(engine, VllmServerEngine) and engine.sends_key_in_the_clear:
            found.append(
                "rollout.engine.base_urls has http addresses of other machines: the key of "
                "rollout.engine.api_key_file can be read by everybody on the way; use https"
            )
        if self.weights.transport == "nccl" and not isinstance(engine, VllmEngine):
            found.append(
                f"weights.transport = nccl is for rollout.engine.kind = vllm (it is {engine.kind}): "
                "workers get weights as with grpc"
            )
        if self.algorithm.kl_loss_coef > 0 and self.algorithm.kl_loss_type == "k1":
            found.append(
                "algorithm.kl_loss_type = k1 as a loss has a gradient of zero mean; k3 is meant"
            )
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        batch, parts = self.data.train_batch_size, self.trainer.parameter_sync_step
        if batch % parts:
            msg = (
                f"data.train_batch_size = {batch} must be a multiple of "
                f"trainer.parameter_sync_step = {parts}"
            )
            raise ValueError(msg)
        if self.trainer.trainer_mode == "sync" and self.trainer.num_warmup_batches:
            msg = (
                "trainer.trainer_mode = sync has no window: set trainer.num_warmup_batches to 0 "
                f"(it is {self.trainer.num_warmup_batches:g})"
            )
            raise ValueError(msg)
        self._check_partial_rollout()
        self._check_fed_threshold()
        self._check_stream()
        self._check_reward()
        self._check_positions()
        self._check_vllm()
        self._check_gpus()
        need = self.rollout.n * self.max_trajectory_bytes
        if need > self.store.capacity_bytes:
            msg = (
                f"store.capacity_bytes = {self.store.capacity_bytes} cannot hold one group: n x the "
                f"longest trajectory = {need} bytes"
            )
            raise ValueError(msg)
        return self

    def _check_partial_rollout(self) -> None:
        rollout, is_sync = self.rollout, self.trainer.trainer_mode == "sync"
        if rollout.partial_rollout and is_sync:
            msg = (
                "rollout.partial_rollout makes responses by several versions of the weights, and "
                "trainer.trainer_mode = sync trains on one: set it to false, or the mode to "
                "separate_async"
            )
            raise ValueError(msg)
        if rollout.journal_tokens_every is not None and not rollout.partial_rollout and not is_sync:
            msg = (
                "rollout.journal_tokens_every has responses go on with newer weights than they "
                "began with: set rollout.partial_rollout to true, or it to null"
            )
            raise ValueError(msg)

    def _check_reward(self) -> None:
        reward = self.reward
        for kind, key, value, form in (
            ("python", "reward.function", reward.function, "module:function"),
            ("http", "reward.url", reward.url, "http://host:port/path"),
            ("reasoning_gym", "reward.answer_tag", reward.answer_tag, ""),
        ):
            if form and reward.kind == kind and value is None:
                msg = f"reward.kind = {kind} needs {key}: {form}"
                raise ValueError(msg)
            if reward.kind != kind and value is not None:
                msg = f"{key} is for reward.kind = {kind} only (it is {reward.kind})"
                raise ValueError(msg)

    def _check_positions(self) -> None:
        """Find early what the trainer would find when it has built the model."""
        need = self.data.max_prompt_length + self.data.max_response_length
        for key in ("n_positions", "max_position_embeddings"):
            room = self.model.options.get(key)
            if isinstance(room, int) and room < need:
                msg = (
                    f"data.max_prompt_length + data.max_response_length = {need} is more than "
                    f"model.options.{key} = {room}: lower them, or raise it"
                )
                raise ValueError(msg)

    def _check_vllm(self) -> None:
        engine = self.rollout.engine
        if not isinstance(engine, VllmEngine | VllmServerEngine):
            return
        need = self.data.max_prompt_length + self.data.max_response_length
        room = engine.max_model_len if isinstance(engine, VllmEngine) else None
        if room is not None and room < need:
            msg = (
                f"rollout.engine.max_model_len = {room} is less than "
                f"data.max_prompt_length + data.max_response_length = {need}: leave it out"
            )
            raise ValueError(msg)
        if self.rollout.temperature < LEAST_TEMPERATURE:
            msg = (
                f"rollout.temperature = {self.rollout.temperature:g}: vLLM samples with "
                f"{LEAST_TEMPERATURE:g} at least, and the trainer would not know"
            )
            raise ValueError(msg)

    def _check_gpus(self) -> None:
        rollout, gpus = self.rollout, self.rollout.gpus
        if gpus is None:
            return
        engine = rollout.engine
        each = engine.gpus if isinstance(engine, VllmEngine) else int(engine.kind == "torch")
        if not each:
            msg = f"rollout.gpus: workers with rollout.engine.kind = {engine.kind} use no GPU"
            raise ValueError(msg)
        if len(gpus) != rollout.workers * each or len(set(gpus)) != len(gpus):
            msg = (
                f"rollout.gpus = {list(gpus)}: rollout.workers = {rollout.workers} with {each} each "
                f"need {rollout.workers * each} different ones"
            )
            raise ValueError(msg)
        if isinstance(engine, TorchEngine) and engine.device not in ("auto", "cuda"):
            msg = (
                f"rollout.engine.device = {engine.device}: with rollout.gpus each worker sees one "
                "GPU, which is cuda there; leave it out"
            )
            raise ValueError(msg)
        if self.trainer.device in ("auto", "cuda") and 0 in gpus:
            msg = (
                f"trainer.device = {self.trainer.device} is GPU 0, which rollout.gpus gives to a "
                "worker: set it to another one (cuda:1), or to cuda:0 if they are to share it"
            )
            raise ValueError(msg)

    def _check_fed_threshold(self) -> None:
        sampler = self.sampler
        threshold = sampler.max_off_policy_threshold
        if (
            sampler.basis != "fed"
            or sampler.max_off_policy_strategy != "drop"
            or threshold is None
            or sampler.allow_wasteful
        ):
            return
        if threshold < self.steady_state_span:
            msg = (
                f"sampler.max_off_policy_threshold = {threshold} with basis: fed must drop groups in "
                f"steady state: ceil(floor({self.trainer.num_warmup_batches:g} x "
                f"{self.data.train_batch_size}) / {self.data.train_batch_size}) + 1 = "
                f"{self.steady_state_span}. Raise it, lower trainer.num_warmup_batches, or set "
                "sampler.allow_wasteful"
            )
            raise ValueError(msg)

    def _check_stream(self) -> None:
        if not isinstance(self.data.source, StreamSource):
            return
        if self.trainer.total_training_steps is None:
            msg = "data.source.kind = stream has no known length: set trainer.total_training_steps"
            raise ValueError(msg)
        for key, value, need, why in (
            ("data.shuffle", self.data.shuffle, False, "has its own order"),
            ("trainer.total_epochs", self.trainer.total_epochs, 1, "is read once"),
            (
                "trainer.warm_start.steps",
                self.trainer.warm_start.steps,
                0,
                "cannot be read beside the feed",
            ),
        ):
            if value != need:
                msg = f"data.source.kind = stream {why}: set {key} to {str(need).lower()}"
                raise ValueError(msg)
