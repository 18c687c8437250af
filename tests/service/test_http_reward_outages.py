"""A reward service that is down, a worker beside one, and the one in examples/."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ports import free_port
from reward_bench import bench, rewards_of
from reward_http import Judge, Reply, judging
from worker_scene import World, eventually, made_world

from headrace.config.rollout import RewardConfig
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import Score
from headrace.rollout.rewards.remote import GATHER_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "reward_server.py"


@pytest_asyncio.fixture
async def judge() -> AsyncIterator[Judge]:
    async with judging() as made:
        yield made


async def test_a_circuit_opens_holds_calls_back_by_name_and_closes_with_a_probe(
    judge: Judge,
) -> None:
    judge.reply = lambda items: Reply(503, b"loading")
    judge.gate.clear()
    settings = {"max_calls": 3, "max_batch": 1, "open_after": 1, "max_tries": 20}
    async with bench(judge.url, http=settings) as made:
        scores = [made.score("x" * length) for length in range(1, 4)]
        await eventually(lambda: judge.at_once == 3)
        judge.gate.set()
        await eventually(lambda: made.waits.snapshot() and not judge.at_once)
        judge.gate.clear()
        await eventually(lambda: judge.at_once)
        for _ in range(50):  # time enough for the others, if they were not held
            await made.clock.sleep(100)
        probes, wait = judge.at_once, made.wait
        judge.reply = lambda items: Reply()
        judge.gate.set()
        found = [rewards_of(await each) for each in scores]

    assert found == [[1.0], [2.0], [3.0]]
    assert probes == 1
    assert (wait.name, wait.owner) == ("reward service", judge.url.split("/")[2])
    assert wait.ends_when == f"a probe is answered; last: {judge.url} answered 503 Said: loading"
    assert not made.waits.snapshot()


async def test_one_wait_lasts_for_a_whole_outage_and_its_pauses_grow(judge: Judge) -> None:
    judge.replies += [Reply(500, b"")] * 8
    async with bench(judge.url, http={"open_after": 2, "max_tries": 20}) as made:
        assert rewards_of(await made.score("x")) == [1.0]

    assert len(judge.calls) == 9
    pauses_s = 1 + 2 + 4 + 8 + 16 + 30 + 30
    assert made.waits.waited_s == {"reward service": pytest.approx(pauses_s)}


async def test_no_wait_is_left_of_calls_that_were_given_up(judge: Judge) -> None:
    judge.reply = lambda items: Reply(500, b"")
    async with bench(judge.url, http={"open_after": 1, "max_tries": 2}) as made:
        [error] = await made.score("x")

        assert isinstance(error, RewardError)
        assert not made.waits.snapshot()


async def test_what_was_given_up_meanwhile_is_not_sent_again(judge: Judge) -> None:
    async with bench(judge.url) as made:
        score = made.score("x")

        def fail(items: object) -> Reply:
            score.cancel()
            return Reply(500, b"")

        judge.reply = fail
        with pytest.raises(asyncio.CancelledError):
            await score
        judge.reply = lambda items: Reply()
        assert rewards_of(await made.score("yy")) == [2.0]

    assert judge.responses == [["x"], ["yy"]]


async def test_calls_that_hang_open_the_circuit(judge: Judge) -> None:
    judge.replies += [Reply(hangs=True)] * 2
    async with bench(judge.url, http={"open_after": 2}) as made:
        judge.hung = made.clock.run_out
        for _ in range(2):
            [error] = await made.score("x")
            assert isinstance(error, RewardError)
        assert rewards_of(await made.score("x")) == [1.0]

    assert made.waits.waited_s == {"reward service": pytest.approx(1.0 - GATHER_S)}


async def test_a_service_that_is_not_there_yet_is_waited_for() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/score"
    async with bench(url, http={"max_tries": 100_000}) as made:
        score = made.score("x")
        await eventually(made.waits.snapshot)
        wait = made.wait
        async with judging(port=port) as come:
            assert rewards_of(await score) == [1.0]

    assert "ConnectError" in wait.ends_when
    assert len(come.calls) == 1


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with made_world(tmp_path) as made:
        yield made


async def test_a_worker_fails_the_group_with_the_services_words_and_then_goes_on(
    judge: Judge, world: World
) -> None:
    judge.replies.append(Reply(422, b"unknown task"))
    world.ledger.feed("e0r0")
    await world.publish(0)
    await world.start(reward=RewardConfig(kind="http", url=judge.url))
    await world.ledger.until(lambda: world.ledger.is_whole("e0r0"))

    [ended] = world.ledger.ended_leases
    assert "answered 422 Said: unknown task" in ended.error
    assert all(record.reward > 0 for record in world.ledger.sessions["e0r0"].values())


async def test_a_worker_that_goes_home_does_not_wait_for_the_service(
    judge: Judge, world: World
) -> None:
    judge.reply = lambda items: Reply(hangs=True)
    world.ledger.feed("e0r0")
    await world.publish(0)
    await world.start(reward=RewardConfig(kind="http", url=judge.url, timeout_s=1000))
    await judge.called.wait()
    await world.stop()

    assert [ended.lease.uid for ended in world.ledger.ended_leases] == ["e0r0"]


async def test_the_example_server_scores(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), "--port", "0", "--token-file", str(token),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        async with bench(url, http={"token_file": str(token)}) as made:
            [right, wrong] = await made.score("a", "b")
        async with bench(url) as made:
            [refused] = await made.score("a")
    finally:
        process.kill()
        await process.wait()

    assert right == Score(1.0, {"exact": 1.0, "length": 1.0})
    assert isinstance(wrong, Score)
    assert wrong.reward < 1.0
    assert "answered 401" in str(refused)
