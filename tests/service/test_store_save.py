"""The store's part of a checkpoint as it is written: consistent, small, and not there if it fails."""

from __future__ import annotations

import asyncio
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import structlog
from store_bench import Bench, Clock, open_bench, trajectory, value_of

from headrace import failpoints
from headrace.errors import NotReadyError, SnapshotFailedError
from headrace.rpc.status import error_from
from headrace.store import index
from headrace.store.nodes import Nodes
from headrace.store.row import inspect
from headrace.trajectory.client import get_trajectories, put_trajectories
from headrace.v1 import store_pb2 as pb
from headrace.v1.resume_pb2 import CheckpointPart
from headrace.v1.trajectory_pb2 import Trajectory

UNITS = 2
MOST_PER_RAW = 1.25


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    started = Nodes.start(unit_count=UNITS)
    yield started
    started.close()


@pytest.fixture
async def bench(nodes: Nodes, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path / "store", nodes, unit_count=UNITS) as opened:
        yield opened
    assert list((tmp_path / "store").glob("*")) == [], "nothing is left here"


async def save(bench: Bench, directory: Path, *, hold_id: str = "h1") -> pb.SaveRowsResponse:
    await bench.stub.HoldDeletions(pb.HoldDeletionsRequest(hold_id=hold_id, hold_s=600), timeout=20)
    request = pb.SaveRowsRequest(uri=str(directory / "global_step_1"), hold_id=hold_id)
    return await bench.stub.SaveRows(request, timeout=60)


async def failing(bench: Bench, directory: Path) -> str:
    with pytest.raises(grpc.RpcError) as failed:
        await save(bench, directory)
    error = error_from(failed.value)
    assert isinstance(error, SnapshotFailedError)
    return str(error)


def rows_of(directory: Path) -> list[index.IndexedRow]:
    return index.read(directory / "global_step_1" / "transfer_queue")[1]


def made(number: int, session: int, tokens: int = 100) -> Trajectory:
    """Make one whose bytes do not compress."""
    one = trajectory(session, uid=f"e0r{number}", tokens=tokens)
    dice = random.Random(f"{number} {session}")
    one.response_token_ids[:] = [dice.randrange(50_000) for _ in range(tokens)]
    one.logprobs[:] = [-dice.random() for _ in range(tokens)]
    return one


async def test_a_save_under_puts_and_deletions_is_of_one_moment(
    bench: Bench, tmp_path: Path
) -> None:
    confirmed: list[list[str]] = [[] for _ in range(4)]
    sizes: dict[str, int] = {}
    enough = asyncio.Event()

    async def work(worker: int) -> None:
        for number in range(10_000):
            one = made(number, worker, tokens=20)
            sizes[one.key] = one.ByteSize()
            await put_trajectories(bench.stub, [one])
            confirmed[worker].append(one.key)
            await bench.stub.DeleteTrajectories(
                pb.DeleteTrajectoriesRequest(keys=[one.key]), timeout=20
            )
            if number == 10:
                enough.set()

    await bench.stub.HoldDeletions(pb.HoldDeletionsRequest(hold_id="h1", hold_s=600), timeout=20)
    workers = [asyncio.create_task(work(worker)) for worker in range(4)]
    await enough.wait()
    before = [list(keys) for keys in confirmed]
    saved = await save(bench, tmp_path)
    after = [list(keys) for keys in confirmed]
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await bench.store.close()

    rows = rows_of(tmp_path)
    for worker in range(4):
        kept = [row.key for row in rows if f"_{worker}_0_" in row.key]
        assert kept[: len(before[worker])] == before[worker], "all that was confirmed before"
        whole = confirmed[worker] + [f"e0r{len(confirmed[worker])}_{worker}_0_ab12a1"]
        assert kept == whole[: len(kept)], "and of the rest what came first"
        assert len(kept) <= len(after[worker]) + 1
    assert (saved.row_count, saved.raw_bytes) == (len(rows), sum(sizes[row.key] for row in rows))
    assert [row.size_bytes for row in rows] == [sizes[row.key] for row in rows]
    assert saved.locked_s > 0
    assert saved.longest_put_wait_s >= 0
    assert saved.store_incarnation == "life1"


@pytest.mark.parametrize(
    ("count", "tokens", "at_once"),
    [(1500, 250, 1024), (400, 250, 1), (1500, 30, 8)],
    ids=["many at once", "one by one", "small ones"],
)
async def test_the_files_are_little_larger_than_the_rows(
    bench: Bench, tmp_path: Path, count: int, tokens: int, at_once: int
) -> None:
    all_of_them = [made(number, number % 8, tokens) for number in range(count)]
    for begin in range(0, count, at_once):
        await put_trajectories(bench.stub, all_of_them[begin : begin + at_once])

    saved = await save(bench, tmp_path)

    file_bytes = sum(file.size_bytes for file in saved.part.files)
    raw_bytes = sum(one.ByteSize() for one in all_of_them)
    print(
        f"{count} rows of {raw_bytes / count:.0f} bytes, {at_once} at once: files / raw = "
        f"{file_bytes / raw_bytes:.3f}, {(file_bytes - raw_bytes) / count:.0f} bytes more per row"
    )
    assert saved.raw_bytes == raw_bytes
    assert file_bytes <= MOST_PER_RAW * raw_bytes


async def test_puts_that_wait_meanwhile_are_measured(nodes: Nodes, tmp_path: Path) -> None:
    clock = Clock()
    async with open_bench(tmp_path / "store", nodes, now=clock) as bench:
        saving = asyncio.create_task(save(bench, tmp_path))
        while not bench.store.is_quiet:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0)
        putting = asyncio.create_task(bench.store.put([inspect(value_of(trajectory(0)))]))
        await asyncio.sleep(0)
        clock.time += 5
        assert bench.store.is_quiet

        saved = await saving

        assert (saved.locked_s, saved.longest_put_wait_s) == (5, 5)
        assert await putting == "life1"
        assert rows_of(tmp_path) == []
        again = await save(bench, tmp_path)
        assert (again.locked_s, again.longest_put_wait_s) == (0, 0)
        assert [row.key for row in rows_of(tmp_path)] == [trajectory(0).key]


async def test_puts_that_wait_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [inspect(value_of(trajectory(session))) for session in range(3)]
    limit = rows[0].size_bytes + rows[1].size_bytes
    monkeypatch.setattr("headrace.store.puts.MAX_WAITING_BYTES", limit)
    async with bench.store.quiet():
        putting = [asyncio.create_task(bench.store.put([row])) for row in rows]
        with pytest.raises(NotReadyError, match="wait for their turn already"):
            await putting[2]

    assert await asyncio.gather(*putting[:2]) == ["life1", "life1"]
    assert await bench.store.put([rows[2]]) == "life1"


async def test_what_is_not_confirmed_is_not_in_it_and_a_repeat_writes_anew(
    bench: Bench, tmp_path: Path
) -> None:
    whole, lost = trajectory(0), trajectory(1)
    await put_trajectories(bench.stub, [whole, lost])
    await bench.queue.clear([lost.key])
    await get_trajectories(bench.stub, [lost.key])  # is found missing
    stale = tmp_path / "global_step_1" / "transfer_queue" / "stale"
    stale.parent.mkdir(parents=True)
    stale.touch()

    first = await save(bench, tmp_path)
    second = await save(bench, tmp_path)

    assert [row.key for row in rows_of(tmp_path)] == [whole.key]
    assert first.row_count == second.row_count == 1
    assert not stale.exists()
    assert named(second.part) == there(tmp_path)


async def test_without_its_hold_nothing_is_saved(bench: Bench, tmp_path: Path) -> None:
    await save(bench, tmp_path / "other", hold_id="h2")

    request = pb.SaveRowsRequest(uri=str(tmp_path / "global_step_1"), hold_id="h1")
    with pytest.raises(grpc.RpcError) as failed:
        await bench.stub.SaveRows(request, timeout=20)

    assert isinstance(error_from(failed.value), SnapshotFailedError)
    assert there(tmp_path) == set()


@pytest.mark.parametrize("point", ["store_part.saved", "store_part.written"])
async def test_a_disk_that_is_full_at_one_point_fails_the_save_and_leaves_nothing(
    bench: Bench, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_trajectories(bench.stub, [trajectory(0)])
    monkeypatch.setattr(failpoints, "_reached", Counter())
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}:1:raise")

    assert point in await failing(bench, tmp_path)

    assert there(tmp_path) == set()
    assert list((tmp_path / "store").glob("*")) == []
    assert (await save(bench, tmp_path)).row_count == 1
    assert there(tmp_path) != set()


@pytest.mark.parametrize("limit_bytes", [1000, 60_000])
async def test_a_disk_that_is_full_for_transfer_queue_fails_the_save(
    bench: Bench, tmp_path: Path, limit_bytes: int
) -> None:
    await put_trajectories(bench.stub, [trajectory(0, tokens=50_000), trajectory(1)])

    with no_file_beyond(limit_bytes):
        assert "could not be saved" in await failing(bench, tmp_path)

    assert there(tmp_path) == set()
    assert list((tmp_path / "store").glob("*")) == []
    assert (await save(bench, tmp_path)).row_count == 2


async def test_a_storage_that_is_not_there_fails_the_save(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "global_step_1").write_text("a file, where a directory is needed")

    await failing(bench, tmp_path)


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """Let the disk be full at this size of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        with structlog.testing.capture_logs():  # or they would be refused, too
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def named(part: CheckpointPart) -> set[str]:
    return {file.path for file in part.files}


def there(directory: Path) -> set[str]:
    step = directory / "global_step_1"
    found = (step / "transfer_queue").rglob("*")
    return {path.relative_to(step).as_posix() for path in found if path.is_file()}
