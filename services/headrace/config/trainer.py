"""How the policy learns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config.section import Section


class SamplerConfig(Section):
    """What may be trained on, and how old it may be."""

    max_off_policy_threshold: int | None = Field(default=8, ge=1)
    """T: the largest span (1 = on-policy) that is trained on; null switches the rule off."""
    max_off_policy_strategy: Literal["drop", "wait", "none"] = "drop"
    """`drop`: groups past T are dropped and replaced. `wait`: sampling waits while a running
    group has reached T. `none`: no rule."""
    basis: Literal["generated", "fed"] = "generated"
    """What a span counts from: the oldest weights that made a token, or the step of feeding."""
    allow_wasteful: bool = False
    """Accept `basis: fed` with a T so small that groups are dropped in steady state."""


class FilterGroups(Section):
    """DAPO's group filter (arXiv 2503.14476, section 3.2)."""

    enable: bool = False
    """Drop finished groups whose rewards are all the same."""
    max_filtered_groups: int | None = Field(default=None, ge=1)
    """Groups that may be filtered within one step before the circuit opens; null = 4 x B."""


class WarmStart(Section):
    """Supervised steps on reference answers before the first rollout."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 = none."""
    batch_size: int = Field(default=64, ge=1)
    """Rows per step."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate, constant."""


class AlgorithmConfig(Section):
    """GRPO (arXiv 2402.03300) with a clipped ratio."""

    correction: Literal["bypass"] = "bypass"
    """`bypass`: PPO's ratio is taken to the rollout policy itself."""
    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped at 1 - this."""
    clip_ratio_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped at 1 + this."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide advantages by the group's standard deviation."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"
    """Mean over all tokens of the update, or over sequences of their token means."""
    kl_loss_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL to the frozen initial policy; 0 = no reference model."""
    kl_loss_type: Literal["k1", "k3"] = "k3"
    """Estimator of that KL. As a loss, k1 has a zero-mean gradient: it warns."""
    filter_groups: FilterGroups = FilterGroups()
    """DAPO's group filter."""


class OptimConfig(Section):
    """AdamW."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    lr_min_ratio: float | None = Field(default=None, ge=0, le=1)
    """The last step's learning rate as a share of `lr`; null = 0, unless it is constant."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the way from `lr` to its minimum."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Adam's decay rates."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    clip_grad: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""

    @property
    def end_ratio(self) -> float:
        """The last step's learning rate as a share of `lr`, as it was meant."""
        if self.lr_min_ratio is not None:
            return self.lr_min_ratio
        return 1.0 if self.lr_schedule == "constant" else 0.0


class TrainerConfig(Section):
    """The training loop."""

    trainer_mode: Literal["sync", "separate_async"] = "separate_async"
    """`sync`: every step is made by its own weights. `separate_async`: rollout goes on while the
    trainer works."""
    num_warmup_batches: float = Field(default=1, ge=0)
    """W: batches that are live beside the one being sampled."""
    parameter_sync_step: int = Field(default=1, ge=1)
    """P: updates (mini-batches of B / P groups) in one step, after which weights are published."""
    total_epochs: int = Field(default=1, ge=1)
    """Passes over the data set."""
    total_training_steps: int | None = Field(default=None, ge=1)
    """Stop after so many steps; null = to the end of the data."""
    save_freq: int = Field(default=20, ge=-1)
    """Steps between two checkpoints, the last step and SIGTERM beside; -1 = no checkpoints: a run
    whose trainer dies is over."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Sequences per forward pass; null = all of a mini-batch. Does not change the gradient. With a
    large vocabulary it is what the memory goes to: `headrace config check` warns."""
    device: str = "auto"
    """`auto` takes CUDA if it is there; else a torch device name."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null = torch's own choice."""
    seed: int = 0
    """Seed of torch in the trainer."""
    optim: OptimConfig = OptimConfig()
    """The optimizer."""
    warm_start: WarmStart = WarmStart()
    """Supervised steps before the first rollout."""
    tensorboard: bool = True
    """Write TensorBoard logs into the run directory."""
