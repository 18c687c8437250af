"""What has a vLLM: who learns of its death, and what ends with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.rollout.engines.base import EngineLostError
from headrace.rollout.engines.vllm_keeper import Keeper
from headrace.rpc.waits import Waits

SILENCE_S = 60.0


class Life:
    """A vLLM that lives as long as it is told, and takes its time to end."""

    def __init__(self) -> None:
        self.is_dead = False
        self.silent_s = 0.0
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.is_closed = False

    async def close(self) -> None:
        await self.may_close.wait()
        self.is_closed = True


def keeper_of(life: Any, lost: list[str] | None = None, waits: Waits | None = None) -> Keeper:
    keeper = Keeper("vllm", silence_s=SILENCE_S, waits=waits or Waits(stall_after_s=60))
    if lost is not None:
        keeper.when_lost(lambda: lost.append("lost"))
    keeper.have(life)
    return keeper


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("fault", ["dead", "silent"])
async def test_a_vllm_that_is_over_takes_along_what_waits_for_it(fault: str) -> None:
    lost: list[str] = []
    life: Any = Life()
    keeper = keeper_of(life, lost)

    async def waiting() -> None:
        with keeper.inside():
            await forever()

    inside = asyncio.create_task(waiting())
    updating = asyncio.create_task(keeper.within(life, forever()))
    await asyncio.sleep(0)
    life.is_dead, life.silent_s = fault == "dead", SILENCE_S if fault == "silent" else 0.0
    await asyncio.wait([inside, updating])

    assert inside.cancelled()
    assert isinstance(updating.exception(), EngineLostError)
    assert keeper.life is None
    assert lost == ["lost"]
    await keeper.ended()
    assert life.is_closed


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_vllm_that_is_given_up_was_lost_if_it_had_died(is_dead: bool) -> None:
    lost: list[str] = []
    life: Any = Life()
    keeper = keeper_of(life, lost)
    life.is_dead = is_dead  # nobody has looked since
    await keeper.end()

    assert lost == ["lost"] * is_dead
    assert life.is_closed


async def test_who_asks_something_of_a_vllm_that_is_gone_is_told_at_once() -> None:
    life: Any = Life()
    keeper = keeper_of(life)
    keeper.lose(life, "died")

    with pytest.raises(EngineLostError):
        await keeper.within(life, forever())


async def test_what_was_done_is_no_business_of_a_later_death() -> None:
    lost: list[str] = []
    life: Any = Life()
    keeper = keeper_of(life, lost)
    with keeper.inside():
        pass
    await keeper.within(life, asyncio.sleep(0))

    keeper.lose(life, "died")
    keeper.lose(life, "died")
    await asyncio.sleep(0)

    assert lost == ["lost"]


async def test_a_vllm_that_is_given_up_is_no_loss_and_the_next_one_waits_for_its_end() -> None:
    lost: list[str] = []
    first, second = Life(), Life()
    first.may_close.clear()
    waits = Waits(stall_after_s=60)
    keeper = keeper_of(first, lost, waits)
    ending = asyncio.create_task(keeper.end())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(keeper.ended())
    await asyncio.sleep(0)
    assert keeper.life is None
    assert not waiting.done()
    assert {(wait.name, wait.owner) for wait in waits.snapshot()} == {("vLLM to end", "vllm")}
    first.may_close.set()
    await asyncio.gather(ending, waiting)
    assert first.is_closed
    assert waits.snapshot() == []

    keeper.have(second)  # type: ignore[arg-type]
    first.is_dead = True
    keeper.lose(first, "died")  # type: ignore[arg-type]

    assert keeper.life is second
    assert lost == []
    await keeper.end()
