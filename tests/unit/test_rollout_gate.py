from __future__ import annotations

import asyncio

from headrace.rollout.engines.gate import Gate


class Visitor:
    """Goes in as soon as it may, and stays until it is told to leave."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._leave = asyncio.Event()
        self.is_in = False
        self.task = asyncio.create_task(self._visit())

    async def _visit(self) -> None:
        async with self._gate.entered():
            self.is_in = True
            await self._leave.wait()
        self.is_in = False

    async def leave(self) -> None:
        self._leave.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def arrive(gate: Gate, count: int) -> list[Visitor]:
    visitors = [Visitor(gate) for _ in range(count)]
    await settle()
    return visitors


async def test_places_are_given_in_the_order_of_arrival() -> None:
    gate = Gate()
    gate.places = 2
    visitors = await arrive(gate, 5)
    assert [each.is_in for each in visitors] == [True, True, False, False, False]

    await visitors[1].leave()
    late = await arrive(gate, 1)

    assert [each.is_in for each in [*visitors, *late]] == [True, False, True, False, False, False]
    for each in (visitors[0], visitors[2], *visitors[3:], *late):
        await each.leave()
    assert gate.inside == 0


async def test_while_it_is_shut_nobody_goes_in_and_those_inside_are_waited_for() -> None:
    time = 10.0
    gate = Gate(now=lambda: time)
    first, second = await arrive(gate, 2)

    with gate.shut():
        late = await arrive(gate, 2)
        emptied = asyncio.create_task(gate.empty())
        await first.leave()
        await settle()
        assert (gate.is_shut, emptied.done()) == (True, False)
        await second.leave()
        await emptied
        time = 13.0
        assert gate.shut_s == 3.0
        assert [each.is_in for each in late] == [False, False]
    await settle()

    assert [each.is_in for each in late] == [True, True]
    time = 20.0
    assert (gate.is_shut, gate.shut_s) == (False, 3.0)
    for each in late:
        await each.leave()


async def test_who_gives_up_in_line_takes_nobodys_place() -> None:
    gate = Gate()
    gate.places = 1
    first, second, third, fourth = await arrive(gate, 4)

    second.task.cancel()
    await settle()
    # The third is let in, and gives up before it has noticed.
    gate._leave()
    third.task.cancel()
    await settle()

    assert (third.is_in, fourth.is_in, gate.inside) == (False, True, 1)
    gate.inside += 1  # as it was taken from the first above
    for each in (first, fourth):
        await each.leave()
    assert gate.inside == 0


async def test_a_gate_that_nobody_is_behind_is_empty_at_once() -> None:
    async with asyncio.timeout(5):
        await Gate().empty()
