"""One prompt group as the ledger holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.v1 import feeder_pb2, prompt_pb2

PENDING = prompt_pb2.PROMPT_STATE_PENDING
RUNNING = prompt_pb2.PROMPT_STATE_RUNNING
FINISHED = prompt_pb2.PROMPT_STATE_FINISHED
FAILED = prompt_pb2.PROMPT_STATE_FAILED
SAMPLED = prompt_pb2.PROMPT_STATE_SAMPLED
TRAINED = prompt_pb2.PROMPT_STATE_TRAINED
DROPPED = prompt_pb2.PROMPT_STATE_DROPPED

STATES = (PENDING, RUNNING, FINISHED, FAILED, SAMPLED, TRAINED, DROPPED)
LIVE = frozenset({PENDING, RUNNING, FINISHED, FAILED, SAMPLED})
SETTLED = frozenset({TRAINED, DROPPED})
DRAFTED = frozenset({PENDING, RUNNING})
"""Where sessions may be under way."""


@dataclass(slots=True, eq=False)
class Group:
    """A prompt group: n sessions of one row, in exactly one state. Equal only to itself."""

    uid: str
    ordinal: int
    payload: feeder_pb2.PromptPayload | None
    """The prompt; None once settled, unless a rollback may make the group live again."""
    state: prompt_pb2.PromptState.ValueType
    fed_step: int
    """The current step when it was registered."""
    base: int = 0
    """The step its span counts from; 0 while it has none."""
    attempt: int = 0
    failures: int = 0
    expiries: int = 0
    worker_id: str = ""
    sessions: dict[int, prompt_pb2.SessionRecord] = field(default_factory=dict)
    drafts: dict[int, prompt_pb2.Draft] = field(default_factory=dict)
    """What there is of sessions that are not recorded; never empty ones."""
    store_incarnation: str = ""
    """The life of the store that holds `sessions`."""
    drop_reason: prompt_pb2.DropReason.ValueType = prompt_pb2.DROP_REASON_UNSPECIFIED
    step: int = 0
    """The step that sampled or trained it."""
    lineage: str = ""
    """The time line that trained it."""
    last_error: str = ""
    history: list[int] = field(default_factory=list)
    """Journal positions of the events that concern it."""

    @property
    def held_bytes(self) -> int:
        """Bytes of its sessions in the store."""
        return sum(record.size_bytes for record in self.sessions.values())

    @property
    def draft_token_count(self) -> int:
        """Tokens of its drafts."""
        if not self.drafts:  # as almost always
            return 0
        return sum(len(draft.token_ids) for draft in self.drafts.values())

    def missing(self, n: int) -> list[int]:
        """Sessions of the n that are not in the store."""
        return [session for session in range(n) if session not in self.sessions]

    def to_proto(self) -> prompt_pb2.PromptGroup:
        """Shape it for the wire."""
        return prompt_pb2.PromptGroup(
            uid=self.uid,
            ordinal=self.ordinal,
            state=self.state,
            drop_reason=self.drop_reason,
            base=self.base,
            attempt=self.attempt,
            failure_count=self.failures,
            expiry_count=self.expiries,
            worker_id=self.worker_id,
            sessions=[self.sessions[key] for key in sorted(self.sessions)],
            step=self.step,
            lineage=self.lineage,
            last_error=self.last_error,
        )
