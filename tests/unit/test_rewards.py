from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace.config.rollout import RewardConfig
from headrace.errors import UsageError
from headrace.rollout.rewards import pool as pool_module
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import (
    TOLD,
    RewardSpec,
    Score,
    Scoring,
    as_score,
    exact_match,
    make_scorer,
    positional,
)
from headrace.rollout.rewards.make import check_rewards
from headrace.rollout.rewards.pool import RewardPool

USER_MODULE = """
import os, time

if os.path.exists("no memory"):
    os._exit(9)
while os.path.exists("no answer"):
    time.sleep(0.1)

def strange(*, prompt, response, answer, metadata, finish_reason, bonus=0.0):
    if response == "hang":
        while True:
            pass
    if response == "die":
        os._exit(7)
    if response == "raise":
        raise RuntimeError("two\\nlines")
    if response == "nan":
        return float("nan")
    if response == "slow":
        time.sleep(0.6)
    return {"reward": len(response) + bonus, "pid": os.getpid(), "given": metadata["given"]}
"""


WRAPPED = """
import functools
heard = set()
def inner(response, answer):
    return 1.0
@functools.wraps(inner)
def score(WRAPPER):
    told = dict(locals())
    for more in ("kwargs", "more"):
        told.update(told.pop(more, {}))
    told.pop("args", None)
    heard.update(told)
    return 1.0
"""


def scoring(response: str, *, answer: str = "1257", finish_reason: str = "stop") -> Scoring:
    return Scoring("5172>", response, answer, '{"given": 3}', finish_reason)


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"user_rewards_{random.Random(str(tmp_path)).getrandbits(32)}"
    (tmp_path / f"{name}.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    return name


@pytest_asyncio.fixture
async def pool(user_module: str) -> AsyncIterator[RewardPool]:
    config = RewardConfig(
        kind="python", function=f"{user_module}:strange", timeout_s=2, options={"bonus": 0.5}
    )
    made = RewardPool(config)
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("response", "reward"), [("1257", 1.0), (" 1257\n", 1.0), ("1275", 0.0), ("", 0.0)]
)
def test_exact_match_wants_the_answer_and_nothing_else(response: str, reward: float) -> None:
    assert exact_match(scoring(response)).reward == reward


@pytest.mark.parametrize(
    ("response", "finish_reason", "reward"),
    [
        ("1257", "stop", 1.0),
        ("1257", "length", 0.4),  # four of five positions: the stop is missing
        ("1275", "stop", 0.3),  # two digits and the stop
        ("12", "stop", 0.2),  # stopped too early
        ("12577", "stop", 0.4),  # stopped too late
        ("", "stop", 0.0),
    ],
)
def test_positional_counts_right_positions_and_the_stop(
    response: str, finish_reason: str, reward: float
) -> None:
    found = positional(scoring(response, finish_reason=finish_reason))

    assert found.reward == pytest.approx(reward)


def test_reasoning_gym_scores_its_own_rows_whatever_way_the_entry_travels() -> None:
    reasoning_gym = pytest.importorskip("reasoning_gym")
    entry = reasoning_gym.create_dataset("chain_sum", size=3, seed=5)[1]
    entry["metadata"]["difficulty"] = None
    scorer = make_scorer(RewardSpec("reasoning_gym"))
    for carried in ({"entry": entry}, {"entry_literal": repr(entry)}):
        row = {"reasoning_gym": {"name": "chain_sum", "options": {}, **carried}}
        right = Scoring("", f" {entry['answer']}\n", "", json.dumps(row), "stop")
        wrong = Scoring("", "no", "", json.dumps(row), "stop")

        assert scorer(right).reward == 1.0
        assert scorer(wrong).reward < 1.0


@pytest.mark.parametrize(
    ("response", "reward", "answered"),
    [
        ("I add. <answer> 94*4 - 61 - 6 </answer>", 1.0, 1.0),
        ("<answer>1</answer> No: <answer>94*4 - 61 - 6</answer> it is", 1.0, 1.0),
        ("<answer>1 + 1</answer>", 0.05, 1.0),
        ("94*4 - 61 - 6", 0.0, 0.0),
        ("<answer>94*4 - 61 - 6", 0.0, 0.0),
    ],
)
def test_an_answer_between_tags_is_found_and_no_answer_is_worth_nothing(
    response: str, reward: float, answered: float
) -> None:
    reasoning_gym = pytest.importorskip("reasoning_gym")
    entry = reasoning_gym.create_dataset("countdown", size=1, seed=1)[0]
    entry["metadata"]["difficulty"] = None
    assert entry["answer"] == "94*4 - 61 - 6"
    row = {"reasoning_gym": {"name": "countdown", "options": {}, "entry": entry}}
    scorer = make_scorer(RewardSpec("reasoning_gym", answer_tag="answer"))

    found = scorer(Scoring("", response, "", json.dumps(row), "stop"))

    assert found == Score(reward, {"answered": answered})


@pytest.mark.parametrize("value", ["1", None, float("inf"), {"exact": 1}, {"reward": "x"}, [1]])
def test_what_is_no_number_is_no_score(value: object) -> None:
    with pytest.raises(ValueError, match="score"):
        as_score(value)


def test_a_score_may_be_any_number_or_have_parts() -> None:
    assert as_score(True) == Score(1.0, {})
    assert as_score({"reward": 2, "format": 0.5}) == Score(2.0, {"format": 0.5})


async def test_many_are_scored_in_one_process_in_order(pool: RewardPool) -> None:
    found = await pool.score([scoring("x" * length) for length in range(600)])

    scores = [each for each in found if isinstance(each, Score)]
    assert [score.reward for score in scores] == [length + 0.5 for length in range(600)]
    assert len({score.parts["pid"] for score in scores}) == 1
    assert scores[0].parts["pid"] != os.getpid()
    assert scores[0].parts["given"] == 3


@pytest.mark.parametrize(
    ("guilty", "error"),
    [
        ("hang", "took longer than 2 s"),
        ("die", "exit code 7"),
        ("raise", "RuntimeError: two lines"),
        ("nan", "finite"),
    ],
)
async def test_only_the_guilty_scoring_fails(pool: RewardPool, guilty: str, error: str) -> None:
    found = await pool.score([scoring(text) for text in ("a", "b", guilty, "c")])

    assert [each.reward for each in found if isinstance(each, Score)] == [1.5, 1.5, 1.5]
    [failed] = [each for each in found if isinstance(each, RewardError)]
    assert found.index(failed) == 2
    assert error in str(failed)
    assert "\n" not in str(failed)
    assert isinstance((await pool.score([scoring("a")]))[0], Score)


async def test_processes_that_end_at_their_start_are_an_error_of_each_scoring(
    pool: RewardPool, tmp_path: Path
) -> None:
    no_memory = tmp_path / "no memory"
    no_memory.touch()
    found = await pool.score([scoring("die"), scoring("a")])
    no_memory.unlink()

    assert [str(each) for each in found] == ["the scoring processes end before they score"] * 2
    assert isinstance((await pool.score([scoring("a")]))[0], Score)


@pytest.mark.parametrize(
    ("fault", "limit_s", "said"),
    [("no memory", 120.0, "ended its process"), ("no answer", 2.0, "took longer than 2 s")],
)
async def test_a_function_whose_module_cannot_be_imported_in_a_process_is_said(
    fault: str,
    limit_s: float,
    said: str,
    user_module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_IMPORT_TIMEOUT_S", limit_s)
    (tmp_path / fault).touch()
    unusable = RewardPool(RewardConfig(kind="python", function=f"{user_module}:strange"))
    try:
        with pytest.raises(UsageError, match=rf"importing reward\.function {said}"):
            await unusable.start()
    finally:
        await unusable.close()


async def test_a_process_that_hangs_at_its_start_ends_itself(
    user_module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_IMPORT_TIMEOUT_S", 2.0)
    no_answer = tmp_path / "no answer"
    no_answer.touch()
    pool = RewardPool(RewardConfig(kind="python", function=f"{user_module}:strange"))
    try:
        found = await pool.score([scoring("a")])
        no_answer.unlink()

        assert [str(each) for each in found] == ["the scoring processes end before they score"]
        assert isinstance((await pool.score([scoring("a")]))[0], Score)
    finally:
        await pool.close()


async def test_a_call_that_a_pool_forgets_as_it_is_given_up_is_asked_again(
    pool: RewardPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = pool._pool
    answers: Iterator[RuntimeError | Future[Any]] = iter([RuntimeError("no pool"), Future()])

    def schedule(*_args: object, **_how: object) -> Future[Any]:
        broken.stop()  # between the look at it and the call
        answer = next(answers)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    for _ in range(2):
        monkeypatch.setattr(broken, "schedule", schedule)
        [score] = await pool.score([scoring("a")])
        assert isinstance(score, Score)
        broken = pool._pool


async def test_scorings_that_are_slow_together_are_each_within_the_limit(pool: RewardPool) -> None:
    found = await pool.score([scoring("slow") for _ in range(6)])

    assert all(isinstance(each, Score) for each in found)
    assert len({each.parts["pid"] for each in found if isinstance(each, Score)}) == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [("no_such_module_here:f", "cannot import no_such_module_here"), ("json:nope", "no function")],
)
async def test_a_function_that_cannot_be_used_is_said_before_anything_starts(
    function: str, message: str
) -> None:
    unusable = RewardPool(RewardConfig(kind="python", function=function))
    try:
        with pytest.raises(UsageError, match=message):
            await unusable.start()
    finally:
        await unusable.close()


@pytest.mark.parametrize(
    ("signature", "told"),
    [
        ("response", {"response": "1257"}),
        ("*, data_source, answer='x'", {"data_source": "easy", "answer": "1257"}),
        ("bonus, finish_reason", {"bonus": 0.5, "finish_reason": "stop"}),
        (
            "prompt, **more",
            {
                "prompt": "5172>", "response": "1257", "answer": "1257", "metadata": {"given": 3},
                "finish_reason": "stop", "data_source": "easy",
            },
        ),
    ],
)  # fmt: skip
def test_a_function_is_told_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signature: str, told: dict[str, Any]
) -> None:
    names = told_module(tmp_path, monkeypatch, signature)
    options = {"bonus": 0.5} if "bonus" in told else {}
    scorer = make_scorer(RewardSpec("python", f"{names}:score", options))
    module = sys.modules[names]

    scorer(replace(scoring("1257"), data_source="easy"))

    more = module.heard.pop("more", {})
    assert {**module.heard, **more} == told


@pytest.mark.parametrize(
    ("wrapper", "told"),
    [
        ("*args, **kwargs", {"response", "answer"}),
        ("response, **more", set(TOLD)),
        ("response, finish_reason", {"response", "finish_reason"}),
    ],
)
def test_of_a_decorated_function_what_is_called_says_what_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapper: str, told: set[str]
) -> None:
    name = f"wrapped_{random.Random(str(tmp_path)).getrandbits(32)}"
    (tmp_path / f"{name}.py").write_text(WRAPPED.replace("WRAPPER", wrapper))
    monkeypatch.chdir(tmp_path)

    make_scorer(RewardSpec("python", f"{name}:score"))(scoring("1257"))

    assert sys.modules[name].heard == told


@pytest.mark.parametrize(
    ("signature", "options", "says"),
    [
        ("response, reference", {}, "missing a required argument: 'reference'; there are prompt,"),
        ("response", {"bonus": 1}, "unexpected keyword argument 'bonus'"),
        ("response, /", {}, "cannot be called"),
        ("response, answer", {"answer": "a"}, "reward.options: answer is what each response"),
    ],
)
def test_a_function_that_cannot_be_told_so_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signature: str,
    options: dict[str, Any],
    says: str,
) -> None:
    function = f"{told_module(tmp_path, monkeypatch, signature)}:score"
    with pytest.raises(UsageError, match=re.escape(says)):
        check_rewards(RewardConfig(kind="python", function=function, options=options))


def told_module(directory: Path, monkeypatch: pytest.MonkeyPatch, signature: str) -> str:
    """Write a module whose `score` keeps what it was called with in `heard`; give its name."""
    name = f"told_{random.Random(str(directory)).getrandbits(32)}"
    lines = [
        "heard = {}",
        f"def score({signature}):",
        "    heard.update(locals())",
        "    return 1.0",
    ]
    (directory / f"{name}.py").write_text("\n".join(lines))
    monkeypatch.chdir(directory)
    return name


PARENT = """
import asyncio, sys
from headrace.config.rollout import RewardConfig
from headrace.rollout.rewards.pool import RewardPool
from headrace.rollout.rewards.functions import Scoring

async def main():
    pool = RewardPool(RewardConfig(kind="python", function=sys.argv[1], timeout_s=60))
    await pool.start()
    [score] = await pool.score([Scoring("", "a", "", '{"given": 0}', "stop")])
    print(int(score.parts["pid"]), flush=True)
    await pool.score([Scoring("", "hang", "", '{"given": 0}', "stop")])

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_scoring_that_hangs_does_not_outlive_a_killed_worker(user_module: str) -> None:
    Path("parent.py").write_text(PARENT)
    command = [sys.executable, "parent.py", f"{user_module}:strange"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()

    deadline = time.monotonic() + 20
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
