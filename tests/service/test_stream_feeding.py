"""A stream fed to the real replay buffer by lives of the feeder that end at every point."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import stream_rows
from feed_life import DeathPoint, Died, living, packer
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.config.data import StreamSource
from headrace.errors import UsageError
from headrace.feeder.sources.stream import StreamRows
from headrace.feeder.supply import StreamSupply
from headrace.replay.feeding import UNKNOWN_LENGTH
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb

ROWS = 11
LONG = {3, 7}
"""Rows that are too long."""
RULES = settings(n=1, batch_size=4, window_size=4, total_steps=100)


def supply(count: int = ROWS) -> StreamSupply:
    options = {"count": count, "long_each": 4}
    source = StreamSource(kind="stream", function="stream_rows:numbers", options=options)
    return StreamSupply(StreamRows(source), packer())


@asynccontextmanager
async def run_under_way(directory: Path) -> AsyncIterator[tuple[Replay, dict[str, str]]]:
    """A replay buffer with weights, a store, and one pair of hands that generates and trains.

    With it comes what the hands got to see: texts by uid.
    """
    async with replay_server(directory, RULES) as replay:
        incarnation = await replay.begin(row_count=UNKNOWN_LENGTH)
        texts: dict[str, str] = {}
        hands = asyncio.create_task(generate_and_train(replay, incarnation, texts))
        yield replay, texts
        hands.cancel()
        await asyncio.wait({hands})


async def generate_and_train(replay: Replay, incarnation: int, texts: dict[str, str]) -> None:
    step = 1
    while True:
        leases = await replay.lease(version=step - 1)
        for lease in leases:
            assert texts.setdefault(lease.uid, lease.payload.text) == lease.payload.text
        if leases:
            await replay.stub.CompleteSessions(replay.completion(leases, version=step - 1))
        sample = await replay.stub.SampleBatch(
            pb.SampleBatchRequest(incarnation=incarnation, step=step, part_count=1, wait_s=0.01)
        )
        if sample.status == pb.SAMPLE_STATUS_DATA_ENDED:
            return
        if sample.status == pb.SAMPLE_STATUS_READY:
            await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=step))
            await replay.publish(incarnation, step)
            step += 1


async def live(replay: Replay, chunk: int, point: int | None = None) -> bool:
    """Live until the feed is over, or until the point; say whether it was reached."""
    dies_at = DeathPoint(point)
    stream_rows.passing = dies_at.passing
    try:
        async with living(replay.target, supply(), chunk, dies_at) as life:
            await asyncio.wait_for(asyncio.shield(life.task), 30)
    except (Died, UsageError):  # foreign code that raises is an error of the user's
        return dies_at.passed == point
    finally:
        stream_rows.passing = lambda: None
    return False


async def check(replay: Replay, texts: dict[str, str]) -> None:
    """Every row is there once, in its place, and all is accounted for."""
    groups = sorted(replay.buffer.ledger.groups, key=lambda group: group.ordinal)
    assert [group.uid for group in groups] == [f"e0r{i}" for i in range(ROWS)]
    assert [group.ordinal for group in groups] == list(range(ROWS))
    for number, group in enumerate(groups):
        too_long = group.drop_reason == prompt_pb2.DROP_REASON_TOO_LONG
        assert too_long == (number in LONG)
    # What was worked on are the rows that their names say. One that is left over may not be.
    assert texts == {uid: uid.removeprefix("e0r") for uid in texts}
    assert len(texts) >= 8
    audit = await replay.stub.Audit(pb.AuditRequest())
    assert audit.ok, audit.violations
    status = await replay.stub.GetReplayStatus(pb.GetReplayStatusRequest())
    assert status.ended
    assert (status.cursor, status.counts.trained) == (ROWS, 8)
    assert dict(status.counts.dropped) == {"too_long": 2, "surplus": 1}


@pytest.mark.parametrize("chunk", [1, 3])
async def test_a_feeder_killed_at_any_point_skips_no_row_and_repeats_none(
    tmp_path: Path, chunk: int
) -> None:
    point, died = 0, True
    while died:
        point += 1
        async with run_under_way(tmp_path / str(point)) as (replay, texts):
            died = await live(replay, chunk, point)
            if died:
                await live(replay, chunk)
            await check(replay, texts)
    assert point > 3 * ROWS


@pytest.mark.parametrize("stride", [12, 17, 23])
async def test_a_feeder_that_dies_again_and_again_gets_through(tmp_path: Path, stride: int) -> None:
    lives = 0
    async with run_under_way(tmp_path) as (replay, texts):
        while await live(replay, 2, stride):
            lives += 1
            assert lives < 500
        await check(replay, texts)
    assert lives


async def test_a_feeder_that_starts_after_the_end_reads_nothing_and_ends(tmp_path: Path) -> None:
    async with run_under_way(tmp_path) as (replay, texts):
        await live(replay, 2)
        stream_rows.made.clear()
        await live(replay, 2)
        await check(replay, texts)

    assert [made.given for made in stream_rows.made] == [[]]


async def test_a_feeder_that_another_overtook_goes_on_after_the_others_rows(
    tmp_path: Path,
) -> None:
    async with replay_server(tmp_path, RULES) as replay:
        incarnation = await replay.begin(row_count=UNKNOWN_LENGTH)
        async with living(replay.target, supply(1000), 3) as one:
            await one.waits_for("demand")
            texts: dict[str, str] = {}
            hands = asyncio.create_task(generate_and_train(replay, incarnation, texts))
            async with living(replay.target, supply(1000), 2), asyncio.timeout(60):
                while replay.buffer.ledger.cursor < 200:  # noqa: ASYNC110 (two feeders, no event)
                    await asyncio.sleep(0.01)
            hands.cancel()
            await asyncio.wait({hands})
            assert not one.task.done()
        long = {f"e0r{number}" for number in range(3, 200, 4)}
        known = {group.uid: group for group in replay.buffer.ledger.groups}

    assert {uid: f"e0r{text}" for uid, text in texts.items()} == {uid: uid for uid in texts}
    assert {f"e0r{number}" for number in range(150)} - texts.keys() <= long
    assert all(known[uid].drop_reason == prompt_pb2.DROP_REASON_TOO_LONG for uid in long)


async def test_rows_that_are_long_in_coming_are_not_held_back_for_the_rest(tmp_path: Path) -> None:
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(stream_rows.Numbers):
        def __next__(self) -> dict[str, object]:
            if self._next == 2:
                asyncio.run_coroutine_threadsafe(held.wait(), loop).result()
            return super().__next__()

    slow = supply()
    slow._stream._rows = Slow(ROWS, 0)
    async with replay_server(tmp_path, RULES) as replay:
        await replay.begin(row_count=UNKNOWN_LENGTH)
        async with living(replay.target, slow, chunk=1) as life:
            await life.waits_for("rows")
            async with asyncio.timeout(20):
                while replay.buffer.ledger.cursor < 2:  # noqa: ASYNC110 (no event)
                    await asyncio.sleep(0.01)
            held.set()
            async with asyncio.timeout(20):
                while replay.buffer.ledger.cursor < 4:  # noqa: ASYNC110 (no event)
                    await asyncio.sleep(0.01)


async def test_a_stream_that_has_no_state_where_the_run_is_says_so(tmp_path: Path) -> None:
    async with replay_server(tmp_path, RULES) as replay:
        await replay.begin(row_count=UNKNOWN_LENGTH)
        await replay.stub.RegisterPrompts(
            pb.RegisterPromptsRequest(first_ordinal=0, prompts=[pb.NewPrompt(uid="e0r0")])
        )
        async with living(replay.target, supply(), 1) as life:
            with pytest.raises(UsageError, match=r"numbers cannot go on at row 1: the run has no"):
                await asyncio.wait_for(asyncio.shield(life.task), 20)


async def test_that_nobody_knows_the_length_is_said_by_a_field_or_by_a_number(
    tmp_path: Path,
) -> None:
    async with replay_server(tmp_path, RULES) as replay:
        by_field = await replay.stub.OpenFeed(
            pb.OpenFeedRequest(length_unknown=True, fingerprint="f")
        )
        position = replay.buffer.ledger.position
        by_number = await replay.stub.OpenFeed(
            pb.OpenFeedRequest(row_count=UNKNOWN_LENGTH, fingerprint="f")
        )

        assert by_field == by_number == pb.OpenFeedResponse(ordinal_count=2**39, total_steps=100)
        assert replay.buffer.ledger.position == position
        with pytest.raises(grpc.aio.AioRpcError, match="is not the one"):
            await replay.stub.OpenFeed(pb.OpenFeedRequest(row_count=40, fingerprint="f"))


async def test_the_end_of_the_feed_can_be_told_again(tmp_path: Path) -> None:
    async with replay_server(tmp_path, RULES) as replay:
        with pytest.raises(grpc.aio.AioRpcError, match="OpenFeed comes before EndFeed"):
            await replay.stub.EndFeed(pb.EndFeedRequest(ordinal_count=9))
        await replay.begin(row_count=UNKNOWN_LENGTH)
        first = await replay.stub.EndFeed(pb.EndFeedRequest(ordinal_count=9))
        again = await replay.stub.EndFeed(pb.EndFeedRequest(ordinal_count=9))

        assert first == again == pb.EndFeedResponse(ordinal_count=9, total_steps=2)
        opened = await replay.stub.OpenFeed(
            pb.OpenFeedRequest(row_count=UNKNOWN_LENGTH, fingerprint="f")
        )
        assert (opened.ordinal_count, opened.total_steps) == (9, 2)
        with pytest.raises(grpc.aio.AioRpcError, match="ordinal_count: must be 0"):
            await replay.stub.EndFeed(pb.EndFeedRequest(ordinal_count=10))
