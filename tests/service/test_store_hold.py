"""Deletions that are held back, and the check of what is there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from store_bench import Bench, open_bench, trajectory

from headrace.errors import InvalidFieldError
from headrace.rpc.status import error_from
from headrace.store.hold import Hold
from headrace.store.nodes import Nodes
from headrace.store.service import MAX_KEYS_PER_CALL
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import store_pb2 as pb

UNITS = 1


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    started = Nodes.start(unit_count=UNITS)
    yield started
    started.close()


@pytest.fixture
async def bench(nodes: Nodes, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path, nodes, unit_count=UNITS) as opened:
        yield opened


async def put(bench: Bench, count: int) -> list[str]:
    made = [trajectory(session) for session in range(count)]
    await put_trajectories(bench.stub, made)
    return [one.key for one in made]


async def delete(bench: Bench, *keys: str) -> int:
    request = pb.DeleteTrajectoriesRequest(keys=keys)
    return (await bench.stub.DeleteTrajectories(request, timeout=20)).deleted_count


async def hold(bench: Bench, hold_id: str = "h1", hold_s: float = 600) -> str:
    request = pb.HoldDeletionsRequest(hold_id=hold_id, hold_s=hold_s)
    return (await bench.stub.HoldDeletions(request, timeout=20)).store_incarnation


async def release(bench: Bench, hold_id: str = "h1") -> int:
    request = pb.ReleaseDeletionsRequest(hold_id=hold_id)
    return (await bench.stub.ReleaseDeletions(request, timeout=20)).deleted_count


async def missing(bench: Bench, *keys: str) -> list[str]:
    answer = await bench.stub.CheckTrajectories(pb.CheckTrajectoriesRequest(keys=keys), timeout=20)
    assert answer.store_incarnation == "life1"
    return list(answer.missing_keys)


async def held_by(bench: Bench) -> str:
    status = await bench.stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=20)
    return status.hold_id


async def test_what_is_deleted_under_a_hold_is_there_until_the_release(bench: Bench) -> None:
    keys = await put(bench, 3)
    assert await hold(bench) == await hold(bench) == "life1"

    assert await delete(bench, *keys[:2], "nowhere") == 0
    assert await delete(bench, keys[0]) == 0
    assert await held_by(bench) == "h1"
    assert await missing(bench, *keys) == []
    assert bench.store.hold.noted == keys[:2], "no more is noted than there are rows"

    assert await release(bench) == 2
    assert await release(bench) == 0
    assert await held_by(bench) == ""
    assert await missing(bench, *keys) == keys[:2]
    assert await delete(bench, keys[2]) == 1


async def test_a_hold_that_is_not_released_ends_at_its_deadline(bench: Bench) -> None:
    keys = await put(bench, 2)
    keeping = asyncio.create_task(bench.store.keep_hold())
    await hold(bench, hold_s=600)
    await delete(bench, keys[0])

    await hold(bench, hold_s=0.05)

    async with asyncio.timeout(20):
        while await missing(bench, *keys) != keys[:1]:  # noqa: ASYNC110 (asked over the wire)
            await asyncio.sleep(0.01)
    keeping.cancel()
    assert await held_by(bench) == ""
    assert await release(bench) == 0


@pytest.mark.parametrize("hold_s", [1.5, 2.5, 3.5, 4.5])
async def test_a_hold_that_ends_between_two_looks_at_the_clock_is_over(hold_s: float) -> None:
    looks = itertools.count()
    hold = Hold(now=lambda: 0.01 * next(looks))
    hold.note(["k"])
    hold.begin("h1", 0.01 * hold_s)

    async with asyncio.timeout(20):
        await hold.until_due()

    assert hold.noted == ["k"]


async def test_a_new_hold_takes_the_place_of_the_one_before(bench: Bench) -> None:
    keys = await put(bench, 2)
    await hold(bench, "h1")
    await delete(bench, keys[0])

    await hold(bench, "h2")

    assert await release(bench, "h1") == 0
    assert await missing(bench, *keys) == []
    await delete(bench, keys[1])
    assert await release(bench, "h2") == 2


async def test_under_a_hold_nothing_is_swept_and_the_replay_buffer_hears_how_full_it_is(
    bench: Bench,
) -> None:
    keys = await put(bench, 2)
    bench.replay.dead = {keys[0]}
    await hold(bench)

    assert await bench.sweeper.sweep(grace_s=0) == 0

    [asked] = bench.replay.asked
    assert (list(asked.keys), asked.held_bytes) == ([], bench.store.catalogue.held_bytes)
    await release(bench)
    assert await bench.sweeper.sweep(grace_s=0) == 1
    assert await missing(bench, *keys) == keys[:1]


async def test_a_deletion_that_waits_for_its_turn_when_a_hold_begins_is_held(bench: Bench) -> None:
    keys = await put(bench, 2)
    async with bench.store.quiet():
        deleting = asyncio.create_task(bench.store.delete(keys[:1]))
        await asyncio.sleep(0)
        await hold(bench)

    assert await deleting == 0
    assert await missing(bench, *keys) == []
    assert await release(bench) == 1


async def test_a_check_names_what_is_lost_rotten_or_unknown(bench: Bench) -> None:
    keys = await put(bench, 4)
    await bench.queue.clear([keys[0]])
    await bench.queue.put([keys[2]], [b"rotten"], [{}])

    assert await missing(bench, "nowhere", *keys, keys[0]) == ["nowhere", keys[0], keys[2]]
    found, _ = await get_trajectories(bench.stub, keys)
    assert list(found) == [keys[1], keys[3]]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("HoldDeletions", pb.HoldDeletionsRequest(hold_s=1)),
        ("HoldDeletions", pb.HoldDeletionsRequest(hold_id="h")),
        ("HoldDeletions", pb.HoldDeletionsRequest(hold_id="h", hold_s=float("nan"))),
        ("ReleaseDeletions", pb.ReleaseDeletionsRequest()),
        ("SaveRows", pb.SaveRowsRequest(hold_id="h")),
        ("SaveRows", pb.SaveRowsRequest(uri="/tmp/x")),
        ("RestoreRows", pb.RestoreRowsRequest(restore_id="r")),
        ("RestoreRows", pb.RestoreRowsRequest()),
        ("CheckTrajectories", pb.CheckTrajectoriesRequest(keys=["k"] * (MAX_KEYS_PER_CALL + 1))),
    ],
)
async def test_a_request_that_lacks_something_is_refused(
    bench: Bench, method: str, request_: object
) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        await getattr(bench.stub, method)(request_, timeout=20)
    assert isinstance(error_from(failed.value), InvalidFieldError)
