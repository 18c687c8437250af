"""What becomes of a group: done, failed, lost; and what the worker holds meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from worker_scene import EOS, Gate, World, after_load, completed, eventually, made_world

from headrace.config.rollout import RewardConfig
from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.rollout.engines.base import EngineStatus
from headrace.rollout.engines.scripted import ScriptedEngine
from headrace.rollout.worker import MOST_LOSSES
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Trajectory


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with made_world(tmp_path) as made:
        yield made


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
    world.store.answers.clear()
    await world.start(lease_wait_s=30)

    def gathered() -> int:
        """Sessions that are in the first put, or wait for it."""
        waiting = world.worker._deliveries._parcels._waiting
        return len(world.store.rows) + sum(len(parcel.made) for parcel in waiting)

    await eventually(lambda: gathered() == 4 * 48)
    world.store.answers.set()
    await world.ledger.until(lambda: world.ledger.is_whole(*uids))

    assert [r.max_count for r in world.ledger.requests("LeasePrompts")] == [64, 16]
    # The first, and all that came while it was under way, if it did not hold all.
    assert world.store.put_count <= 2
    assert len(world.ledger.requests("CompleteSessions")) <= 2
    world.ledger.ended = True  # ends the call that waits
    await world.ledger.notify()


async def test_no_more_groups_are_held_than_configured(world: World) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed(*(f"e0r{i}" for i in range(10)))
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=after_load(gate), max_groups=3
    )

    await world.ledger.until(lambda: len(world.ledger.leased) == 3)
    await gate.reached.wait()

    assert world.worker.group_count == 3
    assert [r.max_count for r in world.ledger.requests("LeasePrompts")] == [3]
    gate.open.set()
    await world.ledger.until(lambda: world.ledger.is_whole(*(f"e0r{i}" for i in range(10))))


class Roomy(ScriptedEngine):
    """Has room for five sequences."""

    def status(self) -> EngineStatus:
        return replace(super().status(), room=5)


@pytest.mark.parametrize(("max_groups", "held"), [(None, 3), (2, 2), (64, 3)])
async def test_no_more_groups_are_held_than_fill_the_engine(
    world: World, max_groups: int | None, held: int
) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed(*(f"e0r{i}" for i in range(10)))
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=after_load(gate),
        max_groups=max_groups, group_size=2, engine_type=Roomy,
    )  # fmt: skip

    await world.ledger.until(lambda: len(world.ledger.leased) == held)
    await gate.reached.wait()

    assert [r.max_count for r in world.ledger.requests("LeasePrompts")] == [held]
    gate.open.set()


class Mortal(ScriptedEngine):
    """Dies when it is told to."""

    def when_lost(self, tell: Callable[[], None]) -> None:
        self.die = tell


async def test_a_worker_whose_engine_died_hands_back_and_goes_on_with_the_newest_weights(
    world: World,
) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1),
        sleep=after_load(gate),
        engine_type=Mortal,
    )
    await world.ledger.until(lambda: len(world.ledger.leased) == 2)
    await gate.reached.wait()
    engine = world.worker.engine
    assert isinstance(engine, Mortal)

    engine.die()

    assert world.worker.weights.current is None
    await eventually(lambda: len(world.ledger.ended_leases) >= 2)
    gate.open.set()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0", "e0r1"))
    assert {ended.end for ended in world.ledger.ended_leases} == {pb.LEASE_END_RETURNED}


async def test_a_group_that_the_engine_dies_with_again_and_again_is_at_fault(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.rollout.weights.POLL_S", 0.1)
    gate = Gate()
    await world.publish(0)
    world.ledger.feed("e0r0")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1),
        sleep=after_load(gate),
        engine_type=Mortal,
    )
    engine = world.worker.engine
    assert isinstance(engine, Mortal)
    for _ in range(MOST_LOSSES + 2):
        await eventually(lambda: world.worker.group_count == 1)
        before = len(world.ledger.ended_leases)
        engine.die()
        engine.die()  # an update that was under way ends with it
        await world.ledger.until(lambda: len(world.ledger.ended_leases) > before)  # noqa: B023
    gate.open.set()
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    ended = world.ledger.ended_leases
    [failed] = [each for each in ended if each.end == pb.LEASE_END_FAILED]
    assert failed.error == "the engine was lost with this group under way, 4 times"
    assert {each.end for each in ended if each is not failed} == {pb.LEASE_END_RETURNED}
    assert MOST_LOSSES <= ended.index(failed) < len(ended) - 1


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
    attempts = [r.record.attempt for r in completed(world)]
    assert sorted(attempts) == attempts
    assert 0 < attempts.count(1) < 8
    assert len(attempts) == 8


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
        ScriptedConfig(kind="scripted", mean_latency_s=0, failure_rate=1),
        pauses=pauses,
        now=lambda: 0.0,
        lease_wait_s=30,
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
    world.ledger.ended = True  # ends the call that waits
    await world.ledger.notify()


async def test_work_on_a_lost_lease_is_dropped(world: World) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=after_load(gate), lease_s=0.3
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
