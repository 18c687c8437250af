"""Rows given by hand, through the whole feeder process, to the real replay buffer."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.config.config import Config
from headrace.errors import FeedNotOpenError, InvalidFieldError, WireError
from headrace.feeder import process as feeder_process
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.status import error_from
from headrace.v1 import feeder_pb2 as pb
from headrace.v1 import feeder_pb2_grpc, prompt_pb2, replay_pb2

if TYPE_CHECKING:
    from headrace.v1.feeder_pb2_grpc import PromptFeederServiceAsyncStub

RULES = settings(n=1, batch_size=4, window_size=4, total_steps=3)
DIGITS = {
    "kind": "python",
    "function": "headrace.feeder.sources.digits:digit_rows",
    "options": {"task": "sort", "digits": 4, "size": 100, "seed": 1},
}
STREAM = {"kind": "stream", "function": "stream_rows:numbers", "options": {"count": 9}}


def configured(target: str, **data: Any) -> Config:
    rows = {"source": DIGITS, "train_batch_size": 4, "max_prompt_length": 8, **data}
    return Config.model_validate(
        {
            "data": rows,
            "model": {
                "architecture": "gpt2",
                "tokenizer": {"alphabet": "0123456789>", "eos": ";"},
            },
            "trainer": {"total_training_steps": 3},
            "endpoints": {"replay": target},
            "run": {"run_id": "test"},
        }
    )


@asynccontextmanager
async def feeder(config: Config, announce: Path) -> AsyncIterator[PromptFeederServiceAsyncStub]:
    """The whole process, in this one, until SIGTERM."""
    options = ProcessOptions(name="feeder", announce=announce)
    task = asyncio.create_task(feeder_process.run(config, options))
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(announce.exists):
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
    try:
        address = json.loads(await asyncio.to_thread(announce.read_text))["address"]
        async with open_channel(address) as channel:
            yield feeder_pb2_grpc.PromptFeederServiceStub(channel)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, 60) == 0


@asynccontextmanager
async def run(tmp_path: Path, **changes: Any) -> AsyncIterator[tuple[Replay, Any]]:
    async with replay_server(tmp_path / "journal", RULES) as replay:
        announce = tmp_path / "feeder.json"
        async with feeder(configured(replay.target, **changes), announce) as stub:
            async with asyncio.timeout(60):
                while not replay.buffer.ledger.feed.total_steps:  # noqa: ASYNC110 (no event)
                    await asyncio.sleep(0.01)
            yield replay, stub


def request(*rows: object, request_id: str = "a") -> pb.FeedRowsRequest:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return pb.FeedRowsRequest(request_id=request_id, rows_json=texts)


async def refusal(call: Any) -> WireError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    error = error_from(raised.value)
    assert error is not None
    return error


async def test_rows_by_hand_are_made_into_prompts_as_the_data_sets_are(tmp_path: Path) -> None:
    async with run(tmp_path) as (replay, stub):
        answer = await stub.FeedRows(
            request(
                {"prompt": "12>", "answer": 12, "level": 3},
                {"prompt": "7", "data_source": "mine"},
            )
        )
        groups = [replay.buffer.ledger.groups[uid] for uid in answer.uids]
        by_hand, named = (group.payload for group in groups)

        assert list(answer.uids) == ["x1r0", "x1r1"]
        assert {group.state for group in groups} == {prompt_pb2.PROMPT_STATE_PENDING}
        assert by_hand is not None
        assert named is not None
        assert (by_hand.text, by_hand.answer, by_hand.data_source) == ("12>", "12", "by_hand")
        assert list(by_hand.token_ids) == [3, 4, 12]
        assert json.loads(by_hand.metadata_json) == {"level": 3}
        assert (named.answer, named.data_source) == ("", "mine")
        audit = await replay.stub.Audit(replay_pb2.AuditRequest())
        assert audit.ok, audit.violations


async def test_the_same_request_again_registers_nothing_and_answers_the_same(
    tmp_path: Path,
) -> None:
    async with run(tmp_path) as (replay, stub):
        first = await stub.FeedRows(request({"prompt": "1"}, {"prompt": "2"}))
        again = await stub.FeedRows(request({"prompt": "1"}, {"prompt": "2"}))
        other = await stub.FeedRows(request({"prompt": "1"}, request_id="b"))

        assert first == again
        assert list(other.uids) == ["x2r0"]
        assert replay.buffer.ledger.hand_fed_count == 3


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{bad", r"row: malformed JSON at column 2"),
        ("[1]", r"row: not a JSON object or mapping but list"),
        ('{"prompt": NaN}', r"row: malformed JSON: NaN is not JSON"),
        ({"question": "1"}, r"row: no column 'prompt'; the columns are: question"),
        ({"prompt": ""}, r"row: prompt: is empty"),
        ({"prompt": 3}, r"row: prompt: must be text or a list of chat messages"),
        ({"prompt": "x"}, r"row: the character 'x'"),
        (
            {"prompt": [{"role": "user", "content": "1"}]},
            r"row: .*an alphabet has no chat template",
        ),
        ({"prompt": "123456789"}, r"the prompt has 9 tokens; data.max_prompt_length is 8"),
        ({"prompt": "1", "image": "x" * 2**20}, r"row: \d+ bytes with its metadata; at most"),
    ],
)
async def test_a_row_that_is_not_usable_is_named_and_none_is_registered(
    tmp_path: Path, row: object, why: str
) -> None:
    async with run(tmp_path) as (replay, stub):
        error = await refusal(stub.FeedRows(request({"prompt": "1"}, row, {"prompt": "2"})))

        assert isinstance(error, InvalidFieldError)
        assert error.field == "rows_json[1]"
        assert re.search(why, str(error)), str(error)
        assert replay.buffer.ledger.hand_fed_count == 0


async def test_a_request_that_is_too_large_or_says_nothing_is_refused(tmp_path: Path) -> None:
    heavy = {"prompt": "1", "answer": "x" * 900_000}
    async with run(tmp_path) as (replay, stub):
        for wrong, field in (
            (request({"prompt": "1"}, request_id=""), "request_id"),
            (request(), "rows_json"),
            (request(*[{"prompt": "1"}] * 4097), "rows_json"),
            (request(*[heavy] * 3), "rows_json"),
        ):
            error = await refusal(stub.FeedRows(wrong))
            assert isinstance(error, InvalidFieldError)
            assert error.field == field
        assert replay.buffer.ledger.hand_fed_count == 0


async def test_after_the_run_no_rows_are_taken(tmp_path: Path) -> None:
    async with run(tmp_path) as (replay, stub):
        replay.buffer.ledger.ended_by = "steps_done"
        error = await refusal(stub.FeedRows(request({"prompt": "1"})))

    assert isinstance(error, FeedNotOpenError)


async def test_beside_a_stream_rows_by_hand_are_taken_and_positions_are_not(
    tmp_path: Path,
) -> None:
    async with run(tmp_path, source=STREAM, shuffle=False) as (_, stub):
        answer = await stub.FeedRows(request({"prompt": "1"}))
        assert list(answer.uids) == ["x1r0"]
        error = await refusal(stub.ReadRows(pb.ReadRowsRequest(max_count=1)))
        assert isinstance(error, InvalidFieldError)
        assert "a stream, which has no positions" in str(error)
        async with asyncio.timeout(60):
            status = await stub.GetFeederStatus(pb.GetFeederStatusRequest())
            while status.cursor < 3:  # the window of four has one by hand in it
                status = await stub.GetFeederStatus(pb.GetFeederStatusRequest())

    assert (status.row_count, status.epoch, status.registered_count) == (0, 0, status.cursor)
