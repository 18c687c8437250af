"""Rewards from a service: batches, failures, time limits, and a service that is down."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from reward_http import Judge, Reply, judging
from worker_scene import World, eventually, made_world

from headrace.cli.credentials import make_credentials
from headrace.config.rollout import RewardConfig
from headrace.errors import UsageError
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import Score, Scoring
from headrace.rollout.rewards.make import check_rewards
from headrace.rollout.rewards.remote import GATHER_S, HttpRewards
from headrace.rollout.rewards.retry_after import LONGEST_S, retry_after_s
from headrace.rpc.waits import Waits

EXAMPLE = Path(__file__).parents[2] / "examples" / "reward_server.py"


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.time += seconds
        await asyncio.sleep(0)


class Bench:
    """Rewards under test, their clock and their waits."""

    def __init__(self, url: str, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.waits = Waits(now=clock.now, stall_after_s=60)
        self.rewards = HttpRewards(
            RewardConfig.model_validate({"kind": "http", "url": url, **settings}),
            waits=self.waits,
            now=clock.now,
            wall=lambda: 1_000_000_000.0,
            sleep=clock.sleep,
            jitter=lambda: 1.0,
        )

    def score(self, *responses: str) -> asyncio.Task[list[Score | RewardError]]:
        scorings = [Scoring("p", text, "a", '{"k": 1}', "stop", "src") for text in responses]
        return asyncio.create_task(self.rewards.score(scorings))

    @property
    def wait(self) -> Any:
        [wait] = self.waits.snapshot()
        return wait


@asynccontextmanager
async def bench(url: str, **settings: Any) -> AsyncIterator[Bench]:
    made = Bench(url, Clock(), **settings)
    await made.rewards.start()
    try:
        yield made
    finally:
        await made.rewards.close()


@pytest_asyncio.fixture
async def judge() -> AsyncIterator[Judge]:
    async with judging() as made:
        yield made


def rewards_of(scores: list[Score | RewardError]) -> list[float | str]:
    return [each.reward if isinstance(each, Score) else str(each) for each in scores]


async def test_all_sessions_of_a_group_travel_in_one_call_with_all_that_is_known(
    judge: Judge,
) -> None:
    async with bench(judge.url) as made:
        scores = await made.score("x", "xx", "xxx")

    assert rewards_of(scores) == [1.0, 2.0, 3.0]
    assert len(judge.calls) == 1
    assert judge.calls[0][1] == {
        "prompt": "p", "response": "xx", "answer": "a", "metadata": {"k": 1},
        "finish_reason": "stop", "data_source": "src",
    }  # fmt: skip
    assert judge.headers[0]["content-type"] == "application/json"
    assert "authorization" not in judge.headers[0]


async def test_groups_that_wait_while_calls_are_under_way_share_the_next_one(judge: Judge) -> None:
    judge.gate.clear()
    async with bench(judge.url, http={"max_calls": 1, "max_batch": 5}) as made:
        first = made.score("a")
        await judge.called.wait()
        others = [made.score("b", "bb"), made.score("c", "cc"), made.score("d", "dd")]
        await asyncio.sleep(0)
        judge.gate.set()
        assert [rewards_of(await each) for each in others] == [[1, 2], [1, 2], [1, 2]]
        assert rewards_of(await first) == [1]

    assert judge.responses == [["a"], ["b", "bb", "c", "cc"], ["d", "dd"]]
    assert judge.most_at_once == 1


async def test_calls_go_beside_each_other_up_to_the_limit(judge: Judge) -> None:
    judge.gate.clear()
    async with bench(judge.url, http={"max_calls": 2, "max_batch": 1}) as made:
        scores = [made.score("x") for _ in range(5)]
        await eventually(lambda: len(judge.calls) == 2)
        judge.gate.set()
        await asyncio.gather(*scores)

    assert (len(judge.calls), judge.most_at_once) == (5, 2)


async def test_scores_have_parts_and_errors_of_their_own(judge: Judge) -> None:
    judge.replies.append(
        Reply(
            body=b'[1, {"reward": 0.5, "parts": {"format": 1}}, {"error": "no\\nsandbox"}, "1", NaN, '
            b'{"reward": 1, "exact": 1}, {"parts": {}}, {"reward": 1, "parts": [1]}, true, 1e999]'
        )
    )
    async with bench(judge.url) as made:
        scores = await made.score(*"abcdefghij")

    assert scores[:2] == [Score(1.0, {}), Score(0.5, {"format": 1.0})]
    assert str(scores[2]) == "the reward service says: no sandbox"
    assert scores[8] == Score(1.0, {})
    assert all(isinstance(scores[i], RewardError) for i in (2, 3, 4, 5, 6, 7, 9))
    assert "unknown keys ['exact']" in str(scores[5])


@pytest.mark.parametrize(
    ("failure", "pauses"),
    [
        (Reply(500, b"oops"), [0.2, 0.4]),
        (Reply(503, b""), [0.2, 0.4]),
        (Reply(429, b""), [0.2, 0.4]),
        (Reply(hangs_up=True), [0.2, 0.4]),
        (Reply(503, b"", ("Retry-After: 7",)), [7, 7]),
        (Reply(429, b"", ("Retry-After: Sun, 09 Sep 2001 01:46:50 GMT",)), [10, 10]),
    ],
)
async def test_what_may_pass_is_tried_again_after_a_pause(
    judge: Judge, failure: Reply, pauses: list[float]
) -> None:
    judge.replies += [failure, failure]
    async with bench(judge.url) as made:
        assert rewards_of(await made.score("xx")) == [2.0]

    assert len(judge.calls) == 3
    assert sum(made.clock.slept) - GATHER_S == pytest.approx(sum(pauses))
    assert not made.waits.snapshot()


async def test_tries_are_bounded_and_the_last_failure_is_told(judge: Judge) -> None:
    judge.reply = lambda items: Reply(500, b"out of\nmemory")
    async with bench(judge.url, http={"max_tries": 3}) as made:
        [error] = await made.score("x")

    assert isinstance(error, RewardError)
    assert str(error) == f"{judge.url} answered 500 Said: out of memory, 3 times"
    assert len(judge.calls) == 3


async def test_a_call_that_hangs_is_an_error_once_its_time_is_over(judge: Judge) -> None:
    judge.replies.append(Reply(hangs=True))
    async with bench(judge.url, timeout_s=0.2) as made:
        [error] = await made.score("x")
        assert str(error) == f"{judge.url} did not answer within 0.2 s"
        assert rewards_of(await made.score("x")) == [1.0]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(400, b"no field `prompt`"), "answered 400 Said: no field `prompt`"),
        (Reply(401, b""), "answered 401 Said"),
        (Reply(302, b"", ("Location: /other",)), "answered 302 Said"),
        (Reply(body=b"<html>"), "its answer is not JSON"),
        (Reply(body={"scores": [1]}), "its answer is not a list"),
        (Reply(body=[1, 2, 3]), "its answer has 3 items for 1 responses"),
        (Reply(body=[]), "its answer has 0 items for 1 responses"),
    ],
)
async def test_an_answer_that_is_no_scores_is_an_error_at_once_and_never_a_zero(
    judge: Judge, reply: Reply, why: str
) -> None:
    judge.reply = lambda items: reply
    async with bench(judge.url) as made:
        [error] = await made.score("x")

    assert isinstance(error, RewardError)
    assert str(error).startswith(judge.url)
    assert why in str(error)
    assert len(judge.calls) == 1


@pytest.mark.parametrize("guilty", [Reply(400, b"bad"), Reply(body=[]), Reply(hangs=True)])
async def test_only_the_guilty_group_of_a_shared_call_fails(judge: Judge, guilty: Reply) -> None:
    judge.reply = lambda items: (
        guilty if any(item["response"] == "bad" for item in items) else Reply()
    )
    judge.gate.clear()
    async with bench(judge.url, timeout_s=0.5, http={"max_calls": 1}) as made:
        first = made.score("a")
        await judge.called.wait()
        groups = [made.score("b", "bb"), made.score("c", "bad"), made.score("d")]
        await asyncio.sleep(0)
        judge.gate.set()
        scores = [await each for each in (first, *groups)]

    assert [rewards_of(each) for each in (scores[0], scores[1], scores[3])] == [[1], [1, 2], [1]]
    assert all(isinstance(each, RewardError) for each in scores[2])
    assert judge.responses[1:] == [["b", "bb", "c", "bad", "d"], ["b", "bb"], ["c", "bad"], ["d"]]


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


async def test_a_service_that_is_not_there_yet_is_waited_for(judge: Judge) -> None:
    async with judging() as gone:
        port = int(gone.url.split(":")[2].split("/")[0])
    async with bench(gone.url, http={"max_tries": 100_000}) as made:
        score = made.score("x")
        await eventually(made.waits.snapshot)
        wait = made.wait
        async with judging(port=port) as come:
            assert rewards_of(await score) == [1.0]

    assert "ConnectError" in wait.ends_when
    assert len(come.calls) == 1


async def test_a_token_is_read_anew_for_each_call(judge: Judge, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    async with bench(judge.url, http={"token_file": str(file)}) as made:
        await made.score("x")
        file.write_text("second\n")
        await made.score("x")
        file.unlink()
        [error] = await made.score("x")

    assert [headers["authorization"] for headers in judge.headers] == [
        "Bearer first", "Bearer second",
    ]  # fmt: skip
    assert "reward.http.token_file" in str(error)


async def test_a_service_is_checked_against_the_certificates_that_are_given(tmp_path: Path) -> None:
    made = make_credentials(tmp_path, (), days=1, force=False, now=datetime.now(UTC))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.cert, made.key)
    async with judging(ssl=context) as judge:
        async with bench(judge.url, http={"ca_file": str(made.ca)}) as trusting:
            assert rewards_of(await trusting.score("xx")) == [2.0]
        async with bench(judge.url, http={"max_tries": 1}) as distrusting:
            [error] = await distrusting.score("xx")

    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert len(judge.calls) == 1


@pytest.mark.parametrize(
    ("key", "content", "why"),
    [
        ("token_file", None, "reward.http.token_file: .* cannot be read"),
        ("token_file", "", "does not hold one token"),
        ("token_file", "two tokens", "does not hold one token"),
        ("ca_file", None, "reward.http.ca_file: .* no certificates that can be read"),
        ("ca_file", "nothing", "reward.http.ca_file: .* no certificates that can be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_before_anything_starts(
    key: str, content: str | None, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    config = RewardConfig.model_validate(
        {"kind": "http", "url": "http://127.0.0.1:1", "http": {key: str(file)}}
    )

    with pytest.raises(UsageError, match=why):
        check_rewards(config)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, 0), ("0", 0), ("12", 12), ("1000000", LONGEST_S), ("-3", 0), ("soon", 0),
        ("Sun, 09 Sep 2001 01:46:45 GMT", 5), ("Sun, 09 Sep 2001 01:46:35 GMT", 0),
    ],
)  # fmt: skip
def test_the_header_retry_after_is_understood(given: str | None, seconds: float) -> None:
    assert retry_after_s(given, wall=1_000_000_000.0) == seconds


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
