from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from worker_world import TinyLedger, TinyStore, serving

from headrace.config.rollout import RewardConfig
from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.errors import HeadraceError, WriterFencedError
from headrace.rollout.engines.scripted import ScriptedEngine
from headrace.rollout.rewards.pool import RewardPool
from headrace.rollout.worker import Worker, WorkerSettings
from headrace.rpc.channel import open_channel
from headrace.rpc.waits import Waits
from headrace.v1 import prompt_pb2, replay_pb2_grpc, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Trajectory
from headrace.weights.directory import write

VOCAB, EOS = 12, 1


def decode(ids: list[int]) -> str:
    return "".join(chr(ord("a") + i) for i in ids if i != EOS)


class World:
    """A worker with its two peers; `start` starts it."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.root = root
        self.stack = stack
        # Only the workers' side is there; other calls are answered UNIMPLEMENTED.
        self.ledger = TinyLedger()  # type: ignore[abstract]
        self.store = TinyStore()  # type: ignore[abstract]
        self.stopping = asyncio.Event()
        self.time = 0.0
        """Of the waits only."""
        self.waits = Waits(now=lambda: self.time, stall_after_s=60)
        self.worker: Worker
        self.running: asyncio.Task[None]
        self.replay_address = ""
        self.store_address = ""

    async def publish(self, version: int, *, checksum: str | None = None) -> None:
        directory, right = write(
            self.root, run_id="run", lineage="main", version=version,
            write_files=lambda fresh: None,
        )  # fmt: skip
        await self.ledger.publish(
            prompt_pb2.PublishedWeights(
                id=prompt_pb2.WeightsId(lineage="main", version=version),
                uri=str(directory),
                checksum=checksum or right,
            )
        )

    async def serve_ledger(self, port: int = 0) -> None:
        self.replay_address = await self.stack.enter_async_context(
            serving(
                lambda s: replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(self.ledger, s),
                port,
            )
        )

    async def serve_store(self, port: int = 0) -> None:
        self.store_address = await self.stack.enter_async_context(
            serving(
                lambda s: store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(
                    self.store, s
                ),
                port,
            )
        )

    async def start(
        self,
        engine: ScriptedConfig | None = None,
        *,
        reward: RewardConfig | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_groups: int = 64,
        max_generation_s: float = 30,
        lease_s: float = 60,
        lease_wait_s: float = 0.2,
        pauses: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        for address, serve in (
            (self.replay_address, self.serve_ledger), (self.store_address, self.serve_store)
        ):  # fmt: skip
            if not address:
                await serve()
        self.ledger.lease_s = lease_s
        rewards = RewardPool(reward or RewardConfig())
        self.stack.push_async_callback(rewards.close)
        await rewards.start()
        scripted = ScriptedEngine(
            engine or ScriptedConfig(kind="scripted", mean_latency_s=0),
            vocab_size=VOCAB, eos_id=EOS, sleep=sleep,
        )  # fmt: skip
        self.stack.push_async_callback(scripted.close)
        replay = await self.stack.enter_async_context(open_channel(self.replay_address))
        store = await self.stack.enter_async_context(open_channel(self.store_address))
        self.worker = Worker(
            WorkerSettings(
                worker_id="worker-0-1-ab", max_groups_in_flight=max_groups,
                max_leases_per_call=256, max_generation_s=max_generation_s, lease_s=lease_s, lease_wait_s=lease_wait_s,
            ),
            engine=scripted, rewards=rewards, decode=decode,
            replay_stub=replay_pb2_grpc.ReplayBufferServiceStub(replay),
            store_stub=store_pb2_grpc.TrajectoryStoreServiceStub(store),
            waits=self.waits, stopping=self.stopping, sleep=pauses, jitter=lambda: 0.0,
        )  # fmt: skip
        self.running = asyncio.create_task(self.worker.run())

    async def stop(self) -> None:
        self.stopping.set()
        async with asyncio.timeout(20):
            await self.running


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(tmp_path, stack)
        yield made
        made.stopping.set()
        with contextlib.suppress(AttributeError):
            await made.running


class Gate:
    """A sleep that ends when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.sleepers = 0
        self.reached = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.sleepers += 1
        self.reached.set()
        await self.open.wait()


async def eventually(condition: Callable[[], object]) -> None:
    """Give way until something becomes true that no call can be waited for."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_every_missing_session_is_made_scored_stored_and_recorded_once(world: World) -> None:
    world.ledger.n = 3
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1", token_ids=(2, 3, 4))
    await world.start()

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0", "e0r1"))

    rows = world.store.trajectories
    assert sorted(rows) == sorted(
        f"{uid}_{session}_0_maina1" for uid in ("e0r0", "e0r1") for session in range(3)
    )
    for uid in ("e0r0", "e0r1"):
        for session, record in world.ledger.sessions[uid].items():
            check_row(rows[f"{uid}_{session}_0_maina1"], record)
    await eventually(lambda: world.worker.group_count == 0)
    assert world.worker.completed_session_count == 6
    assert world.worker.wasted_token_count == 0


def check_row(row: Trajectory, record: prompt_pb2.SessionRecord) -> None:
    count = len(row.response_token_ids)
    assert row.schema_version == 1
    assert list(row.prompt_token_ids) == [2, 3, 4]
    assert len(row.logprobs) == len(row.loss_mask) == count
    assert all(row.loss_mask)
    stopped = row.response_token_ids[-1] == EOS
    assert row.finish_reason == (FINISH_REASON_STOP if stopped else FINISH_REASON_LENGTH)
    assert [(s.lineage, s.version, s.begin, s.end) for s in row.weight_spans] == [
        ("main", 0, 0, count)
    ]
    assert row.temperature == 1.0
    assert (record.token_count, record.size_bytes) == (count, row.ByteSize())
    assert (record.trajectory_count, record.reward) == (1, row.reward)
    assert (record.min_version, record.max_version) == (0, 0)


async def test_many_groups_take_few_calls(world: World) -> None:
    world.ledger.n = 4
    uids = [f"e0r{i}" for i in range(48)]
    await world.publish(0)
    world.ledger.feed(*uids)
    await world.start()

    await world.ledger.until(lambda: world.ledger.is_whole(*uids))

    granted = [r for r in world.ledger.requests("LeasePrompts") if r.max_count == 64]
    assert len(granted) == 1
    assert world.store.put_count <= 10
    assert len(world.ledger.requests("CompleteSessions")) <= 10
    assert len(world.ledger.requests("LeasePrompts")) <= 3


async def test_no_more_groups_are_held_than_configured(world: World) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed(*(f"e0r{i}" for i in range(10)))
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=_after_load(gate), max_groups=3
    )

    await world.ledger.until(lambda: len(world.ledger.leased) == 3)
    await gate.reached.wait()

    assert world.worker.group_count == 3
    assert [r.max_count for r in world.ledger.requests("LeasePrompts")] == [3]
    gate.open.set()
    await world.ledger.until(lambda: world.ledger.is_whole(*(f"e0r{i}" for i in range(10))))


def _after_load(gate: Gate) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        if seconds > 0:  # loading takes none
            await gate.sleep(seconds)

    return sleep


async def test_an_engine_error_fails_the_lease_and_is_never_a_reward_of_zero(world: World) -> None:
    world.ledger.n = 8
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(ScriptedConfig(kind="scripted", mean_latency_s=0, failure_rate=0.5, seed=3))

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    [first, *_] = world.ledger.ended_leases
    assert first.end == pb.LEASE_END_FAILED
    assert "scripted failure of e0r0" in first.error
    assert "\n" not in first.error
    # What went well under the first attempt was kept, and only the rest made again.
    attempts = [r.record.attempt for r in _completed(world)]
    assert sorted(attempts) == attempts
    assert 0 < attempts.count(1) < 8
    assert len(attempts) == 8


def _completed(world: World) -> list[pb.CompletedSession]:
    return [s for r in world.ledger.requests("CompleteSessions") for s in r.sessions]


async def test_a_reward_error_fails_the_lease_and_only_the_guilty_session_is_missing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "once_failing_reward.py").write_text(
        "from pathlib import Path\n"
        "def score(*, response, metadata, **_):\n"
        "    if not Path('mended').exists():\n"
        "        Path('mended').touch()\n"
        "        raise RuntimeError('judge is away')\n"
        "    return {'reward': 0.25, 'row': metadata['row']}\n"
    )
    monkeypatch.chdir(tmp_path)
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(reward=RewardConfig(kind="python", function="once_failing_reward:score"))

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    [failed] = world.ledger.ended_leases
    assert failed.end == pb.LEASE_END_FAILED
    assert "judge is away" in failed.error
    assert {each.reward for each in world.store.trajectories.values()} == {0.25}
    assert {each.reward_parts["row"] for each in world.store.trajectories.values()} == {1.0}
    assert sorted(world.store.rows) == ["e0r0_0_0_maina2", "e0r0_1_0_maina1"]


async def test_a_session_that_never_ends_is_an_error_of_the_engine(world: World) -> None:
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=0, hang_rate=1), max_generation_s=0.1
    )

    await world.ledger.until(lambda: world.ledger.ended_leases)

    [failed, *_] = world.ledger.ended_leases
    assert failed.end == pb.LEASE_END_FAILED
    assert "sessions [0, 1] not generated within 0.1 s" in failed.error


async def test_after_a_failure_the_worker_holds_back_and_says_so(world: World) -> None:
    gate = Gate()

    async def pauses(seconds: float) -> None:
        if seconds < 1:  # renewals sleep for longer
            await gate.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=0, failure_rate=1), pauses=pauses
    )

    await world.ledger.until(lambda: world.ledger.ended_leases)
    await gate.reached.wait()

    names = [wait.name for wait in world.waits.snapshot()]
    assert "pause after a failure" in names
    # A call that was waiting already may be granted the prompt again; nobody works on it.
    await eventually(lambda: world.ledger.attempts["e0r0"] == 2)
    assert len(world.ledger.ended_leases) == 1
    gate.open.set()
    await world.ledger.until(lambda: len(world.ledger.ended_leases) >= 2)


async def test_work_on_a_lost_lease_is_dropped(world: World) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=_after_load(gate), lease_s=0.3
    )
    await world.ledger.until(lambda: len(world.ledger.leased) == 2)
    await gate.reached.wait()

    world.ledger.take_back("e0r0")
    await eventually(lambda: world.worker.group_count == 1)
    gate.open.set()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r1"))

    assert sorted(key.split("_")[0] for key in world.store.rows) == ["e0r1", "e0r1"]
    assert not world.ledger.ended_leases
    for request in world.ledger.requests("RenewLeases"):
        assert len(request.leases) in (1, 2)


async def test_a_lease_lost_while_it_is_delivered_is_wasted_work(world: World) -> None:
    def refuse(method: str) -> None:
        if method == "CompleteSessions" and "e0r0" in world.ledger.leased:
            world.ledger.take_back("e0r0")

    await world.publish(0)
    world.ledger.feed("e0r0")
    world.ledger.refuse = refuse
    await world.start()

    await eventually(lambda: world.worker.wasted_token_count > 0)

    assert world.worker.completed_session_count == 0
    assert world.worker.wasted_token_count == world.worker.engine.status().generated_token_count
    assert not world.ledger.ended_leases


async def test_rows_that_went_with_a_store_are_put_again_into_the_next(world: World) -> None:
    def refuse(method: str) -> None:
        if method == "CompleteSessions" and world.ledger.store_incarnation == "s1":
            world.store.die("s2")
            world.ledger.store_incarnation = "s2"

    await world.publish(0)
    world.ledger.feed("e0r0")
    world.ledger.refuse = refuse
    await world.start()

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    assert sorted(world.store.rows) == ["e0r0_0_0_maina1", "e0r0_1_0_maina1"]
    incarnations = [r.store_incarnation for r in world.ledger.requests("CompleteSessions")]
    assert incarnations == ["s1", "s2"]


async def test_a_store_and_a_ledger_that_are_away_are_waited_for_by_name(world: World) -> None:
    await world.publish(0)
    world.ledger.feed("e0r0")
    async with AsyncExitStack() as first_life:
        world.stack, outer = first_life, world.stack
        await world.serve_store()
        world.stack = outer
    port = int(world.store_address.rpartition(":")[2])
    await world.start()

    await eventually(lambda: "trajectory store: a put" in _waits(world))
    assert not world.ledger.requests("CompleteSessions")
    await world.serve_store(port)
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))


def _waits(world: World) -> list[str]:
    return [wait.name for wait in world.waits.snapshot()]


async def test_a_refused_put_fails_its_own_group_only(world: World) -> None:
    await world.publish(0)
    world.store.rows["e0r0_1_0_maina1"] = b"other"
    world.ledger.feed("e0r0", "e0r1")
    await world.start()

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0", "e0r1"))

    [failed] = world.ledger.ended_leases
    assert (failed.lease.uid, failed.end) == ("e0r0", pb.LEASE_END_FAILED)
    assert "other bytes" in failed.error


async def test_newer_weights_are_used_at_once_though_a_call_still_waits_with_the_old(
    world: World,
) -> None:
    await world.publish(0)
    await world.start(lease_wait_s=30)
    await world.ledger.until(lambda: world.ledger.requests("LeasePrompts"))

    world.ledger.oldest_version = 1
    world.ledger.feed("e0r0")
    await world.publish(1)
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"), timeout_s=15)
    world.ledger.ended = True  # ends the calls that wait
    await world.ledger.notify()

    assert {s.record.min_version for s in _completed(world)} == {1}
    versions = [r.weights.version for r in world.ledger.requests("LeasePrompts")]
    assert versions[:2] == [0, 1]


async def test_nothing_is_leased_with_weights_that_are_not_what_was_published(
    world: World,
) -> None:
    await world.publish(0, checksum="0" * 64)
    world.ledger.feed("e0r0")
    await world.start()

    await world.ledger.until(lambda: len(world.ledger.requests("AwaitWeights")) >= 2)

    assert "weights" in _waits(world)
    assert not world.ledger.requests("LeasePrompts")
    await world.publish(1)
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))


async def test_weights_that_the_ledger_does_not_know_are_replaced(world: World) -> None:
    await world.publish(3)
    await world.start()
    await world.ledger.until(lambda: world.ledger.requests("LeasePrompts"))

    world.ledger.published.clear()
    await eventually(lambda: world.worker.weights.current is None)
    await world.publish(4)
    world.ledger.feed("e0r0")
    await world.ledger.notify()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    assert {s.record.min_version for s in _completed(world)} == {4}


async def test_a_worker_that_goes_home_hands_back_what_it_has_not_done(world: World) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1", "e0r2")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=_after_load(gate), max_groups=3
    )
    await world.ledger.until(lambda: len(world.ledger.leased) == 3)
    await gate.reached.wait()

    await world.stop()

    [request] = world.ledger.requests("EndLeases")
    assert {ended.end for ended in request.leases} == {pb.LEASE_END_RETURNED}
    assert sorted(each.lease.uid for each in request.leases) == ["e0r0", "e0r1", "e0r2"]
    assert not world.ledger.leased


async def test_leases_granted_while_the_worker_goes_home_are_handed_back(world: World) -> None:
    await world.publish(0)
    await world.start()
    await world.ledger.until(lambda: world.ledger.requests("LeasePrompts"))

    world.stopping.set()
    await asyncio.sleep(0)
    world.ledger.feed("e0r0")
    await world.ledger.notify()
    await world.stop()

    assert [each.end for each in world.ledger.ended_leases] == [pb.LEASE_END_RETURNED]
    assert not world.ledger.leased


async def test_what_is_on_its_way_into_the_store_is_completed_before_the_worker_goes(
    world: World,
) -> None:
    def refuse(method: str) -> None:
        if method == "CompleteSessions":
            world.stopping.set()

    await world.publish(0)
    world.ledger.feed("e0r0")
    world.ledger.refuse = refuse
    await world.start()

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))
    await world.stop()

    assert not world.ledger.ended_leases


async def test_a_refusing_ledger_is_asked_again(world: World) -> None:
    refused = iter([WriterFencedError("a newer replay buffer owns the run")])

    def refuse(method: str) -> None:
        error: HeadraceError | None = next(refused, None) if method == "LeasePrompts" else None
        if error is not None:
            raise error

    await world.publish(0)
    world.ledger.feed("e0r0")
    world.ledger.refuse = refuse
    await world.start()

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))


async def test_what_the_worker_waits_for_has_a_name(world: World) -> None:
    await world.start()
    await eventually(lambda: _waits(world) == ["weights"])

    await world.publish(0)
    await eventually(lambda: _waits(world) == ["work"])
    await eventually(lambda: world.waits.snapshot()[0].ends_when == "the window is full")

    world.ledger.ended = True
    await world.ledger.notify()
    await eventually(lambda: _waits(world) == [])
    assert not world.running.done()


async def test_waiting_for_the_engine_begins_anew_with_each_group_that_ends(world: World) -> None:
    gates = [Gate(), Gate()]
    turn = iter(gates)

    async def sleep(seconds: float) -> None:
        if seconds > 0:
            await next(turn).sleep(seconds)

    def engine_waits() -> list[Any]:
        return [wait for wait in world.waits.snapshot() if wait.name == "engine"]

    world.ledger.n = 1
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1")
    await world.start(ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=sleep)
    await gates[1].reached.wait()
    world.time = 100.0
    [before] = engine_waits()
    assert (before.owner, before.elapsed_s) == ("scripted engine", 100)

    gates[0].open.set()
    await eventually(lambda: world.worker.group_count == 1)
    await eventually(lambda: engine_waits() and engine_waits()[0].elapsed_s == 0)

    gates[1].open.set()
    await eventually(lambda: not engine_waits())
