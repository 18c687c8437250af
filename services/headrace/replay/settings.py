"""The numbers the ledger's rules are applied with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.config.config import Config

GENERATED: Literal["generated"] = "generated"


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """What the rules need of the configuration. Rules read it, stored state never does.

    A change of these between two lives of the replay buffer changes later decisions only; what
    was decided stands in the journal. The fields of `RunOpened` (n, batch size, basis,
    temperature) are the exception: they are fixed for the run.
    """

    n: int
    batch_size: int
    basis: Literal["generated", "fed"] = GENERATED
    window_size: int
    """floor(W x B), in groups."""
    threshold: int | None = None
    """T; None switches staleness off."""
    strategy: Literal["drop", "wait", "none"] = "drop"
    sync: bool = False
    """Only the weights of the step before may generate."""
    epochs: int = 1
    total_steps: int | None = None
    """The user's limit, in steps."""
    saves: bool = False
    """Whether there are checkpoints: the run ends when its trainer says that the last is made."""
    max_failures: int = 3
    max_expiries: int = 100
    eject_after: int = 3
    filter_groups: bool = False
    max_filtered_groups: int = 1
    """Groups filtered within a step at which the circuit opens."""
    max_trajectory_bytes: int = 1
    """Room that a lease reserves per session."""
    max_draft_bytes: int = 2**28
    """Room for the drafts of all groups."""
    temperature: float = 1.0
    max_response_length: int = 512

    @property
    def drops(self) -> bool:
        """Whether groups past the threshold are dropped."""
        return self.strategy == "drop" and self.threshold is not None

    @classmethod
    def from_config(cls, config: Config) -> LedgerSettings:
        """Take the ledger's part of the configuration."""
        batch_size = config.data.train_batch_size
        filter_groups = config.algorithm.filter_groups
        return cls(
            n=config.rollout.n,
            batch_size=batch_size,
            basis=config.sampler.basis,
            window_size=config.window_size,
            threshold=config.sampler.max_off_policy_threshold,
            strategy=config.sampler.max_off_policy_strategy,
            sync=config.trainer.trainer_mode == "sync",
            epochs=config.trainer.total_epochs,
            total_steps=config.trainer.total_training_steps,
            saves=config.trainer.save_freq > 0,
            max_failures=config.ledger.max_failures,
            max_expiries=config.ledger.max_expiries,
            eject_after=config.ledger.eject_after,
            filter_groups=filter_groups.enable,
            max_filtered_groups=filter_groups.max_filtered_groups or 4 * batch_size,
            max_trajectory_bytes=config.max_trajectory_bytes,
            max_draft_bytes=config.ledger.max_draft_bytes,
            temperature=config.rollout.temperature,
            max_response_length=config.data.max_response_length,
        )
