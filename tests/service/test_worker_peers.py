"""Peers that go, come back, refuse and bring new weights; and the way home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ports import free_port
from worker_scene import Gate, World, after_load, completed, eventually, made_world, waits_of

from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.errors import HeadraceError, UsageError, WriterFencedError, WrongRunError
from headrace.v1 import replay_pb2 as pb


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with made_world(tmp_path) as made:
        yield made


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
    port = free_port()
    world.store_address = f"127.0.0.1:{port}"  # where nobody is
    await world.start()

    await eventually(lambda: "trajectory store: a put" in waits_of(world))
    assert not world.ledger.requests("CompleteSessions")
    await world.serve_store(port)
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))


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

    assert {s.record.min_version for s in completed(world)} == {1}
    versions = [r.weights.version for r in world.ledger.requests("LeasePrompts")]
    assert versions[:2] == [0, 1]


async def test_a_worker_at_the_end_of_the_run_works_again_when_a_resume_goes_back_behind_it(
    world: World,
) -> None:
    await world.publish(0)
    await world.start(pauses=lambda seconds: asyncio.sleep(min(seconds, 0.05)))
    await world.ledger.until(lambda: world.ledger.requests("LeasePrompts"))
    world.ledger.ended = True
    await world.ledger.notify()
    await eventually(lambda: world.worker.weights.ended and not waits_of(world))
    asked = len(world.ledger.requests("LeasePrompts"))
    looks = len(world.ledger.requests("AwaitWeights"))
    await world.ledger.until(lambda: len(world.ledger.requests("AwaitWeights")) > looks + 2)
    assert len(world.ledger.requests("LeasePrompts")) == asked

    world.ledger.ended = False
    world.ledger.oldest_version = 1
    world.ledger.feed("e0r0")
    await world.publish(1)

    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))
    assert {s.record.min_version for s in completed(world)} == {1}


async def test_nothing_is_leased_with_weights_that_are_not_what_was_published(
    world: World,
) -> None:
    await world.publish(0, checksum="0" * 64)
    world.ledger.feed("e0r0")
    await world.start()

    await world.ledger.until(lambda: len(world.ledger.requests("AwaitWeights")) >= 2)

    assert "weights" in waits_of(world)
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

    assert {s.record.min_version for s in completed(world)} == {4}


async def test_a_worker_that_goes_home_hands_back_what_it_has_not_done(world: World) -> None:
    gate = Gate()
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1", "e0r2")
    await world.start(
        ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=after_load(gate), max_groups=3
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
    await world.start(lease_wait_s=30)
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


@pytest.mark.parametrize("method", ["AwaitWeights", "LeasePrompts", "CompleteSessions"])
async def test_a_worker_that_is_not_welcome_ends_whichever_call_is_refused(
    world: World, method: str
) -> None:
    def refuse(called: str) -> None:
        if called == method:
            raise WrongRunError("replay belongs to another run")

    await world.publish(0)
    world.ledger.feed("e0r0")
    world.ledger.refuse = refuse
    await world.start()

    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(world.running, 60)
    del world.running
    assert ended.group_contains(UsageError, match=r"^replay belongs to another run$")
    assert ended.value.split(UsageError)[1] is None
    assert len(world.ledger.requests(method)) <= 2


async def test_what_the_worker_waits_for_has_a_name(world: World) -> None:
    await world.start()
    await eventually(lambda: waits_of(world) == ["weights"])

    await world.publish(0)
    await eventually(lambda: waits_of(world) == ["work"])
    why = "a prompt can be leased (now: the window is full)"
    await eventually(lambda: world.waits.snapshot()[0].ends_when == why)

    world.ledger.ended = True
    await world.ledger.notify()
    await eventually(lambda: waits_of(world) == [])
    assert not world.running.done()


async def test_waiting_for_the_engine_begins_anew_with_each_group_that_ends(world: World) -> None:
    gates = [Gate(), Gate()]
    turn = iter(gates)  # one for each session's first pause

    async def sleep(seconds: float) -> None:
        if seconds > 0 and (gate := next(turn, None)) is not None:
            await gate.sleep(seconds)

    def enginewaits_of() -> list[Any]:
        return [wait for wait in world.waits.snapshot() if wait.name == "engine"]

    world.ledger.n = 1
    await world.publish(0)
    world.ledger.feed("e0r0", "e0r1")
    await world.start(ScriptedConfig(kind="scripted", mean_latency_s=1), sleep=sleep)
    await gates[1].reached.wait()
    world.time = 100.0
    [before] = enginewaits_of()
    assert (before.owner, before.elapsed_s) == ("scripted engine", 100)

    gates[0].open.set()
    await eventually(lambda: world.worker.group_count == 1)
    await eventually(lambda: enginewaits_of() and enginewaits_of()[0].elapsed_s == 0)

    gates[1].open.set()
    await eventually(lambda: not enginewaits_of())
