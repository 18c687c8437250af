"""Rows given by hand: made into prompts as the data set's are, and registered beside the feed.

Knows no source and no order. The ledger names the prompts and keeps the answer to each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.errors import InvalidFieldError, UsageError
from headrace.feeder.prompts import Packer
from headrace.feeder.reading import Reader
from headrace.feeder.sources.source import Columns, row_from_json
from headrace.rpc.calls import persist
from headrace.rpc.waits import Waits
from headrace.v1 import feeder_pb2, replay_pb2

if TYPE_CHECKING:
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub

MAX_ROWS_PER_CALL: Final = 4096
MAX_BYTES_PER_CALL: Final = 2 * 2**20
"""A message may have 4 MiB."""
COLUMNS: Final = Columns(
    prompt_key="prompt",
    answer_key="answer",
    may_lack_answer=True,
    data_source="by_hand",
    advice="each row needs `prompt`",
)


class HandFeed:
    """Takes rows given by hand, all of a call or none."""

    def __init__(
        self,
        stub: ReplayBufferServiceAsyncStub,
        packer: Packer,
        *,
        reader: Reader,
        waits: Waits,
        stopping: asyncio.Event,
    ) -> None:
        """Nothing is called yet.

        Args:
            stub: The replay buffer.
            packer: Makes the prompts.
            reader: Runs the packer off the event loop.
            waits: Where waits are registered.
            stopping: Ends all waits when set.

        """
        self._stub = stub
        self._packer = packer
        self._reader = reader
        self._waits = waits
        self._stopping = stopping

    async def feed(self, request_id: str, rows_json: Sequence[str]) -> list[str]:
        """Register rows, once per request; a repeat gives the first answer.

        Returns:
            The prompts' uids.

        Raises:
            InvalidFieldError: the request or a row of it is not usable.
            FeedNotOpenError: the run is not on.
            Stopped: the process is to stop.

        """
        if not request_id:
            raise InvalidFieldError("request_id", "is required")
        if not 1 <= len(rows_json) <= MAX_ROWS_PER_CALL:
            raise InvalidFieldError("rows_json", f"must be 1 to {MAX_ROWS_PER_CALL}")
        payloads = await self._reader.read(lambda: self._pack(rows_json))
        request = replay_pb2.RegisterRowsRequest(request_id=request_id, rows=payloads)
        if request.ByteSize() > MAX_BYTES_PER_CALL:
            raise InvalidFieldError(
                "rows_json",
                f"these rows are {request.ByteSize()} bytes as prompts; give fewer, at most "
                f"{MAX_BYTES_PER_CALL} bytes at a time",
            )
        answer = await persist(
            self._stub.RegisterRows,
            request,
            waits=self._waits,
            name="rows by hand to be registered",
            owner="replay buffer",
            stopping=self._stopping,
        )
        return list(answer.uids)

    def _pack(self, rows_json: Sequence[str]) -> list[feeder_pb2.PromptPayload]:
        return [self._pack_one(text, f"rows_json[{i}]") for i, text in enumerate(rows_json)]

    def _pack_one(self, text: str, field: str) -> feeder_pb2.PromptPayload:
        try:
            payload = self._packer.pack(row_from_json(text, COLUMNS, where="row"), where="row")
        except UsageError as error:
            raise InvalidFieldError(field, str(error)) from error
        if self._packer.is_too_long(payload):
            raise InvalidFieldError(
                field,
                f"the prompt has {len(payload.token_ids)} tokens; data.max_prompt_length is "
                f"{self._packer.max_prompt_length}",
            )
        return payload
