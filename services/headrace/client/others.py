"""What a run's trainer and feeder are asked for, without an event loop."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc

from headrace.client.asking import ask, refusal
from headrace.v1 import feeder_pb2, feeder_pb2_grpc, trainer_pb2, trainer_pb2_grpc

STEPS_WITHIN_S: Final = 10.0
"""How long the trainer may take to say all its steps."""
FEED_WITHIN_S: Final = 30.0
"""How long one call may take to tokenize and register rows."""


def steps_so_far(channel: grpc.Channel, *, patience_s: float = 0.0) -> dict[int, dict[str, float]]:
    """Ask the trainer for the metrics of all its steps.

    Raises:
        UsageError: it does not answer.

    """
    stub = trainer_pb2_grpc.TrainerServiceStub(channel)
    now = ask(
        stub.GetTrainerStatus,
        trainer_pb2.GetTrainerStatusRequest(),
        who="the trainer",
        patience_s=patience_s,
    )
    ended = now.phase == trainer_pb2.TRAINER_PHASE_FINISHED  # then the stream ends by itself
    last = now.step - 1
    steps: dict[int, dict[str, float]] = {}
    if not last and not ended:
        return steps
    call = stub.WatchSteps(trainer_pb2.WatchStepsRequest(), timeout=STEPS_WITHIN_S)
    try:
        for answer in call:
            steps[answer.step] = dict(answer.metrics)
            if answer.step >= last and not ended:
                break
    except grpc.RpcError as failed:
        if not steps:
            raise refusal(failed, "the trainer") from None
    finally:
        call.cancel()
    return steps


def feed_rows(
    channel: grpc.Channel,
    rows: Iterable[Mapping[str, Any]],
    *,
    request_id: str,
    patience_s: float = 0.0,
) -> list[str]:
    """Hand rows to the feeder, once per `request_id` however often it is tried; give their uids.

    Raises:
        WireError: the feeder refuses a row, or the run is not on.
        UsageError: it does not answer.

    """
    stub = feeder_pb2_grpc.PromptFeederServiceStub(channel)
    request = feeder_pb2.FeedRowsRequest(
        request_id=request_id, rows_json=[json.dumps(dict(row)) for row in rows]
    )
    answer = ask(
        stub.FeedRows,
        request,
        who="the prompt feeder",
        patience_s=patience_s,
        timeout_s=FEED_WITHIN_S,
    )
    return list(answer.uids)
