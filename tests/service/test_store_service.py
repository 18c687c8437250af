"""The store over gRPC, on a real TransferQueue in this process and a replay buffer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import psutil
import pytest
from store_bench import (
    CAPACITY_BYTES,
    Bench,
    Clock,
    new_waits,
    open_bench,
    serve,
    trajectory,
    value_of,
)

from headrace.errors import (
    ChecksumMismatchError,
    InvalidFieldError,
    KeyExistsError,
    NotReadyError,
    StoreFullError,
)
from headrace.rpc.channel import open_channel
from headrace.rpc.status import error_from
from headrace.rpc.waits import Waits
from headrace.store.nodes import Nodes
from headrace.store.probe import until_dead
from headrace.store.queue import PARTITION, TransferQueue
from headrace.store.row import inspect
from headrace.store.service import StoreService
from headrace.store.store import TrajectoryStore
from headrace.trajectory.chunks import MAX_MESSAGE_BYTES, Value, split
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import status_pb2, store_pb2_grpc
from headrace.v1 import store_pb2 as pb

GRACE_S = 30.0
UNITS = 2


def listening_here() -> set[str]:
    return {
        f"{connection.laddr.ip}:{connection.laddr.port}"
        for connection in psutil.Process().net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.fixture(scope="module")
def others_listening() -> set[str]:
    """What the test process listens on before the store is there, left by other tests."""
    return listening_here()


@pytest.fixture(scope="module")
def nodes(others_listening: set[str]) -> Iterator[Nodes]:
    started = Nodes.start(unit_count=UNITS)
    yield started
    started.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def bench(nodes: Nodes, clock: Clock, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path, nodes, unit_count=UNITS, now=clock) as opened:
        yield opened


async def put_chunks(
    bench: Bench, chunks: Sequence[pb.TrajectoryChunk]
) -> pb.PutTrajectoriesResponse:
    """Put chunks as they are; raise the error of the answer's reason."""

    async def requests() -> AsyncIterator[pb.PutTrajectoriesRequest]:
        yield pb.PutTrajectoriesRequest(chunks=chunks)

    try:
        return await bench.stub.PutTrajectories(requests(), timeout=20)
    except grpc.RpcError as failed:
        raise error_from(failed) or failed from failed


async def waiting(waits: Waits) -> None:
    """Return once something is waited for."""
    while not waits.snapshot():  # noqa: ASYNC110 (what begins a wait sets no event)
        await asyncio.sleep(0)


async def status(bench: Bench) -> pb.GetStoreStatusResponse:
    return await bench.stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=5)


async def test_what_is_put_comes_back_in_the_order_that_was_asked_for(bench: Bench) -> None:
    put = [trajectory(session) for session in range(8)]
    keys = [message.key for message in reversed(put)]

    incarnation = await put_trajectories(bench.stub, put)
    found, missing = await get_trajectories(bench.stub, keys)

    assert incarnation == "life1"
    assert list(found) == keys
    assert list(found.values()) == list(reversed(put))
    assert missing == []


async def test_a_trajectory_of_many_messages_comes_back_whole(bench: Bench) -> None:
    large = trajectory(0, tokens=500_000)
    assert large.ByteSize() > 3 * MAX_MESSAGE_BYTES

    await put_trajectories(bench.stub, [trajectory(1), large, trajectory(2)])
    found, missing = await get_trajectories(bench.stub, [large.key])

    assert found == {large.key: large}
    assert missing == []


async def test_reads_that_exceed_a_batch_come_in_order_and_whole(bench: Bench) -> None:
    put = [trajectory(session, tokens=200_000) for session in range(6)]

    await put_trajectories(bench.stub, put)
    found, _ = await get_trajectories(bench.stub, [message.key for message in put])

    assert len(list(bench.store.batches([message.key for message in put]))) > 1
    assert list(found.values()) == put


async def test_a_repeated_put_is_confirmed_and_writes_nothing(bench: Bench, clock: Clock) -> None:
    put = [trajectory(session) for session in range(4)]
    await put_trajectories(bench.stub, put)
    before = await status(bench)

    clock.time += 10
    answer = await put_chunks(bench, next(split([value_of(message) for message in put])))

    after = await status(bench)
    assert answer.confirmed_count == 4
    assert (after.row_count, after.held_bytes) == (before.row_count, before.held_bytes)
    assert bench.store.age_limit(10) == [message.key for message in put]


async def test_two_puts_of_one_row_at_once_are_both_confirmed(bench: Bench) -> None:
    one = trajectory(0)

    incarnations = await asyncio.gather(
        *(put_trajectories(bench.stub, [one, one]) for _ in range(8))
    )

    assert set(incarnations) == {"life1"}
    assert (await status(bench)).row_count == 1


async def test_a_key_that_is_there_with_other_bytes_is_refused_and_stays(bench: Bench) -> None:
    first, other = trajectory(0), trajectory(0, tokens=5)
    await put_trajectories(bench.stub, [first])

    with pytest.raises(KeyExistsError, match=first.key):
        await put_trajectories(bench.stub, [trajectory(1), other])

    found, missing = await get_trajectories(bench.stub, [first.key, trajectory(1).key])
    assert found == {first.key: first}
    assert missing == [trajectory(1).key], "nothing of a refused put is there"


async def test_of_two_different_values_put_at_once_under_one_key_one_is_refused(
    bench: Bench,
) -> None:
    first, other = trajectory(0), trajectory(0, tokens=5)

    [taken, refused] = await asyncio.gather(
        *(bench.store.put([inspect(value_of(one))]) for one in (first, other)),
        return_exceptions=True,
    )

    assert taken == "life1"
    assert isinstance(refused, KeyExistsError)
    assert await bench.store.read([first.key]) == ([value_of(first)], [])


async def test_puts_that_are_written_together_do_not_share_their_failures(bench: Bench) -> None:
    there, lost = trajectory(0), trajectory(1)
    await put_trajectories(bench.stub, [there, lost])
    await bench.queue.clear([lost.key])
    good = [trajectory(session) for session in range(2, 6)]
    too_large = trajectory(7, tokens=5_000_000)
    assert too_large.ByteSize() > CAPACITY_BYTES
    puts = [*([one] for one in good), [trajectory(0, tokens=5)], [too_large], [lost], [there]]

    outcomes = await asyncio.gather(
        *(bench.store.put([inspect(value_of(one)) for one in put]) for put in puts),
        return_exceptions=True,
    )

    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [str] * 4 + [KeyExistsError, StoreFullError, NotReadyError, str]
    found, missing = await get_trajectories(
        bench.stub, [one.key for one in (*good, there, lost, too_large)]
    )
    assert list(found.values()) == [*good, there]
    assert missing == [lost.key, too_large.key]


async def test_a_damaged_chunk_is_refused_and_nothing_is_there(bench: Bench) -> None:
    good, bad = trajectory(0), trajectory(1)
    chunks = next(split([value_of(good), value_of(bad)]))
    chunks[1].data = chunks[1].data[:-1] + bytes([chunks[1].data[-1] ^ 1])

    with pytest.raises(ChecksumMismatchError, match=bad.key):
        await put_chunks(bench, chunks)

    _, missing = await get_trajectories(bench.stub, [good.key, bad.key])
    assert missing == [good.key, bad.key]


async def test_a_put_that_ends_too_early_is_refused(bench: Bench) -> None:
    [chunk] = next(split([value_of(trajectory(0))]))
    chunk.data = chunk.data[:-1]

    with pytest.raises(InvalidFieldError, match="ends at byte"):
        await put_chunks(bench, [chunk])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Value.sealed("nonsense", b""), "is not"),
        (Value.sealed("e0r1_0_0_ab12a1", b"\xff\xff"), "not a Trajectory"),
        (Value.sealed("e0r1_9_0_ab12a1", trajectory(0).SerializeToString()), "holds"),
    ],
    ids=["key", "bytes", "another trajectory"],
)
async def test_what_is_no_trajectory_under_its_own_key_is_refused(
    bench: Bench, value: Value, why: str
) -> None:
    with pytest.raises(InvalidFieldError, match=why):
        await put_chunks(bench, next(split([value])))


async def test_keys_that_are_not_there_are_named_and_the_rest_comes(bench: Bench) -> None:
    put = [trajectory(0), trajectory(1)]
    await put_trajectories(bench.stub, put)

    found, missing = await get_trajectories(
        bench.stub, ["nowhere", put[0].key, trajectory(2).key, put[1].key, put[0].key]
    )

    assert found == {message.key: message for message in put}
    assert missing == ["nowhere", trajectory(2).key]


async def test_rows_that_transfer_queue_lost_are_named_and_may_be_put_again(bench: Bench) -> None:
    put = [trajectory(session) for session in range(9)]
    keys = [message.key for message in put]
    await put_trajectories(bench.stub, put)
    await bench.queue.clear([keys[2], keys[7]])

    found, missing = await get_trajectories(bench.stub, keys)
    await put_trajectories(bench.stub, put)
    again, missing_again = await get_trajectories(bench.stub, keys)

    assert missing == [keys[2], keys[7]]
    assert len(found) == 7
    assert list(again.values()) == put
    assert missing_again == []


async def test_a_repeated_put_of_a_lost_row_is_not_confirmed_from_memory(bench: Bench) -> None:
    one = trajectory(0)
    await put_trajectories(bench.stub, [one])
    await bench.queue.clear([one.key])

    with pytest.raises(NotReadyError, match="does not confirm"):
        await put_trajectories(bench.stub, [one])
    await put_trajectories(bench.stub, [one])

    assert (await get_trajectories(bench.stub, [one.key]))[0] == {one.key: one}


async def test_a_row_without_data_does_not_hide_its_neighbours(bench: Bench, nodes: Nodes) -> None:
    put = [trajectory(session) for session in range(4)]
    keys = [message.key for message in put]
    await put_trajectories(bench.stub, put)
    await bench.queue.clear([keys[1]])
    client = nodes.attach("ghost")
    await client.async_kv_retrieve_meta(keys=[keys[1]], partition_id=PARTITION, create=True)
    client.close()

    found, missing = await get_trajectories(bench.stub, keys)

    assert list(found) == [keys[0], keys[2], keys[3]]
    assert missing == [keys[1]]


async def test_a_row_that_has_rotted_is_missing_not_wrong(bench: Bench) -> None:
    put = [trajectory(0), trajectory(1)]
    await put_trajectories(bench.stub, put)
    rotten = trajectory(0, uid="e0r2").SerializeToString()
    await bench.queue.put([put[0].key], [rotten], [{}])

    values, missing = await bench.store.read([message.key for message in put])

    assert values == [value_of(put[1])]
    assert missing == [put[0].key]


async def test_tools_see_a_tag_beside_each_key(bench: Bench, nodes: Nodes) -> None:
    one = trajectory(0)
    await put_trajectories(bench.stub, [one])
    client = nodes.attach("tool")

    listed = await client.async_kv_list(PARTITION)
    client.close()

    assert listed[PARTITION][one.key] == {
        "status": "finished",
        "prompt_len": 3,
        "response_len": 4,
        "min_version": 3,
        "max_version": 4,
    }


async def test_deleted_rows_are_gone_and_deleting_again_changes_nothing(bench: Bench) -> None:
    put = [trajectory(session) for session in range(4)]
    keys = [message.key for message in put]
    await put_trajectories(bench.stub, put)
    request = pb.DeleteTrajectoriesRequest(keys=[*keys[:3], "nowhere"])

    first = await bench.stub.DeleteTrajectories(request, timeout=20)
    second = await bench.stub.DeleteTrajectories(request, timeout=20)

    found, missing = await get_trajectories(bench.stub, keys)
    assert (first.deleted_count, second.deleted_count) == (3, 0)
    assert list(found) == keys[3:]
    assert missing == keys[:3]
    assert not await bench.queue.confirm([keys[0]])
    assert (await status(bench)).held_bytes == put[3].ByteSize()


async def test_a_caller_that_goes_away_does_not_tear_its_put(bench: Bench) -> None:
    put = [trajectory(session) for session in range(4)]
    writing = asyncio.create_task(bench.store.put([inspect(value_of(one)) for one in put]))
    await asyncio.sleep(0)

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await bench.store.close()

    found, _ = await get_trajectories(bench.stub, [message.key for message in put])
    assert list(found.values()) == put


async def test_a_full_store_says_so_and_keeps_what_it_has(bench: Bench) -> None:
    put = [trajectory(session, tokens=900_000) for session in range(3)]
    size_bytes = put[0].ByteSize()
    assert 2 * size_bytes > CAPACITY_BYTES - size_bytes
    await put_trajectories(bench.stub, put[:2])

    with pytest.raises(StoreFullError) as failed:
        await put_trajectories(bench.stub, [put[2]])

    assert failed.value.metadata["extra_bytes"] == str(size_bytes)
    assert list(bench.replay.asked[-1].keys) == [message.key for message in put[:2]]
    assert bench.replay.asked[-1].held_bytes == 2 * size_bytes
    await put_trajectories(bench.stub, put[:2])  # what is there needs no room
    assert (await status(bench)).row_count == 2


async def test_a_lost_row_is_put_again_into_the_room_that_it_had(bench: Bench) -> None:
    put = [trajectory(session, tokens=900_000) for session in range(2)]
    await put_trajectories(bench.stub, put)
    await bench.queue.clear([put[0].key])
    _, missing = await get_trajectories(bench.stub, [put[0].key])

    await put_trajectories(bench.stub, put)

    assert missing == [put[0].key]
    assert (await status(bench)).held_bytes == 2 * put[0].ByteSize()
    assert bench.replay.asked == [], "no sweep was needed"


async def test_a_put_without_room_first_sweeps_the_dead_however_young(bench: Bench) -> None:
    put = [trajectory(session, tokens=900_000) for session in range(3)]
    await put_trajectories(bench.stub, put[:2])
    bench.replay.dead = {put[0].key}

    await put_trajectories(bench.stub, [put[2]])

    found, missing = await get_trajectories(bench.stub, [message.key for message in put])
    assert list(found) == [put[1].key, put[2].key]
    assert missing == [put[0].key]
    assert (await status(bench)).swept_count == 1


async def test_a_sweep_takes_only_what_is_dead_and_old_enough(bench: Bench, clock: Clock) -> None:
    old_dead, old_alive, young_dead = (trajectory(session) for session in range(3))
    await put_trajectories(bench.stub, [old_dead, old_alive])
    clock.time += GRACE_S
    await put_trajectories(bench.stub, [young_dead])
    bench.replay.dead = {old_dead.key, young_dead.key}

    swept = await bench.sweeper.sweep(grace_s=GRACE_S)

    assert swept == 1
    [asked] = bench.replay.asked
    assert list(asked.keys) == [old_dead.key, old_alive.key]
    assert asked.store_incarnation == "life1"
    assert asked.held_bytes == sum(one.ByteSize() for one in (old_dead, old_alive, young_dead))
    _, missing = await get_trajectories(bench.stub, [old_dead.key, old_alive.key, young_dead.key])
    assert missing == [old_dead.key]


async def test_a_sweep_of_nothing_still_says_how_full_the_store_is(bench: Bench) -> None:
    await put_trajectories(bench.stub, [trajectory(0)])

    await bench.sweeper.sweep(grace_s=GRACE_S)

    [asked] = bench.replay.asked
    assert (list(asked.keys), asked.held_bytes) == ([], trajectory(0).ByteSize())


async def test_a_sweep_waits_for_a_replay_buffer_that_is_away(bench: Bench) -> None:
    one = trajectory(0)
    await put_trajectories(bench.stub, [one])
    bench.replay.dead = {one.key}
    await bench.stop_replay()

    sweeping = asyncio.create_task(bench.sweeper.sweep(grace_s=0))
    await waiting(bench.waits)
    [wait] = bench.waits.snapshot()
    await bench.start_replay()

    assert wait.owner == "replay"
    assert await asyncio.wait_for(sweeping, 20) == 1


async def test_the_sweeping_ends_when_the_process_is_to_stop(bench: Bench) -> None:
    await bench.stop_replay()
    sweeping = asyncio.create_task(bench.sweeper.run(every_s=60, grace_s=0))
    await waiting(bench.waits)

    bench.stopping.set()

    await asyncio.wait_for(sweeping, 20)


async def test_before_transfer_queue_has_started_calls_are_put_off(bench: Bench) -> None:
    service = StoreService(lambda: status_pb2.ProcessStatus(process="store"))
    async with AsyncExitStack() as stack:
        address = await serve(stack, service.add_to, 0)
        channel = await stack.enter_async_context(open_channel(address))
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)

        with pytest.raises(NotReadyError):
            await put_trajectories(stub, [trajectory(0)])
        with pytest.raises(NotReadyError):
            await get_trajectories(stub, [trajectory(0).key])
        said = await stub.GetStoreStatus(pb.GetStoreStatusRequest(), timeout=5)

    assert said.process.process == "store"
    assert said.store_incarnation == ""


async def test_with_waits_a_client_outlives_the_store_s_start(bench: Bench) -> None:
    service = StoreService(lambda: status_pb2.ProcessStatus(process="store"))
    waits = new_waits()
    async with AsyncExitStack() as stack:
        address = await serve(stack, service.add_to, 0)
        channel = await stack.enter_async_context(open_channel(address))
        stub = store_pb2_grpc.TrajectoryStoreServiceStub(channel)
        putting = asyncio.create_task(put_trajectories(stub, [trajectory(0)], waits=waits))
        await waiting(waits)

        service.open(bench.store, bench.sweeper, bench.saver, bench.restorer)

        assert await asyncio.wait_for(putting, 20) == "life1"
        found, _ = await get_trajectories(stub, [trajectory(0).key], waits=waits)

    assert found == {trajectory(0).key: trajectory(0)}
    assert "trajectory store: a put" in waits.waited_s


async def test_a_storage_unit_that_is_gone_ends_calls_by_their_deadline_and_the_probe() -> None:
    # Nodes of its own, because they are damaged here.
    broken = await asyncio.to_thread(Nodes.start, unit_count=UNITS)
    client = broken.attach("broken")
    waits = new_waits()
    patient = TransferQueue(client, unit_count=UNITS, timeout_s=20, waits=waits)
    queue = TransferQueue(client, unit_count=UNITS, timeout_s=0.5, waits=waits)
    store = TrajectoryStore(patient, incarnation="x", capacity_bytes=2**20, now=Clock())
    rows = [inspect(value_of(trajectory(session))) for session in range(UNITS)]
    keys = [row.value.key for row in rows]
    await patient.open_probe()
    await store.put(rows)
    await asyncio.to_thread(broken.units[1].shutdown)
    store.life.queue = queue

    with pytest.raises(NotReadyError, match=r"did not answer a put within 0\.5 s"):
        await store.put([inspect(value_of(trajectory(s, uid="e0r2"))) for s in range(UNITS)])
    with pytest.raises(NotReadyError, match="did not answer a read"):
        await store.read(keys)
    with pytest.raises(NotReadyError, match="did not answer a clear"):
        await store.delete(keys)
    await asyncio.wait_for(until_dead(lambda: queue, every_s=60), 20)

    assert store.catalogue.missing_from(keys) == keys, "half deleted rows are not served"
    assert len(store.catalogue) == 2 * UNITS, "their room is theirs until they are cleared"
    client.close()
    await asyncio.to_thread(broken.close)


def test_transfer_queue_runs_without_ray_and_listens_on_loopback_only(
    others_listening: set[str], nodes: Nodes
) -> None:
    import ray

    here = psutil.Process()
    listening = listening_here() - others_listening
    children = {child.name() for child in here.children(recursive=True)}

    assert not ray.is_initialized()
    assert not any("ray" in name or "gcs" in name for name in children)
    assert len(nodes.addresses()) == 2 + UNITS
    assert set(nodes.addresses()) <= listening
    assert all(address.startswith("127.0.0.1:") for address in listening)
