"""Weights on their way into vLLM servers: all of them, once, by whoever comes first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from vllm_bench import Clock, request, running, spans
from vllm_http import Plan, Reply, VllmServer, publish, serving
from worker_scene import eventually

from headrace.rollout.engines.base import EngineError, EngineLostError
from headrace.rollout.engines.probe import ProbeError
from headrace.rollout.engines.vllm_server.tag import Tag


def updates(server: VllmServer) -> list[str]:
    """The calls of updates, in order."""
    steps = {
        "/pause", "/resume", "/start_weight_update", "/update_weights", "/finish_weight_update",
    }  # fmt: skip
    return [call.path for call in server.calls if call.path in steps]


ONE_UPDATE = [
    "/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume",
]  # fmt: skip


async def test_every_server_has_the_weights_when_they_are_loaded(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    first, second = publish(tmp_path, 0), publish(tmp_path, 1)
    async with running(pair, first, second) as engine:
        for server in pair:
            assert server.life.label == server.life.loaded == str(Tag.of(second))
            assert updates(server) == ONE_UPDATE * 2
            assert server.life.mode is None
            assert server.life.owner == ""
        assert engine.status().probe_gap == pytest.approx(0)


async def test_workers_that_share_a_server_bring_it_a_version_once(
    server: VllmServer, tmp_path: Path
) -> None:
    weights = publish(tmp_path, 0)
    async with running([server]) as one, running([server]) as other:
        await asyncio.gather(one.load(weights), other.load(weights))
        for engine in (one, other):
            [sample] = await asyncio.gather(*engine.generate([request()]))
            assert len(sample.response.token_ids) == 12

    assert updates(server) == ONE_UPDATE


async def test_responses_are_finished_by_their_weights_before_others_come(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=4)
    async with running([server], publish(tmp_path, 0), stream_interval=2) as engine:
        old, new = request("a"), request("b")
        first = engine.generate([old])
        await eventually(lambda: server.at_once)
        load = asyncio.create_task(engine.load(publish(tmp_path, 1)))
        await eventually(lambda: server.life.mode == "wait")
        second = engine.generate([new])
        await asyncio.sleep(0.05)
        assert not load.done()
        server.gate.set()
        await asyncio.gather(load, *first, *second)

    assert spans(old) == [("l0", 0, 0, 12)]
    assert spans(new) == [("l0", 1, 0, 12)]


async def test_responses_that_go_on_with_newer_weights_say_which_made_what(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=5)
    settings = {"partial": True, "stream_interval": 3, "look_every_s": 1}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        asked = request()
        [future] = engine.generate([asked])
        await eventually(lambda: len(asked.response.token_ids) == 4)
        await engine.load(publish(tmp_path, 1))
        server.gate.set()
        await future

    assert [call.query["mode"] for call in server.calls if call.path == "/pause"] == ["keep"] * 2
    assert spans(asked) == [("l0", 0, 0, 5), ("l0", 1, 5, 12)]


async def test_nothing_is_seen_of_weights_that_were_not_tried(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=5)
    settings = {"partial": True, "stream_interval": 3, "look_every_s": 1}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        asked = request(limit=30)
        [future] = engine.generate([asked])
        await eventually(lambda: len(asked.response.token_ids) == 4)
        load = asyncio.create_task(engine.load(publish(tmp_path, 1, wrong=True)))
        await eventually(lambda: ":1:" in server.life.label)
        server.gate.set()
        with pytest.raises(ProbeError):
            await load
        with pytest.raises(EngineLostError):
            await future

        assert engine.status().generated_token_count == 30
        assert spans(asked) == [("l0", 0, 0, 4)]


async def test_a_drain_that_takes_too_long_changes_nothing(
    server: VllmServer, tmp_path: Path
) -> None:
    weights = publish(tmp_path, 0)
    async with running([server], weights):
        pass  # it has them
    server.plan = Plan(hold_after=4)
    async with running([server], weights, drain_s=0.2) as engine:
        [future] = engine.generate([request()])
        await eventually(lambda: server.at_once)
        with pytest.raises(EngineError, match="/pause did not answer within"):
            await engine.load(publish(tmp_path, 1))
        server.gate.set()
        await future
        assert server.life.mode is None


async def test_files_that_are_not_what_was_published_are_refused_and_the_old_weights_stay(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0)) as engine:
        damaged = publish(tmp_path, 1)
        (Path(damaged.uri) / "model.safetensors").write_text("weights 2")

        with pytest.raises(EngineError, match=r"refuses version 1: .*SHA-256 is") as caught:
            await engine.load(damaged)

        assert not caught.value.weights_lost
        assert updates(server) == ONE_UPDATE
        asked = request()
        await asyncio.gather(*engine.generate([asked]))
        assert spans(asked) == [("l0", 0, 0, 12)]


async def test_a_probe_that_was_changed_is_refused(server: VllmServer, tmp_path: Path) -> None:
    async with running([server]) as engine:
        weights = publish(tmp_path, 0)
        path = Path(weights.uri) / "probe.json"
        path.write_text(path.read_text().replace("-0.4", "-0.3"))

        with pytest.raises(EngineError, match="has other bytes than were published"):
            await engine.load(weights)

    assert not updates(server)


async def test_a_server_that_computes_something_else_is_not_used(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0)) as engine:
        with pytest.raises(ProbeError, match=r"differ from the trainer's by 0\.1 nats") as caught:
            await engine.load(publish(tmp_path, 1, wrong=True))

        assert caught.value.weights_lost
        assert engine.status().probe_gap == pytest.approx(0.1)
        [future] = engine.generate([request()])
        with pytest.raises(EngineLostError, match="no server can be used"):
            await future
        await engine.load(publish(tmp_path, 2))
        await asyncio.gather(*engine.generate([request()]))


async def test_a_server_that_cannot_have_the_weights_is_left_out_until_it_can(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    lame, sound = pair
    async with running(pair, publish(tmp_path, 0)) as engine:
        lame.replies["/update_weights"] = Reply(500, {"error": "no memory"})
        await engine.load(publish(tmp_path, 1))
        assert lame.life.mode is not None, "it has half of its weights"
        asked = [request(f"e0r{row}") for row in range(4)]
        await asyncio.gather(*engine.generate(asked))

        assert [spans(each) for each in asked] == [[("l0", 1, 0, 12)]] * 4
        assert not lame.generated()
        assert engine.status().room == 256
        lame.replies.clear()
        await eventually(lambda: engine.status().room == 512)
        assert lame.life.label == sound.life.label
        assert lame.life.mode is None


async def test_if_no_server_can_have_the_weights_each_is_named(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    lost: list[str] = []
    async with running(pair, publish(tmp_path, 0), look_every_s=10_000) as engine:
        engine.when_lost(lambda: lost.append("lost"))
        await pair[0].kill()
        pair[1].replies["/update_weights"] = Reply(500, {"error": "no memory"})
        with pytest.raises(EngineError) as caught:
            await engine.load(publish(tmp_path, 1))

    said = str(caught.value)
    assert said.startswith("no server has version 1: ")
    assert f"127.0.0.1:{pair[0].port}" in said
    assert "ConnectError" in said
    assert f"127.0.0.1:{pair[1].port}/update_weights answered 500 Said" in said
    assert caught.value.weights_lost
    assert lost == ["lost"]


async def test_a_server_that_was_started_again_gets_its_weights_before_it_is_used(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    weights = publish(tmp_path, 4)
    async with running(pair, weights, look_every_s=1) as engine:
        await pair[0].kill()
        await pair[0].open()
        await eventually(lambda: pair[0].life.label == str(Tag.of(weights)))
        await eventually(lambda: engine.status().room == 512)
        asked = [request(f"e0r{row}") for row in range(6)]
        await asyncio.gather(*engine.generate(asked))

    assert {tuple(spans(each)) for each in asked} == {(("l0", 4, 0, 12),)}
    assert len(pair[0].generated()) == 3


async def test_a_server_that_answers_as_another_is_left_until_it_is_itself_again(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0), look_every_s=1) as engine:
        server.replies["/weight_info"] = Reply(200, {"welcome": "to somebody else"})
        await eventually(lambda: engine.status().room == 0)
        del server.replies["/weight_info"]
        await eventually(lambda: engine.status().room == 256)


async def test_a_turn_whose_renewal_failed_is_renewed(server: VllmServer, tmp_path: Path) -> None:
    def renewals() -> int:
        return sum("headrace_renew_turn" in str(call.body) for call in server.calls)

    server.plan = Plan(hold_after=4)
    async with running([server], publish(tmp_path, 0)) as engine:
        [future] = engine.generate([request()])
        await eventually(lambda: server.at_once)
        loading = asyncio.create_task(engine.load(publish(tmp_path, 1)))
        await eventually(lambda: server.life.mode == "wait")
        server.replies["/collective_rpc"] = Reply(hangs_up=True)
        before = renewals()
        await eventually(lambda: renewals() > before + 1)  # each is sent twice
        del server.replies["/collective_rpc"]
        await eventually(lambda: renewals() > before + 3)
        server.gate.set()
        await asyncio.gather(future, loading)


async def test_what_weights_of_nobody_made_is_sampled_again(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    async with running(pair, publish(tmp_path, 4), look_every_s=10_000) as engine:
        await pair[0].kill()
        await pair[0].open()
        asked = [request(f"e0r{row}") for row in range(4)]
        await asyncio.gather(*engine.generate(asked))

    assert {tuple(spans(each)) for each in asked} == {(("l0", 4, 0, 12),)}
    assert pair[0].generated(), "it was asked, and its answer was not taken"


async def test_the_last_server_takes_the_weights_with_it_and_nobody_waits(
    server: VllmServer, tmp_path: Path
) -> None:
    lost = asyncio.Event()
    weights = publish(tmp_path, 0)
    server.plan = Plan(hold_after=4)
    async with running([server], weights, max_requests_in_flight=1) as engine:
        engine.when_lost(lost.set)
        futures = engine.generate([request(session=session) for session in range(3)])
        await eventually(lambda: server.at_once)
        await server.kill()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] != []
        assert all(isinstance(outcome, EngineLostError) for outcome in outcomes)
        assert lost.is_set()
        with pytest.raises(EngineError, match="ConnectError"):
            await engine.load(weights)

        server.plan = Plan()
        await server.open()
        await engine.load(weights)
        await asyncio.gather(*engine.generate([request()]))


async def test_a_server_that_is_not_there_at_the_start_is_waited_for(tmp_path: Path) -> None:
    async with serving(2) as pair:
        await pair[0].kill()
        async with running(pair, publish(tmp_path, 0)) as engine:
            assert engine.status().room == 256
            await pair[0].open()
            await eventually(lambda: engine.status().room == 512)


async def test_a_worker_that_died_in_an_update_leaves_its_turn_to_the_next(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0)) as engine:
        server._headrace_take_turn("dead", "0.3")
        server.life.updating, server.life.loaded, server.life.mode = True, "", "keep"

        await engine.load(publish(tmp_path, 1))

        assert not server.life.updating
        [sample] = await asyncio.gather(*engine.generate([request()]))
        assert sample.response.weight_spans[0].version == 1


async def test_weights_that_another_worker_brought_count_when_this_one_has_tried_them(
    server: VllmServer, tmp_path: Path
) -> None:
    old, new = publish(tmp_path, 0), publish(tmp_path, 1)
    async with running([server], old) as behind, running([server], old) as ahead:
        await ahead.load(new)
        asked = request()
        [future] = behind.generate([asked])
        await eventually(lambda: server.generated() and not server.at_once)
        await asyncio.sleep(0.05)
        assert not future.done()
        assert len(asked.response.token_ids) < 12
        await behind.load(new)
        await future

        assert spans(asked) == [("l0", 1, 0, 12)]
        with pytest.raises(EngineError, match="has version 1 already"):
            await behind.load(old)


async def test_weights_of_another_line_take_the_place_of_later_ones(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 7)) as engine:
        await engine.load(publish(tmp_path, 5, lineage="l1"))
        asked = request()
        await asyncio.gather(*engine.generate([asked]))

    assert spans(asked) == [("l1", 5, 0, 12)]


async def test_a_server_that_another_worker_brings_weights_is_neither_lost_nor_trusted(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0), look_every_s=1) as engine:
        loaded = server.life.loaded
        server.life.mode, server.life.loaded = "keep", ""
        asked = request()
        [future] = engine.generate([asked])
        await eventually(lambda: server.counts["/is_paused"] > 3)
        server.life.mode, server.life.loaded = None, loaded
        await server._changed()
        await future

        assert engine.status().room == 256


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_server_that_a_dead_worker_has_left_paused_is_set_going_again(
    loaded: bool, server: VllmServer, tmp_path: Path
) -> None:
    clock, lost = Clock(), asyncio.Event()
    settings: Any = {"silence_s": 10, "look_every_s": 1, "now": clock, "sleep": clock.sleep}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        engine.when_lost(lost.set)
        server._headrace_take_turn("dead", "0.1")
        server.life.mode = "keep"
        server.life.loaded *= loaded
        [future] = engine.generate([request()])
        await eventually(lost.is_set)
        with pytest.raises(EngineLostError):
            await future
        await eventually(lambda: engine.status().room)
        [sample] = await asyncio.gather(*engine.generate([request()]))

        assert sample.response.weight_spans[0].version == 0
        assert server.life.mode is None
