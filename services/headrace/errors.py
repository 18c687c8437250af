"""Every error that headrace raises on purpose, as one tree.

    HeadraceError
    ├── UsageError              a user's mistake: one line, exit code 2
    └── WireError               crosses the wire as a status with a reason
        ├── InvalidFieldError   INVALID_ARGUMENT
        ├── NotReadyError       UNAVAILABLE
        └── …                   one class per reason that the protos name

Knows nothing of servers and clients: `headrace.rpc.status` turns a `WireError` into a
gRPC status and back.
"""

from __future__ import annotations

from typing import ClassVar, Final

from grpc import StatusCode


class HeadraceError(Exception):
    """The root of the tree."""


class UsageError(HeadraceError):
    """A user's mistake: a bad file, a port taken, a directory in use.

    The message says what is wrong, where, and what to do. The command line prints it as one
    line, without a traceback, and exits with code 2.
    """


class WireError(HeadraceError):
    """An error that a service answers a call with.

    Attributes:
        code: The status code of the answer.
        reason: The reason in its `google.rpc.ErrorInfo`; the protos list which method gives which.
        metadata: The values that the message was made from, for programs.

    """

    code: ClassVar[StatusCode]
    reason: ClassVar[str]
    metadata: dict[str, str]

    def __init__(self, message: str, /, **metadata: str) -> None:
        super().__init__(message)
        self.metadata = metadata


class InvalidFieldError(WireError):
    """A field of the request has a value that it must not have: a mistake of the caller."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}", field=field)

    @property
    def field(self) -> str:
        """The field's name."""
        return self.metadata["field"]


class ChecksumMismatchError(WireError):
    """The bytes did not arrive whole."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "CHECKSUM_MISMATCH"


class KeyExistsError(WireError):
    """The key is there with other bytes."""

    code = StatusCode.ALREADY_EXISTS
    reason = "KEY_EXISTS"


class StoreFullError(WireError):
    """The store has no room."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "STORE_FULL"


class NotReadyError(WireError):
    """The service is still loading, or going away. The same call may succeed later."""

    code = StatusCode.UNAVAILABLE
    reason = "NOT_READY"


class WriterFencedError(WireError):
    """A newer replay buffer owns the run."""

    code = StatusCode.ABORTED
    reason = "WRITER_FENCED"


class DataChangedError(WireError):
    """The run was opened with another data set."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "DATA_CHANGED"


class FeedGapError(WireError):
    """The first ordinal lies above the cursor."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "FEED_GAP"


class FeedNotOpenError(WireError):
    """Prompts were registered before the feed was opened."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "FEED_NOT_OPEN"


class WeightsUnknownError(WireError):
    """These weights were never published on this time line."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "WEIGHTS_UNKNOWN"


class WeightsConflictError(WireError):
    """This version was published with another checksum."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "WEIGHTS_CONFLICT"


class WeightsGoneError(WireError):
    """This version of the weights is not kept any more."""

    code = StatusCode.NOT_FOUND
    reason = "WEIGHTS_GONE"


class WeightsGroupError(WireError):
    """Weights cannot be sent to this worker's engine; it gets them as files."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "WEIGHTS_GROUP_FAILED"


class TrainerFencedError(WireError):
    """A newer trainer has registered."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "TRAINER_FENCED"


class StoreFencedError(WireError):
    """Another life of the store is known than the one that this one follows."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "STORE_FENCED"


class StepOutOfOrderError(WireError):
    """The step is not the one that comes next."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "STEP_OUT_OF_ORDER"


class StepNotCompleteError(WireError):
    """Parts of the step are still to be sampled."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "STEP_NOT_COMPLETE"


class SnapshotLostError(WireError):
    """The snapshot is not under way any more."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "SNAPSHOT_LOST"


class SnapshotFailedError(WireError):
    """A part of a checkpoint could not be written."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "SNAPSHOT_FAILED"


class CannotResumeError(WireError):
    """What there is to go on from does not fit what is to go on."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "CANNOT_RESUME"


class NoValidCheckpointError(WireError):
    """There are checkpoints, and none of them can be used."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "NO_VALID_CHECKPOINT"


class ResumeLostError(WireError):
    """Another resume has begun."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "RESUME_LOST"


class PromptUnknownError(WireError):
    """No prompt of that uid was ever fed."""

    code = StatusCode.NOT_FOUND
    reason = "PROMPT_UNKNOWN"


class RunTooShortError(WireError):
    """The run would have fewer steps, or prompts, than it has behind it."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "RUN_TOO_SHORT"


class WorkerUnknownError(WireError):
    """No such worker was heard of lately."""

    code = StatusCode.NOT_FOUND
    reason = "WORKER_UNKNOWN"


class PromptInUseError(WireError):
    """A prompt is finished, sampled or trained: it cannot be dropped by name."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "PROMPT_IN_USE"


class TokenRefusedError(WireError):
    """The call carries no token, or not the server's."""

    code = StatusCode.UNAUTHENTICATED
    reason = "TOKEN_REFUSED"


class ProtocolMismatchError(WireError):
    """Caller and server speak different versions of the protocol."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "PROTOCOL_MISMATCH"


class WrongRunError(WireError):
    """The server belongs to another run than the caller."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "WRONG_RUN"


class WrongProcessError(WireError):
    """The server is another process than the caller means; the right one may come to its address.

    Where addresses are given out anew, that of a process that has gone is soon another's.
    """

    code = StatusCode.UNAVAILABLE
    reason = "WRONG_PROCESS"


WIRE_ERRORS: Final[dict[str, type[WireError]]] = {
    error.reason: error for error in WireError.__subclasses__()
}
"""The class of each reason."""
