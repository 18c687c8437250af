"""Looking after vLLM servers: what is silence, whose pause it is, and who is let in again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from vllm_bench import Clock, engine_of, hasty, request, running, spans
from vllm_http import Plan, Reply, VllmServer, publish
from worker_scene import eventually

from headrace.rollout.engines.base import EngineError, EngineLostError
from headrace.rollout.engines.vllm_server.facts import GENERATE
from headrace.rollout.engines.vllm_server.tag import Tag
from headrace.rpc.waits import Waits


async def asked(server: VllmServer, path: str, times: int = 1) -> None:
    """Wait until a server was asked for something some more times."""
    before = server.counts[path]
    await eventually(lambda: server.counts[path] >= before + times)


async def test_the_log_says_when_a_server_is_used_and_when_no_more(
    server: VllmServer, tmp_path: Path
) -> None:
    weights = publish(tmp_path, 0)
    with capture_logs() as logs:
        async with running([server], weights, look_every_s=1, eject_after=1) as engine:
            await server.kill()
            await eventually(lambda: not engine.status().room)
            await server.open()
            await engine.load(weights)  # as a worker does that has lost its weights
            await engine.load(publish(tmp_path, 1))

    told = [line["event"] for line in logs if line["event"].startswith("server_")]
    assert [each for each in told if each != "server_still_out"] == [
        "server_found", "server_admitted", "server_ejected", "server_admitted",
    ]  # fmt: skip


async def test_it_is_named_what_servers_are_waited_for(server: VllmServer, tmp_path: Path) -> None:
    waits = Waits(stall_after_s=60)

    def named() -> list[tuple[str, str]]:
        return [(wait.name, wait.ends_when) for wait in waits.snapshot()]

    engine = engine_of([server], waits=waits)
    for path, work, name, ends_when in [
        ("/version", engine.start(), "servers to say what they are", ""),
        (
            "/pause", engine.load(publish(tmp_path, 3)),
            "servers to take weights", "each has version 3, or is left out",
        ),
    ]:  # fmt: skip
        server.held[path] = asyncio.Event()
        working = asyncio.create_task(work)
        await asked(server, path)
        assert named() == [(name, ends_when)]
        server.held[path].set()
        await working
        assert not named()
    await engine.close()


async def test_a_server_that_loads_what_another_worker_brings_is_not_silent(
    server: VllmServer, tmp_path: Path
) -> None:
    clock = Clock()
    server.plan = Plan(hold_after=4)
    lost: list[str] = []
    async with running([server], publish(tmp_path, 0), look_every_s=1, now=clock) as engine:
        engine.when_lost(lambda: lost.append("lost"))
        [future] = engine.generate([request()])
        await eventually(lambda: server.at_once)
        server.held["/collective_rpc"] = asyncio.Event()
        await asked(server, "/collective_rpc")
        clock.time += 250  # it loads
        server.held.pop("/collective_rpc").set()
        await asked(server, "/health", times=2)
        assert not lost
        server.gate.set()
        await future

    assert not lost


async def test_a_server_is_not_silent_while_it_is_brought_weights(
    server: VllmServer, tmp_path: Path
) -> None:
    clock = Clock()
    server.plan = Plan(hold_after=4)
    lost: list[str] = []
    settings: Any = {"partial": True, "look_every_s": 1, "now": clock}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        engine.when_lost(lambda: lost.append("lost"))
        sampled = request()
        [future] = engine.generate([sampled])
        await eventually(lambda: server.at_once)
        server.held["/update_weights"] = asyncio.Event()
        loading = asyncio.create_task(engine.load(publish(tmp_path, 1)))
        await asked(server, "/update_weights")
        clock.time += 250
        server.held.pop("/update_weights").set()
        await loading
        await asked(server, "/health", times=2)
        assert not lost
        server.gate.set()
        await future

    assert spans(sampled) == [("l0", 0, 0, 4), ("l0", 1, 4, 12)]


async def test_a_server_that_neither_sends_nor_answers_hangs_however_often_it_may_fail(
    server: VllmServer, tmp_path: Path
) -> None:
    clock = Clock()
    server.plan = Plan(hold_after=4)
    settings: Any = {"look_every_s": 1, "eject_after": 1000, "now": clock}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        [future] = engine.generate([request()])
        await eventually(lambda: server.at_once)
        server.replies["/collective_rpc"] = Reply(503)
        await asked(server, "/collective_rpc", times=2)
        assert not future.done()
        clock.time += 121

        with pytest.raises(EngineLostError, match=r"sent nothing for 120 s, and .* answered 503"):
            await future


async def test_a_pause_that_is_over_does_not_count_when_the_next_one_is_seen(
    server: VllmServer, tmp_path: Path
) -> None:
    clock = Clock()
    lost: list[str] = []
    async with running([server], publish(tmp_path, 0), look_every_s=1, now=clock) as engine:
        engine.when_lost(lambda: lost.append("lost"))
        for _ in range(2):  # another worker brings weights
            server.life.mode, loaded, server.life.loaded = "keep", server.life.loaded, ""
            await asked(server, "/is_paused", times=2)
            server.life.mode, server.life.loaded = None, loaded
            await asked(server, "/health", times=2)
            clock.time += 1000

    assert not lost


async def test_a_server_that_was_started_again_unnoticed_is_looked_at_before_it_gets_weights(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0), look_every_s=10_000) as engine:
        await server.kill()
        server.config["model_config"]["logprobs_mode"] = "raw_logprobs"
        await server.open()

        with pytest.raises(EngineError, match="--logprobs-mode is raw_logprobs"):
            await engine.load(publish(tmp_path, 1))

    assert server.life.label == "default"


async def test_weights_do_not_wait_for_a_server_that_is_out(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    hung, sound = pair
    settings: Any = {"look_every_s": 1, "eject_after": 1}
    async with running(pair, publish(tmp_path, 0), **settings) as engine:
        hung.held["/version"] = asyncio.Event()
        hung.replies["/health"] = Reply(503)
        await eventually(lambda: engine.status().room == 256)
        await asyncio.wait_for(engine.load(publish(tmp_path, 1)), 20)
        assert ":1:" in sound.life.label
        assert ":0:" in hung.life.label

        hung.replies.clear()
        hung.held.pop("/version").set()
        await eventually(lambda: hung.life.label == sound.life.label)
        await eventually(lambda: engine.status().room == 512)


async def test_a_server_that_was_admitted_while_others_still_take_their_weights_stays(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    quick, slow = pair
    async with running(pair, publish(tmp_path, 0)) as engine:
        slow.held["/update_weights"] = asyncio.Event()
        quick.replies["/update_weights"] = Reply(500, {"error": "no memory"})
        loading = asyncio.create_task(engine.load(publish(tmp_path, 1)))
        await eventually(lambda: engine.status().room == 256)
        quick.replies.clear()
        await eventually(lambda: engine.status().room == 512)
        slow.held.pop("/update_weights").set()
        await loading

        assert engine.status().room == 512


async def test_a_server_that_is_left_while_its_weights_are_tried_is_used_again_if_they_are_right(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=4, break_after=5)
    settings: Any = {"partial": True, "look_every_s": 10_000, "eject_after": 1}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        [future] = engine.generate([request()])
        await eventually(lambda: server.at_once)
        server.held[GENERATE] = asyncio.Event()
        loading = asyncio.create_task(engine.load(publish(tmp_path, 1)))
        await asked(server, GENERATE)
        server.gate.set()
        await eventually(lambda: not engine.status().room)
        server.held.pop(GENERATE).set()
        await loading
        assert engine.status().room == 256
        assert isinstance(future.exception(), EngineLostError)


async def test_a_mistake_of_the_watch_does_not_end_it(server: VllmServer, tmp_path: Path) -> None:
    look_s, mistakes = 0.7, ["of ours"]

    async def sleep(seconds: float) -> None:
        await hasty(seconds)
        if seconds == look_s and mistakes:
            raise RuntimeError(mistakes.pop())

    settings: Any = {"look_every_s": look_s, "sleep": sleep}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        await eventually(lambda: not mistakes)
        await asked(server, "/health", times=2)
        assert engine.status().room == 256


async def test_weights_that_were_replaced_while_they_were_tried_are_neither_right_nor_wrong(
    server: VllmServer, tmp_path: Path
) -> None:
    first, second = publish(tmp_path, 0), publish(tmp_path, 1)
    async with running([server]) as behind, running([server]) as ahead:
        server.held[GENERATE] = asyncio.Event()
        trying = asyncio.create_task(behind.load(first))
        await asked(server, GENERATE)
        bringing = asyncio.create_task(ahead.load(second))
        await eventually(lambda: server.life.loaded == str(Tag.of(second)))
        server.held.pop(GENERATE).set()

        with pytest.raises(EngineError, match="other weights while version 0 was tried"):
            await trying
        await bringing
        await behind.load(second)


async def test_nothing_is_seen_of_an_answer_that_broke_off_while_its_weights_were_replaced(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=7, break_after=8)
    settings: Any = {"stream_interval": 3, "look_every_s": 10_000}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        sampled = request()
        [future] = engine.generate([sampled])
        await eventually(lambda: engine.status().generated_token_count == 7)
        server.held["/update_weights"] = asyncio.Event()
        loading = asyncio.create_task(engine.load(publish(tmp_path, 1)))
        await eventually(lambda: server.life.mode == "wait")
        server.plan = Plan()
        server.gate.set()
        await eventually(lambda: len(server.generated()) == 2)
        server.held.pop("/update_weights").set()
        await asyncio.gather(loading, future)

    assert spans(sampled) == [("l0", 1, 0, 12)]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("headrace_check", {"welcome": "to somebody else"}),
        ("headrace_take_turn", {"welcome": "to somebody else"}),
        ("headrace_take_turn", {"owner": []}),
        ("headrace_weights", {"tag": []}),
    ],
)
async def test_a_server_whose_answers_cannot_be_read_is_looked_after_all_the_same(
    method: str, answer: dict[str, Any], server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0), look_every_s=1, eject_after=1) as engine:
        await server.kill()
        await eventually(lambda: not engine.status().room)
        setattr(server, f"_{method}", lambda *_: answer)
        await server.open()
        await asked(server, "/collective_rpc", times=8)
        delattr(server, f"_{method}")
        await eventually(lambda: engine.status().room)


async def test_an_engine_can_be_closed_while_a_server_is_brought_weights_and_goes_away(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0), look_every_s=1, eject_after=1) as engine:
        await server.kill()
        await eventually(lambda: not engine.status().room)
        server.held["/update_weights"] = asyncio.Event()
        await server.open()
        await asked(server, "/update_weights")
        server.replies["/collective_rpc"] = Reply(503)

        await asyncio.wait_for(engine.close(), 30)


async def test_a_turn_that_comes_to_one_who_was_cancelled_is_given_up(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0)) as engine:
        loading = asyncio.create_task(engine.load(publish(tmp_path, 1)))

        def give_and_cancel(owner: str, seconds: str) -> Any:
            loading.cancel()
            return VllmServer._headrace_take_turn(server, owner, seconds)

        setattr(server, "_headrace_take_turn", give_and_cancel)  # noqa: B010
        await asyncio.wait([loading])

        assert loading.cancelled()
        assert server.life.owner == ""


async def test_what_is_cancelled_when_the_last_server_goes_is_cancelled(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=4)
    settings: Any = {"max_requests_in_flight": 1, "look_every_s": 10_000}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        first, waiting = engine.generate([request(session=session) for session in range(2)])

        def hand_back() -> None:
            waiting.cancel()

        engine.when_lost(hand_back)
        await eventually(lambda: server.at_once)
        await server.kill()
        await asyncio.wait([first, waiting])

    assert isinstance(first.exception(), EngineLostError)
    assert waiting.cancelled()
