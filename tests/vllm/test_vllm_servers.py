"""Real vLLM servers: the same log-probabilities as transformers, whatever happens to them."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import probed
import pytest
import vllm_http
from safetensors.torch import load_file, save_file
from vllm_process import ServerProcess, server_process
from vllm_world import EOS, MARKS, POSITIONS, gap, make_model, request, sampled
from worker_scene import eventually

from headrace.config.vllm_server import VllmServerEngine as Config
from headrace.rollout.engines.base import EngineError, EngineLostError, Sample, SampleRequest
from headrace.rollout.engines.vllm_server.calls import Calls
from headrace.rollout.engines.vllm_server.engine import VllmServerEngine
from headrace.rollout.engines.vllm_server.make import make
from headrace.rpc.waits import Waits

pytestmark = [*MARKS, pytest.mark.timeout(1800)]

MODEL = "qwen3-tied"
LONG = 400
MANY = 192
"""Sequences that take a server some seconds together, if they are long."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Give a server that has weights of nobody."""
    root = tmp_path_factory.mktemp("server")
    start = probed.publish(root, make_model(MODEL, seed=99), 0)
    with server_process(Path(start.uri), root / "log") as made:
        yield made


@asynccontextmanager
async def running(
    server: ServerProcess, *, keeps: bool = False, **settings: Any
) -> AsyncIterator[VllmServerEngine]:
    config = Config(
        **{
            "kind": "vllm_server", "base_urls": [server.url], "look_every_s": 0.2,
            "stream_interval": 4, "update_timeout_s": 30, **settings,
        }
    )  # fmt: skip
    engine = make(
        config, eos_id=EOS, max_length=POSITIONS, partial=keeps, max_generation_s=120,
        waits=Waits(stall_after_s=600),
    )  # fmt: skip
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


class Line:
    """Versions of one line of weights; models are made by the version."""

    def __init__(self, root: Path, name: str = MODEL) -> None:
        self.root = root
        self.name = name
        self.lineage = secrets.token_hex(4)

    def model(self, version: int) -> Any:
        return make_model(self.name, seed=version, endless=self.name.endswith("untied"))

    def publish(self, version: int, **options: Any) -> Any:
        return probed.publish(
            self.root, self.model(version), version, lineage=self.lineage, **options
        )


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


async def assert_agrees(engine: Any, line: Line, version: int) -> None:
    asked = [request(session) for session in range(12)]
    await sampled(engine, asked)
    for each in asked:
        assert [span.version for span in each.response.weight_spans] == [version]
        assert gap(line.model(version), each) < 1e-4


async def test_a_server_computes_what_transformers_does_with_each_version_of_the_weights(
    server: ServerProcess, line: Line
) -> None:
    async with running(server) as engine:
        for version in range(3):
            await engine.load(line.publish(version))
            assert (engine.status().probe_gap or 1) < 1e-5
            await assert_agrees(engine, line, version)


async def test_weights_that_are_refused_leave_the_old_ones_and_half_of_them_none(
    server: ServerProcess, line: Line
) -> None:
    def lose_one(directory: Path) -> None:
        weights = load_file(directory / "model.safetensors")
        weights.pop("model.layers.1.mlp.down_proj.weight")
        save_file(weights, directory / "model.safetensors")

    async with running(server, look_every_s=1000) as engine:
        await engine.load(line.publish(0))
        damaged = line.publish(1)
        path = Path(damaged.uri) / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(EngineError, match="SHA-256 is") as refused:
            await engine.load(damaged)
        assert not refused.value.weights_lost
        await assert_agrees(engine, line, 0)

        with pytest.raises(EngineError, match="1 weights are missing") as broken:
            await engine.load(line.publish(2, spoil=lose_one))
        assert broken.value.weights_lost
        [future] = engine.generate([request(0)])
        with pytest.raises(EngineLostError):
            await future

        await engine.load(line.publish(3))
        await assert_agrees(engine, line, 3)


async def test_an_update_that_somebody_left_in_the_middle_is_made_anew(
    server: ServerProcess, line: Line
) -> None:
    async with running(server, update_timeout_s=30) as engine:
        await engine.load(line.publish(0))
        calls: Calls = engine._servers[0]._calls
        body = {"method": "headrace_take_turn", "args": ["dead", "1"]}
        await calls.post("/collective_rpc", body, timeout_s=10)
        await calls.post("/pause", timeout_s=10, mode="keep")
        await calls.post("/start_weight_update", timeout_s=10)

        await engine.load(line.publish(1))

        await assert_agrees(engine, line, 1)


async def test_workers_that_share_a_server_agree(server: ServerProcess, line: Line) -> None:
    async with running(server) as one, running(server) as other:
        for version in range(3):
            weights = line.publish(version)
            await asyncio.gather(one.load(weights), other.load(weights))
            await asyncio.gather(
                assert_agrees(one, line, version), assert_agrees(other, line, version)
            )


async def test_a_sequence_that_is_cancelled_leaves_the_server(
    server: ServerProcess, line: Line
) -> None:
    async with running(server) as engine:
        await engine.load(line.publish(0))
        futures = engine.generate([request(session, limit=LONG) for session in range(MANY)])
        await eventually(lambda: engine.status().generated_token_count > 16)
        for future in futures:
            future.cancel()
        await eventually(lambda: not server.gauge("vllm:num_requests_running"))


async def test_each_token_of_a_response_is_of_the_weights_that_it_says(tmp_path: Path) -> None:
    line = Line(tmp_path, "gpt2-untied")
    with server_process(Path(line.publish(0).uri), tmp_path / "log") as server:
        async with running(server, keeps=True) as engine:
            await engine.load(line.publish(1))
            asked = [request(session, limit=LONG) for session in range(MANY)]
            futures = engine.generate(asked)
            await eventually(lambda: _has_any(asked, 8))
            await engine.load(line.publish(2))
            await asyncio.gather(*futures)

        went_on = [each for each in asked if len(each.response.weight_spans) == 2]
        assert went_on, "some were under way"
        for each in asked:
            spans = each.response.weight_spans
            assert [span.version for span in spans] in ([1], [1, 2], [2])
            assert [span.begin for span in spans] == [0, spans[0].end][: len(spans)]
            assert spans[-1].end == LONG
            for span in spans:
                assert gap(line.model(span.version), each, begin=span.begin, end=span.end) < 1e-4


async def test_a_server_that_is_killed_is_used_again_when_it_was_started_again(
    tmp_path: Path,
) -> None:
    line = Line(tmp_path, "gpt2-untied")
    lost = asyncio.Event()
    with server_process(Path(line.publish(0).uri), tmp_path / "log") as server:
        async with running(server) as engine:
            engine.when_lost(lost.set)
            await engine.load(line.publish(1))
            for kill in (server.kill_engine, server.kill):
                lost.clear()
                asked = [request(session, limit=LONG) for session in range(MANY)]
                futures = engine.generate(asked)
                await eventually(partial(_has_any, asked, 8))
                kill()
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
                errors = [each for each in outcomes if not isinstance(each, Sample)]
                assert errors, "some were under way"
                assert all(isinstance(each, EngineLostError) for each in errors)
                await asyncio.wait_for(lost.wait(), 30)
                for each in filter(lambda each: each.response.token_ids, asked):
                    assert gap(line.model(1), each) < 1e-4, "what was seen is good to go on behind"

                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await engine.load(line.publish(1))
                await assert_agrees(engine, line, 1)


def _has_any(asked: list[SampleRequest], count: int) -> bool:
    return any(len(each.response.token_ids) > count for each in asked)


def test_files_that_a_worker_took_along_are_checked_again_where_another_has_them(
    tmp_path: Path,
) -> None:
    from headrace.rollout.engines.vllm_server.extension import ServerExtension

    first = vllm_http.publish(tmp_path / "one", 0)
    copy = tmp_path / "other"
    shutil.copytree(first.uri, copy)
    extension = ServerExtension()

    def checked(uri: str) -> list[str]:
        states: list[str] = []
        while states[-1:] not in (["checked"], ["wrong"]):
            answer = extension.headrace_check(uri, first.checksum, "l0", "0")
            states.append(answer["state"])
            time.sleep(0.01)
        return states

    assert checked(first.uri)[-1] == "checked"
    assert checked(str(copy)) == ["checked"], "files that were checked are not read again"
    shutil.rmtree(first.uri)
    assert checked(str(copy))[-1] == "checked"
    shutil.rmtree(copy)
    assert checked(str(copy))[-1] == "wrong"
