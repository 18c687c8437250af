"""Settings of checkpoints, and of how a run goes on from them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headrace.config.section import Section

Allowance = Literal["new_lineage", "configuration"]


class CheckpointConfig(Section):
    """Checkpoints of the whole run. How often they are made is `trainer.save_freq`."""

    storage: str | None = None
    """Where they lie: an fsspec URL (`file:///…`, `s3://…`, `gs://…`) or a directory; null =
    `checkpoints` in the run directory. Each process writes its own part there."""
    max_ckpt_to_keep: int = Field(default=3, ge=1)
    """Checkpoints that are kept; older ones are removed once a newer one is complete."""
    max_abandoned_to_keep: int | None = Field(default=3, ge=0)
    """Checkpoints in `abandoned/`, which resumes left behind, that are kept, the newest ones; older
    ones are removed once a newer checkpoint is complete. null = all are kept."""
    deadline_s: float = Field(default=1800.0, gt=0)
    """A snapshot that is not complete after this long is given up; training goes on."""
    preempt_grace_s: float = Field(default=60.0, gt=0)
    """How long the trainer may take after SIGTERM to finish its step and save it."""


class ResumeConfig(Section):
    """How a trainer goes on."""

    mode: Literal["auto", "path", "disable"] = "auto"
    """`auto`: from the newest valid checkpoint of the run's time line. `path`: from `path`.
    `disable`: from the beginning, which a run that has begun allows only with
    `allow: [new_lineage]`."""
    path: str | None = None
    """For `path`: a checkpoint's directory (`…/global_step_N`), an fsspec URL or a directory."""
    salvage: Literal["valid", "none"] = "valid"
    """`valid`: finished sessions that the checkpoint's weights, or older ones, have made are kept.
    `none`: everything that was not trained on is generated again."""
    allow: tuple[Allowance, ...] = ()
    """Differences that are accepted: `new_lineage` (leave all checkpoints behind), `configuration`
    (model, algorithm, optimizer, reward)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.mode == "path") != (self.path is not None):
            msg = "resume.mode: path and resume.path go together"
            raise ValueError(msg)
        return self
