"""A run's checkpoints: listed by the coordinator or read from where they lie, and asked for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import grpc

from headrace.client.asking import TIMEOUT_S, ask
from headrace.client.frames import needs
from headrace.client.words import LIVE_STATES
from headrace.config.config import Config
from headrace.errors import SnapshotFailedError, UsageError
from headrace.v1 import checkpoint_pb2 as pb
from headrace.v1 import checkpoint_pb2_grpc, trainer_pb2, trainer_pb2_grpc

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = (
    "step",
    "lineage",
    "time",
    "size_bytes",
    "latest",
    "abandoned",
    "problem",
    "trained",
    "live",
    "uri",
)
VERIFY_WITHIN_S: Final = 3600.0
"""How long it may take to read every byte of all checkpoints."""
LOOK_EVERY_S: Final = 0.2
"""How often the trainer is asked whether it has saved."""
_FAILED: Final = re.compile(r"step (\d+): ")
"""How a trainer's message of a failed snapshot begins."""


def list_checkpoints(
    channel: grpc.Channel, *, verify: bool, patience_s: float = 0.0
) -> list[pb.Checkpoint]:
    """Ask the coordinator.

    Raises:
        UsageError: it does not answer.

    """
    stub = checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(channel)
    answer = ask(
        stub.ListCheckpoints,
        pb.ListCheckpointsRequest(verify=verify),
        who="the checkpoint coordinator",
        patience_s=patience_s,
        timeout_s=VERIFY_WITHIN_S if verify else TIMEOUT_S,
    )
    return list(answer.checkpoints)


def stored_checkpoints(config: Config, *, latest: int, verify: bool) -> list[pb.Checkpoint]:
    """Read what lies in a run's storage, for a run that nobody answers for.

    Args:
        config: The run's configuration, with its run directory.
        latest: The step of the newest checkpoint that the ledger knows.
        verify: Whether every byte is read, not only the sizes.

    Raises:
        UsageError: the storage cannot be reached, or needs a driver that is not installed.

    """
    # Imported here, as a running coordinator is asked without any of its code.
    from headrace.checkpoint.directory import CheckpointDirectory, storage_of

    directory = CheckpointDirectory(storage_of(config))
    try:
        found = [*directory.find(read=verify), *directory.find_abandoned(read=verify)]
    except OSError as error:
        raise UsageError(f"{directory.storage.url} cannot be read: {error}") from error
    return [
        one.message(is_latest=one.step == latest and not one.abandoned_line)
        for one in found
        if not one.unfinished
    ]


def checkpoints_frame(checkpoints: Iterable[pb.Checkpoint]) -> pd.DataFrame:
    """One row per checkpoint, in the order given."""
    pandas = needs("pandas")
    frame: pd.DataFrame = pandas.DataFrame(map(_row, checkpoints), columns=list(COLUMNS))
    frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
    return frame


def _row(checkpoint: pb.Checkpoint) -> tuple[object, ...]:
    counts = checkpoint.counts
    return (
        checkpoint.step,
        checkpoint.lineage,
        checkpoint.unix_time_s,
        checkpoint.size_bytes,
        checkpoint.is_latest,
        checkpoint.abandoned,
        checkpoint.problem,
        counts.trained,
        sum(int(getattr(counts, state)) for state in LIVE_STATES),
        checkpoint.uri,
    )


def take_snapshot(
    channel: Callable[[], grpc.Channel],
    *,
    wait_s: float,
    patience_s: float = 0.0,
    watch: Callable[[int, trainer_pb2.GetTrainerStatusResponse], None] | None = None,
) -> int:
    """Have the trainer save the step that it is in, and wait for it; give the step.

    A trainer that is started again meanwhile is asked again.

    Args:
        channel: Gives the connection to the trainer, wherever it listens now.
        wait_s: How long to wait.
        patience_s: How long the trainer may be away.
        watch: Told the step, and how the trainer is, each time it is looked at.

    Raises:
        SnapshotFailedError: it could not be saved, or the run makes no checkpoints.
        UsageError: the trainer does not answer, or not in time.

    """
    ends = time.monotonic() + wait_s
    step, asked = _request(channel(), patience_s)
    while True:
        stub = trainer_pb2_grpc.TrainerServiceStub(channel())
        request = trainer_pb2.GetTrainerStatusRequest()
        now = ask(stub.GetTrainerStatus, request, who="the trainer", patience_s=patience_s)
        if watch is not None:
            watch(step, now)
        if now.saved_step >= step:
            return now.saved_step
        failed = _FAILED.match(now.snapshot_error)
        if failed and int(failed[1]) >= step:
            raise SnapshotFailedError(now.snapshot_error)
        if time.monotonic() - asked > now.process.uptime_s + 1:  # another life, which knows nothing
            step, asked = _request(channel(), patience_s)
        if time.monotonic() > ends:
            raise UsageError(f"step {step} is not saved within {wait_s:g} s; it still may be")
        time.sleep(LOOK_EVERY_S)


def _request(channel: grpc.Channel, patience_s: float) -> tuple[int, float]:
    stub = trainer_pb2_grpc.TrainerServiceStub(channel)
    request = trainer_pb2.RequestSnapshotRequest()
    step = ask(stub.RequestSnapshot, request, who="the trainer", patience_s=patience_s).step
    return step, time.monotonic()
