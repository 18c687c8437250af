"""What a run was told to do, and where a prompt is, in the judge's own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from math import floor
from typing import NamedTuple

from headrace.v1 import feeder_pb2, prompt_pb2

PENDING, RUNNING, FINISHED, FAILED = "pending", "running", "finished", "failed"
SAMPLED, TRAINED, DROPPED = "sampled", "trained", "dropped"
WINDOW = (PENDING, RUNNING, FINISHED)
SESSION_KEY = "{uid}_{session}_0_{lineage}a{attempt}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a run was told to do."""

    n: int
    batch: int
    warmup: float
    """W."""
    rows: int
    steps: int
    first_steps: int | None = None
    """What `steps` was before it was changed; None if it was not."""
    uid: Callable[[int], str]
    """The prompt that stands at an ordinal."""
    text: Callable[[str], str] | None = None
    """The text of a prompt."""
    epochs: int = 1
    threshold: int | None = 8
    """T."""
    strategy: str = "drop"
    basis: str = "generated"
    sync: bool = False
    salvage: bool = True
    """Whether a resume keeps what weights up to its step have made."""
    token: Callable[[str, int, int], int] | None = None
    """The token at a place of a session's response: of uid, session, place."""
    most_tokens: int = 2**31
    """A response is at most so long."""
    max_failures: int = 3
    max_expiries: int = 100
    eject_after: int = 3
    may_drop: frozenset[str] = frozenset()
    """The reasons for which prompts may be dropped in this scenario."""

    @property
    def window(self) -> int:
        return floor(Decimal(str(self.warmup)) * self.batch)


class Made(NamedTuple):
    """A token of a response under way, and the weights that made it."""

    lineage: str
    version: int
    token: int


@dataclass
class Prompt:
    """Where one prompt is."""

    uid: str
    ordinal: int
    fed_step: int
    state: str
    reason: str = ""
    payload: feeder_pb2.PromptPayload = field(default_factory=feeder_pb2.PromptPayload)
    attempt: int = 0
    worker: str = ""
    lease_version: int = -1
    lease_oldest: int = -1
    """The same, or the oldest weights of what is gone on with."""
    drafts: dict[int, list[Made]] = field(default_factory=dict)
    begun: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """What the drafts of its recorded sessions were."""
    sessions: dict[int, prompt_pb2.SessionRecord] = field(default_factory=dict)
    store: str = ""
    expiries: int = 0


@dataclass(frozen=True)
class HandedOut:
    """A group as the trainer must have been given it."""

    ordinal: int
    span: int
    keys: tuple[str, ...]
    versions: tuple[tuple[int, int], ...]
    """Of each session: the oldest and the newest weights."""
    begun: tuple[tuple[int, ...], ...]
    """Of each session: the tokens that were reported while it was under way."""


def reason_name(reason: prompt_pb2.DropReason.ValueType) -> str:
    """`stale`; empty for a prompt that was not dropped."""
    name = prompt_pb2.DropReason.Name(reason).removeprefix("DROP_REASON_").lower()
    return "" if name == "unspecified" else name
