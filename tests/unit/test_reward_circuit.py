"""When a circuit lets calls pass."""

from __future__ import annotations

import asyncio

from reward_bench import Clock

from headrace.rollout.rewards.circuit import Circuit
from headrace.rpc.waits import Waits


def make_circuit(clock: Clock, *, open_after: int) -> Circuit:
    return Circuit(
        "service",
        owner="somebody",
        open_after=open_after,
        waits=Waits(now=clock.now, stall_after_s=60),
        now=clock.now,
        sleep=clock.sleep,
        jitter=lambda: 1.0,
    )


async def test_failures_of_calls_made_before_it_opened_do_not_make_its_pause_longer() -> None:
    clock = Clock()
    circuit = make_circuit(clock, open_after=1)
    for number in [await circuit.enter() for _ in range(3)]:
        circuit.fail(number, "down")
    await circuit.enter()

    assert clock.slept == [1.0]


async def test_failures_count_in_a_row_only() -> None:
    clock = Clock()
    circuit = make_circuit(clock, open_after=2)
    for _ in range(3):
        circuit.fail(await circuit.enter(), "down")
        assert not circuit.is_open
        circuit.succeed()

    assert clock.slept == []


async def test_a_probe_that_is_given_up_leaves_its_place_to_another() -> None:
    clock = Clock()
    circuit = make_circuit(clock, open_after=1)
    circuit.fail(await circuit.enter(), "down")
    await circuit.enter()
    other = asyncio.create_task(circuit.enter())
    await asyncio.sleep(0)
    assert not other.done()
    circuit.leave()

    assert await other == 1


async def test_a_service_that_wants_time_gets_it_though_another_call_is_answered() -> None:
    clock = Clock()
    circuit = make_circuit(clock, open_after=9)
    first, _second = await circuit.enter(), await circuit.enter()
    circuit.fail(first, "429", hold_s=20)
    circuit.succeed()
    await circuit.enter()

    assert clock.slept == [20.0]
