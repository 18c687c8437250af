"""Rows of the data set for the warm start, read from the feeder. The feed does not move."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import InvalidFieldError
from headrace.rpc.calls import persist
from headrace.rpc.waits import Waits
from headrace.v1 import feeder_pb2, feeder_pb2_grpc

if TYPE_CHECKING:
    FeederStub = feeder_pb2_grpc.PromptFeederServiceAsyncStub

ROWS_PER_CALL = 256


async def read_rows(
    feeder: FeederStub,
    *,
    offset: int,
    count: int,
    timeout_s: float,
    waits: Waits,
    stopping: asyncio.Event,
) -> list[feeder_pb2.PromptPayload]:
    """Read `count` rows from position `offset` on, in the order of the warm start.

    Args:
        feeder: the prompt feeder.
        offset: counted over repeated passes.
        count: how many.
        timeout_s: deadline of each call.
        waits: where waits are registered.
        stopping: ends them.

    Raises:
        InvalidFieldError: a single row is too large for a message.
        Stopped: the process is to stop.

    """
    rows: list[feeder_pb2.PromptPayload] = []
    size = ROWS_PER_CALL
    while len(rows) < count:
        request = feeder_pb2.ReadRowsRequest(
            offset=offset + len(rows), max_count=min(size, count - len(rows))
        )
        try:
            response = await persist(
                feeder.ReadRows,
                request,
                waits=waits,
                name="rows for the warm start",
                owner="feeder",
                timeout_s=timeout_s,
                stopping=stopping,
            )
        except InvalidFieldError:
            if request.max_count == 1:
                raise
            size = request.max_count // 2  # together they were too large for a message
            continue
        rows += response.rows
    return rows
