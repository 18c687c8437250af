"""Sampling at vLLM servers: what is asked, what is made of the answers, and of those that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from vllm_bench import Clock, engine_of, hasty, request, running, spans
from vllm_http import EOS, LOGPROB, TOKEN, Plan, Reply, VllmServer, publish
from worker_scene import eventually

from headrace.errors import UsageError
from headrace.rollout.engines.base import EngineError, EngineLoad, EngineLostError
from headrace.rollout.engines.vllm_server.facts import COMMAND, GENERATE
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP


async def failure(engine: Any, asked: Any) -> BaseException:
    [future] = engine.generate([asked])
    with pytest.raises(EngineError) as caught:
        await future
    return caught.value


async def test_a_sequence_is_drawn_by_temperature_alone_and_is_what_the_server_says(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 3)) as engine:
        asked = request()
        [sample] = await asyncio.gather(*engine.generate([asked]))

    assert sample.response is asked.response
    assert sample.finish_reason == FINISH_REASON_LENGTH
    assert asked.response.token_ids == [TOKEN] * 12
    assert asked.response.logprobs == [LOGPROB] * 12
    assert spans(asked) == [("l0", 3, 0, 12)]
    [call] = server.generated()
    assert call.body["token_ids"] == [2, 3]
    assert call.body["sampling_params"] == {
        "temperature": 0.7, "max_tokens": 12, "stop_token_ids": [EOS], "ignore_eos": True,
        "logprobs": 0, "stream_interval": 16, "detokenize": False, "n": 1, "top_p": 1.0,
        "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }  # fmt: skip
    assert engine.status().generated_token_count == 12
    assert engine.status().aborted_token_count == 0


async def test_the_stop_token_ends_a_sequence(server: VllmServer, tmp_path: Path) -> None:
    server.plan = Plan(stop_after=5)
    async with running([server], publish(tmp_path, 0)) as engine:
        [sample] = await asyncio.gather(*engine.generate([request()]))

    assert sample.finish_reason == FINISH_REASON_STOP
    assert sample.response.token_ids == [TOKEN] * 4 + [EOS]


async def test_a_response_goes_on_behind_its_prefix(server: VllmServer, tmp_path: Path) -> None:
    first, second = publish(tmp_path, 0), publish(tmp_path, 1)
    async with running([server], first, second) as engine:
        asked = request()
        asked.response.extend([8, 9], [-1.0, -2.0], first.id)
        await asyncio.gather(*engine.generate([asked]))

    assert asked.response.token_ids == [8, 9] + [TOKEN] * 10
    assert asked.response.logprobs == [-1.0, -2.0] + [LOGPROB] * 10
    assert spans(asked) == [("l0", 0, 0, 2), ("l0", 1, 2, 12)]
    [call] = server.generated()
    assert call.body["token_ids"] == [2, 3, 8, 9]
    assert call.body["sampling_params"]["max_tokens"] == 10


async def test_a_response_grows_while_it_is_sampled_and_is_whole_only_with_its_end(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=7)
    settings = {"stream_interval": 3, "look_every_s": 1}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        asked = request()
        [future] = engine.generate([asked])
        await eventually(lambda: len(asked.response.token_ids) == 7)
        assert spans(asked) == [("l0", 0, 0, 7)]
        lengths = set()
        server.gate.set()
        while not future.done():
            lengths.add(len(asked.response.token_ids))
            await asyncio.sleep(0)

    assert len(asked.response.token_ids) == 12
    assert 12 not in lengths


async def test_a_sequence_that_is_cancelled_leaves_the_server(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=7)
    async with running([server], publish(tmp_path, 0), stream_interval=3) as engine:
        asked = request()
        [future] = engine.generate([asked])
        await eventually(lambda: engine.status().generated_token_count == 7)
        future.cancel()
        await eventually(lambda: server.given_up)

        assert future.cancelled()
        assert engine.status().aborted_token_count == 7
        assert engine.status().generated_token_count == 7
        server.gate.set()
        server.plan = Plan()
        await asyncio.gather(*engine.generate([request()]))


def _without(key: str) -> Any:
    return lambda choice: choice.update({key: None})


def _spoil_last(**change: Any) -> Any:
    def spoil(choice: dict[str, Any]) -> None:
        if choice["finish_reason"]:
            choice.update(change)

    return spoil


def _no_number(choice: dict[str, Any]) -> None:
    choice["logprobs"]["content"][-1]["logprob"] = -9999.0


def _one_token_less(choice: dict[str, Any]) -> None:
    if choice["finish_reason"]:
        choice["token_ids"].pop()
        choice["logprobs"]["content"].pop()


def _one_logprob_less(choice: dict[str, Any]) -> None:
    choice["logprobs"]["content"].pop()


def _other_tokens(choice: dict[str, Any]) -> None:
    choice["logprobs"]["content"][0]["token_id"] = TOKEN + 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without("logprobs"), "log-probabilities of 0 tokens beside"),
        (_one_logprob_less, "log-probabilities of"),
        (_other_tokens, "log-probabilities of"),
        (_no_number, "without a log-probability"),
        (_one_token_less, "ended by 'length' with 11 tokens of at most 12"),
        (_spoil_last(finish_reason="stop"), "ended by 'stop' with 12 tokens"),
        (_spoil_last(finish_reason="repetition"), "ended by 'repetition'"),
        (_spoil_last(weight_versions=None), "12 tokens, and weights of"),
        (_spoil_last(weight_versions=[]), "12 tokens, and weights of"),
        (lambda choice: choice.pop("token_ids"), "an event that cannot be read"),
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error_and_never_a_short_response(
    spoil: Any, said: str, server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(spoil=spoil)
    settings = {"stream_interval": 5, "look_every_s": 10_000}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        asked = request()
        error = await failure(engine, asked)

        assert not isinstance(error, EngineLostError)
        assert said in str(error)
        assert asked.response.token_ids == []
        status = engine.status()
        assert status.generated_token_count == status.aborted_token_count


async def test_more_tokens_than_were_asked_for_are_an_error(
    server: VllmServer, tmp_path: Path
) -> None:
    def add(choice: dict[str, Any]) -> None:
        choice["token_ids"].append(TOKEN)
        choice["logprobs"]["content"].append({"token_id": TOKEN, "logprob": LOGPROB})

    server.plan = Plan(spoil=add)
    async with running([server], publish(tmp_path, 0)) as engine:
        assert "with 14 tokens of at most 12" in str(await failure(engine, request()))


async def test_a_request_that_the_server_refuses_is_its_own_error_and_says_nothing_of_the_server(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0), eject_after=1) as engine:
        server.replies[GENERATE] = Reply(400, {"error": "too long"})
        error = await failure(engine, request())
        del server.replies[GENERATE]
        await asyncio.gather(*engine.generate([request()]))

    assert not isinstance(error, EngineLostError)
    assert '400 Said: {"error": "too long"}' in str(error)


async def test_a_server_that_fails_and_lives_has_an_error_of_its_engine(
    server: VllmServer, tmp_path: Path
) -> None:
    async with running([server], publish(tmp_path, 0)) as engine:
        server.replies[GENERATE] = Reply(500, {"error": "out of memory"})
        error = await failure(engine, request())
        del server.replies[GENERATE]
        server.plan = Plan(spoil=lambda choice: choice.clear())
        await failure(engine, request())
        server.plan = Plan()
        await asyncio.gather(*engine.generate([request()]))

    assert not isinstance(error, EngineLostError)
    assert "out of memory" in str(error)


async def test_a_server_whose_engine_is_dead_is_left_at_once(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    lame, sound = pair
    async with running(pair, publish(tmp_path, 0)) as engine:
        lame.replies = {GENERATE: Reply(500, {}), "/health": Reply(503, {})}
        await asyncio.gather(*engine.generate([request("a"), request("b"), request("c")]))

        assert len(lame.generated()) <= 2
        assert len(sound.generated()) == 3
        assert engine.status().room == 256


@pytest.mark.parametrize("eject_after", [1, 3])
async def test_what_a_dead_server_has_not_begun_is_sampled_by_another(
    eject_after: int, pair: list[VllmServer], tmp_path: Path
) -> None:
    async with running(pair, publish(tmp_path, 0), eject_after=eject_after) as engine:
        await pair[0].kill()
        asked = [request(f"e0r{row}") for row in range(8)]
        samples = await asyncio.gather(*engine.generate(asked))

    assert [len(sample.response.token_ids) for sample in samples] == [12] * 8
    assert len(pair[1].generated()) == 8


async def test_what_a_server_had_begun_when_it_died_is_handed_back_and_blames_nobody(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    pair[0].plan = Plan(hold_after=7)
    settings = {"stream_interval": 3, "look_every_s": 1}
    async with running(pair, publish(tmp_path, 0), **settings) as engine:
        asked = request()
        [future] = engine.generate([asked])
        await eventually(lambda: len(asked.response.token_ids) == 7)
        await pair[0].kill()
        with pytest.raises(EngineLostError):
            await future

        assert asked.response.token_ids == [TOKEN] * 7
        assert spans(asked) == [("l0", 0, 0, 7)]
        assert not pair[1].generated()
        assert engine.status().aborted_token_count == 7


async def test_what_nobody_has_seen_of_a_dead_server_is_sampled_anew_by_another(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    pair[0].plan = Plan(break_after=7)
    settings = {"stream_interval": 3, "look_every_s": 10_000}
    async with running(pair, publish(tmp_path, 0), **settings) as engine:
        asked = request()
        await asyncio.gather(*engine.generate([asked]))

        assert spans(asked) == [("l0", 0, 0, 12)]
        assert pair[1].generated()
        assert engine.status().aborted_token_count == 7
        assert engine.status().generated_token_count == 19


async def test_nothing_is_seen_of_a_server_that_was_started_again(
    server: VllmServer, tmp_path: Path
) -> None:
    look_s, looks = 0.7, asyncio.Event()

    async def sleep(seconds: float) -> None:
        await (looks.wait() if seconds == look_s else hasty(seconds))

    settings: Any = {"stream_interval": 3, "look_every_s": look_s, "sleep": sleep}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        await server.kill()
        await server.open()
        server.plan = Plan(hold_after=7)
        asked = request()
        [future] = engine.generate([asked])
        await eventually(lambda: engine.status().generated_token_count == 7)
        looks.set()
        with pytest.raises(EngineLostError, match="it has weights of nobody"):
            await future
        assert asked.response.token_ids == []


async def test_an_answer_that_somebody_aborted_is_handed_back(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(stop_after=5, spoil=_spoil_last(finish_reason="abort"))
    async with running([server], publish(tmp_path, 0), stream_interval=3) as engine:
        error = await failure(engine, request())

    assert isinstance(error, EngineLostError)
    assert "broke off after 5 tokens" in str(error)


async def test_a_server_that_hangs_is_left_and_its_sequences_are_handed_back(
    server: VllmServer, tmp_path: Path
) -> None:
    server.plan = Plan(hold_after=4)
    lost: list[str] = []
    async with running(
        [server], publish(tmp_path, 0), stream_interval=2, silence_s=0.3, look_every_s=1
    ) as engine:
        engine.when_lost(lambda: lost.append("lost"))
        error = await failure(engine, request())

        assert isinstance(error, EngineLostError)
        assert "sent nothing for 0.3 s" in str(error)
        assert lost == ["lost"]


async def test_what_a_server_was_asked_before_it_was_left_does_not_wait_for_it_for_good(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    gone, _ = pair
    settings = {"silence_s": 2, "look_every_s": 1, "stream_interval": 3, "eject_after": 1}
    async with running(pair, publish(tmp_path, 0), **settings) as engine:
        for server in pair:
            server.plan = Plan(hold_after=7)
        futures = engine.generate([request(f"e0r{row}") for row in range(2)])
        await eventually(lambda: engine.status().generated_token_count == 14)
        gone.replies["/health"] = Reply(503)
        pair[1].gate.set()
        outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 30)

    [lost] = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert isinstance(lost, EngineLostError)
    assert "answered 503" in str(lost)


async def test_a_server_that_is_paused_does_not_hang(server: VllmServer, tmp_path: Path) -> None:
    clock = Clock()
    server.plan = Plan(hold_after=4)
    settings: Any = {"silence_s": 10, "look_every_s": 1, "now": clock, "sleep": clock.sleep}
    async with running([server], publish(tmp_path, 0), **settings) as engine:
        [future] = engine.generate([request()])
        await eventually(lambda: server.at_once)
        server.life.mode = "keep"
        await eventually(lambda: server.counts["/is_paused"] > 3)
        server.life.mode = None
        server.gate.set()
        await future


async def test_requests_of_a_group_stay_together_and_groups_go_where_there_is_least_to_do(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    for server in pair:
        server.plan = Plan(hold_after=1)
    async with running(pair, publish(tmp_path, 0)) as engine:
        asked = [request(f"e0r{row}", session) for row in range(4) for session in range(4)]
        futures = engine.generate(asked)
        await eventually(lambda: sum(server.at_once for server in pair) == 16)
        for server in pair:
            server.gate.set()
        await asyncio.gather(*futures)

    for server in pair:
        groups = [call.body["request_id"].split("-")[0] for call in server.generated()]
        assert len(groups) == 8
        assert len(set(groups)) == 2


async def test_no_server_gets_more_than_it_may_and_none_is_idle_while_others_wait(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    for server in pair:
        server.plan = Plan(hold_after=1)
    async with running(pair, publish(tmp_path, 0), max_requests_in_flight=3) as engine:
        futures = engine.generate([request(session=session) for session in range(20)])
        futures[-1].cancel()
        await eventually(lambda: [server.at_once for server in pair] == [3, 3])
        futures[0].cancel()
        for server in pair:
            server.gate.set()
        await asyncio.gather(*futures, return_exceptions=True)

        assert [server.most_at_once for server in pair] == [3, 3]
        assert sum(future.cancelled() for future in futures) == 2
        assert engine.status().room == 6


def _says(server: VllmServer, running: int, queries: int) -> None:
    names = {
        "num_requests_running": running, "num_requests_waiting": 2, "kv_cache_usage_perc": 0.5,
        "num_preemptions_total": 0, "prefix_cache_queries_total": queries,
        "prefix_cache_hits_total": 1,
    }  # fmt: skip
    server.metrics = "".join(f'vllm:{name}{{engine="0"}} {n}\n' for name, n in names.items())


async def test_how_busy_the_servers_are_is_asked_with_each_look(
    pair: list[VllmServer], tmp_path: Path
) -> None:
    for server in pair:
        _says(server, running=3, queries=10)
    async with running(pair, publish(tmp_path, 0), look_every_s=1, eject_after=1) as engine:
        assert engine.status().load is None
        await eventually(lambda: engine.status().load == EngineLoad(6, 4, 0.5, 0, 20, 2))
        pair[0].replies["/metrics"] = Reply(404)
        _says(pair[1], running=5, queries=30)
        await eventually(lambda: engine.status().load == EngineLoad(8, 4, 0.5, 0, 40, 2))
        await pair[1].kill()
        await eventually(lambda: engine.status().load == EngineLoad(3, 2, 0.25, 0, 40, 2))
        assert engine.status().room


async def test_the_key_is_sent_with_every_call(server: VllmServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    async with running([server], publish(tmp_path, 0), api_key_file=tmp_path / "key") as engine:
        await asyncio.gather(*engine.generate([request()]))

    assert {call.headers.get("authorization") for call in server.calls} == {"Bearer secret"}


async def unfit(server: VllmServer) -> str:
    engine = engine_of([server])
    with pytest.raises(UsageError) as caught:
        await engine.start()
    await engine.close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/inference/v1/abort_requests", 403, "--enable-scale-out is missing"),
        ("/inference/v1/abort_requests", 404, "--enable-scale-out is missing"),
        ("/server_info", 404, "VLLM_SERVER_DEV_MODE is not 1"),
    ],
)
async def test_a_server_that_lacks_an_endpoint_is_refused_with_how_to_start_it(
    path: str, status: int, said: str, server: VllmServer
) -> None:
    server.replies[path] = Reply(status, {})

    found = await unfit(server)

    assert found.startswith(f"127.0.0.1:{server.port}: ")
    assert said in found
    assert found.endswith(f"Start it so: {COMMAND}")


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("model_config", "logprobs_mode", "raw_logprobs", "--logprobs-mode is raw_logprobs"),
        (
            "model_config",
            "generation_config",
            "auto",
            "--generation-config is auto, it must be vllm",
        ),
        ("model_config", "override_generation_config", {"top_p": 0.5}, "it must not be given"),
        ("parallel_config", "worker_extension_cls", "", "--worker-extension-cls is not given"),
        ("weight_transfer_config", "backend", "nccl", "--weight-transfer-config is nccl"),
        (None, "speculative_config", {"method": "ngram"}, "--speculative-config is {'method'"),
        (None, "watermark_config", {"alpha": 0.5}, "--watermark-config is {'alpha': 0.5}, it must"),
        (None, "kv_transfer_config", {"kv_connector": "Some"}, "--kv-offloading-size is {'kv_conn"),
    ],
)
async def test_a_server_that_was_started_otherwise_is_refused_with_how_to_start_it(
    section: str | None, key: str, value: Any, said: str, server: VllmServer
) -> None:
    (server.config if section is None else server.config[section])[key] = value

    found = await unfit(server)

    assert said in found
    assert COMMAND in found


async def test_a_server_with_too_little_room_is_refused(server: VllmServer) -> None:
    server.config["model_config"]["max_model_len"] = 63

    assert "take up to 64 positions, the server has 63" in await unfit(server)


async def test_a_server_that_refuses_the_key_is_named(server: VllmServer) -> None:
    server.replies["/inference/v1/abort_requests"] = Reply(401, {})

    assert "rollout.engine.api_key_file" in await unfit(server)


@pytest.mark.parametrize("section", ["model_config", "weight_transfer_config"])
async def test_a_server_that_nobody_knows_the_form_of_is_refused(
    section: str, server: VllmServer
) -> None:
    server.config[section] = "of another kind"

    assert "/server_info is not what vLLM 0.32 says of itself" in await unfit(server)
