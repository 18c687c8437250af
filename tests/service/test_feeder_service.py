"""The feeder as a process, against a real server that demands prompts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from feed_ledger import FeedLedger, serving

from headrace.config.config import Config
from headrace.errors import InvalidFieldError, UsageError
from headrace.feeder import process as feeder_process
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.status import error_from
from headrace.v1 import feeder_pb2 as pb
from headrace.v1 import feeder_pb2_grpc

if TYPE_CHECKING:
    from headrace.v1.feeder_pb2_grpc import PromptFeederServiceAsyncStub

DIGITS = {
    "kind": "python",
    "function": "headrace.feeder.sources.digits:digit_rows",
    "options": {"task": "sort", "digits": 4, "size": 10, "seed": 1},
}


def configured(address: str, **data: Any) -> Config:
    return Config.model_validate(
        {
            "data": {"source": DIGITS, "train_batch_size": 4, "max_prompt_length": 8} | data,
            "model": {
                "architecture": "gpt2",
                "tokenizer": {"alphabet": "0123456789>", "eos": ";"},
            },
            "endpoints": {"replay": address},
            "run": {"run_id": "test"},
        }
    )


@asynccontextmanager
async def running(
    ledger: FeedLedger, config: Config, announce: Path
) -> AsyncIterator[PromptFeederServiceAsyncStub]:
    """The whole process, in this one, until SIGTERM."""
    options = ProcessOptions(name="feeder", announce=announce)
    task = asyncio.create_task(feeder_process.run(config, options))
    opened = asyncio.create_task(ledger.opened.wait())
    await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        opened.cancel()
        await task
    try:
        address = json.loads(await asyncio.to_thread(announce.read_text))["address"]
        async with open_channel(address) as channel:
            yield feeder_pb2_grpc.PromptFeederServiceStub(channel)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, 20) == 0


async def test_the_process_feeds_says_how_far_it_is_and_ends_on_sigterm(tmp_path: Path) -> None:
    ledger = FeedLedger(10, epochs=2)
    async with (
        serving(ledger) as address,
        running(ledger, configured(address, gen_batch_size=4), tmp_path / "f.json") as stub,
    ):
        await ledger.want(13)
        await ledger.satisfied()
        status = await stub.GetFeederStatus(pb.GetFeederStatusRequest())
        while status.cursor < 13:  # the ledger has them a moment before the feeder knows
            status = await stub.GetFeederStatus(pb.GetFeederStatusRequest())

    assert (status.row_count, status.cursor, status.epoch) == (10, 13, 1)
    assert (status.registered_count, status.process.process) == (13, "feeder")
    assert status.read_count == 1 + 16  # one at the start, to see that the tokenizer fits
    prompt = ledger.registered[0].payload
    assert prompt.text.removesuffix(">") == "".join(
        prompt.text[prompt.text.index(digit)] for digit in prompt.text[:4]
    )
    assert prompt.answer == "".join(sorted(prompt.text[:4]))


async def test_rows_for_a_warm_start_come_in_an_order_of_their_own_pass_after_pass(
    tmp_path: Path,
) -> None:
    ledger = FeedLedger(10)
    async with serving(ledger) as address:
        config = configured(address, max_prompt_length=4)  # all are too long, none is skipped
        async with running(ledger, config, tmp_path / "f.json") as stub:

            async def read(offset: int, count: int) -> list[str]:
                request = pb.ReadRowsRequest(offset=offset, max_count=count)
                return [row.text for row in (await stub.ReadRows(request)).rows]

            first, second = await read(0, 10), await read(10, 10)
            assert sorted(first) == sorted(second)
            assert first != second
            assert await read(7, 6) == await read(7, 6) == first[7:] + second[:3]
            for request in (
                pb.ReadRowsRequest(max_count=0),
                pb.ReadRowsRequest(max_count=4097),
                pb.ReadRowsRequest(max_count=1, offset=-1),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await stub.ReadRows(request)
                assert isinstance(error_from(raised.value), InvalidFieldError)
    assert ledger.uids == []


async def test_other_data_than_the_run_was_started_with_is_one_clear_error(tmp_path: Path) -> None:
    ledger = FeedLedger(10)
    ledger.fingerprint = "that of before"
    async with serving(ledger) as address:
        config = configured(address)
        with pytest.raises(UsageError, match="is not what this run was started with") as raised:
            await feeder_process.run(config, ProcessOptions(name="feeder"))

    assert "that of before" in str(raised.value)
    assert "offered: " in str(raised.value)


async def test_bad_data_is_refused_before_anything_starts(tmp_path: Path) -> None:
    announce = tmp_path / "f.json"
    config = configured("127.0.0.1:1", train_batch_size=11)

    with pytest.raises(UsageError, match="has 10 rows, fewer than one batch"):
        await feeder_process.run(config, ProcessOptions(name="feeder", announce=announce))
    assert not announce.exists()
