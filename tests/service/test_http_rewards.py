"""Rewards from a service: batches, tries, time limits, tokens, and answers of all kinds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from reward_bench import bench, rewards_of
from reward_http import Judge, Reply, judging
from worker_scene import eventually

from headrace.cli.credentials import make_credentials
from headrace.config.rollout import RewardConfig
from headrace.errors import UsageError
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import Score, Scoring
from headrace.rollout.rewards.make import check_rewards, make_rewards
from headrace.rollout.rewards.remote import GATHER_S
from headrace.rollout.rewards.retry_after import LONGEST_S, retry_after_s
from headrace.rpc.waits import Waits

EXAMPLE = Path(__file__).parents[2] / "examples" / "reward_server.py"


@pytest_asyncio.fixture
async def judge() -> AsyncIterator[Judge]:
    async with judging() as made:
        yield made


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
        judge.hung = made.clock.run_out
        [error] = await made.score("x")
        assert str(error) == f"{judge.url} did not answer within 0.2 s"
        assert rewards_of(await made.score("x")) == [1.0]


async def test_the_time_of_a_call_passes_by_itself(judge: Judge) -> None:
    judge.reply = lambda items: Reply(hangs=True)
    config = RewardConfig(kind="http", url=judge.url, timeout_s=0.2)
    rewards = make_rewards(config, Waits(stall_after_s=60))
    await rewards.start()
    [error] = await rewards.score([Scoring("p", "x", "a", "{}", "stop", "src")])
    await rewards.close()

    assert str(error) == f"{judge.url} did not answer within 0.2 s"


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
    async with bench(judge.url, http={"max_calls": 1}) as made:
        judge.hung = made.clock.run_out
        first = made.score("a")
        await judge.called.wait()
        groups = [made.score("b", "bb"), made.score("c", "bad"), made.score("d")]
        await asyncio.sleep(0)
        judge.gate.set()
        scores = [await each for each in (first, *groups)]

    assert [rewards_of(each) for each in (scores[0], scores[1], scores[3])] == [[1], [1, 2], [1]]
    assert all(isinstance(each, RewardError) for each in scores[2])
    assert judge.responses[1:] == [["b", "bb", "c", "bad", "d"], ["b", "bb"], ["c", "bad"], ["d"]]


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
