from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.rollout.engines.base import EngineError, SampleRequest
from headrace.rollout.engines.scripted import Script, ScriptedEngine, script
from headrace.v1 import prompt_pb2
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP
from headrace.weights.directory import write

VOCAB, EOS = 5, 2


def request(session: int = 0, *, attempt: int = 1, limit: int = 6) -> SampleRequest:
    return SampleRequest("e0r0", session, attempt, [3, 4], 1.0, limit)


def play(config: ScriptedConfig, asked: SampleRequest) -> Script:
    return script(config, asked, vocab_size=VOCAB, eos_id=EOS)


def test_a_script_follows_from_seed_uid_session_and_attempt() -> None:
    config = ScriptedConfig(kind="scripted", seed=1)

    assert play(config, request(3)) == play(config, request(3))
    assert play(config, request(3)) != play(config, request(4))
    assert play(config, request(3)) != play(config, request(3, attempt=2))
    assert play(config, request(3)) != play(ScriptedConfig(kind="scripted"), request(3))


def test_scripts_have_the_lengths_latencies_and_failures_that_are_configured() -> None:
    config = ScriptedConfig(
        kind="scripted", min_tokens=2, mean_latency_s=3, failure_rate=0.25, hang_rate=0.1
    )
    scripts = [
        script(config, request(session), vocab_size=VOCAB, eos_id=EOS) for session in range(4000)
    ]

    assert {len(each.token_ids) for each in scripts} == {2, 3, 4, 5, 6}
    for each in scripts:
        assert len(each.logprobs) == len(each.token_ids)
        assert all(logprob <= 0 for logprob in each.logprobs)
        assert all(0 <= token < VOCAB for token in each.token_ids)
        assert each.stops == (each.token_ids[-1] == EOS) == (len(each.token_ids) < 6)
        assert EOS not in each.token_ids[:-1]
    assert sum(each.latency_s for each in scripts) / 4000 == pytest.approx(3, rel=0.1)
    assert sum(each.fails for each in scripts) / 4000 == pytest.approx(0.25, abs=0.03)
    assert sum(each.hangs for each in scripts) / 4000 == pytest.approx(0.1, abs=0.02)


def publish(root: Path, version: int) -> prompt_pb2.PublishedWeights:
    directory, checksum = write(
        root, run_id="run", lineage="main", version=version, write_files=lambda _: None
    )
    return prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage="main", version=version),
        uri=str(directory),
        checksum=checksum,
    )


async def test_sequences_take_their_time_and_name_the_weights_they_began_with(
    tmp_path: Path,
) -> None:
    slept: list[float] = []
    go_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            await go_on.wait()

    config = ScriptedConfig(kind="scripted", mean_latency_s=1, load_latency_s=7)
    engine = ScriptedEngine(config, vocab_size=VOCAB, eos_id=EOS, sleep=sleep)
    await engine.load(publish(tmp_path, 0))
    [slow] = engine.generate([request()])
    await asyncio.sleep(0)
    await engine.load(publish(tmp_path, 1))
    go_on.set()
    sample = await slow

    assert slept.count(7) == 2
    whole_s = script(config, request(), vocab_size=VOCAB, eos_id=EOS).latency_s
    assert sum(each for each in slept if each != 7) == pytest.approx(whole_s)
    assert [span.version for span in sample.response.weight_spans] == [0]
    assert (await engine.generate([request(1)])[0]).response.weight_spans[0].version == 1
    assert sample.finish_reason in (FINISH_REASON_STOP, FINISH_REASON_LENGTH)
    assert engine.status().generated_token_count >= len(sample.response.token_ids)


async def test_with_partial_rollout_newer_weights_take_over_in_the_middle(tmp_path: Path) -> None:
    config = ScriptedConfig(
        kind="scripted", mean_latency_s=0, token_latency_s=1, load_latency_s=7, min_tokens=8
    )
    asked, passed = request(limit=8), 0.0
    newer = [publish(tmp_path, version) for version in range(3)]

    async def sleep(seconds: float) -> None:
        nonlocal passed
        if seconds != 7 and passed in (2, 5):
            await engine.load(newer[1 if passed == 2 else 2])
        passed += seconds if seconds != 7 else 0

    engine = ScriptedEngine(config, vocab_size=VOCAB, eos_id=EOS, partial=True, sleep=sleep)
    await engine.load(newer[0])
    [sample] = await asyncio.gather(*engine.generate([asked]))

    spans = [(span.version, span.begin, span.end) for span in sample.response.weight_spans]
    assert spans == [(0, 0, 2), (1, 2, 5), (2, 5, 8)]
    assert sample.finish_reason == FINISH_REASON_LENGTH


async def test_a_response_that_is_gone_on_with_is_counted_once(tmp_path: Path) -> None:
    config = ScriptedConfig(kind="scripted", mean_latency_s=0, min_tokens=6)
    engine = ScriptedEngine(config, vocab_size=VOCAB, eos_id=EOS)
    await engine.load(publish(tmp_path, 3))
    asked = request(limit=6)
    asked.response.extend([0, 1], [-0.5, -0.25], prompt_pb2.WeightsId(lineage="main", version=1))

    response = (await engine.generate([asked])[0]).response

    assert response.token_ids[:2] == [0, 1]
    assert response.logprobs[:2] == [-0.5, -0.25]
    assert len(response.token_ids) == len(response.logprobs) == 6
    spans = [(span.version, span.begin, span.end) for span in response.weight_spans]
    assert spans == [(1, 0, 2), (3, 2, 6)]
    assert engine.status().generated_token_count == 4


def test_lengths_come_as_often_whether_they_were_interrupted_or_not() -> None:
    config = ScriptedConfig(kind="scripted", min_tokens=2)
    lengths = []
    for session in range(3000):
        asked = request(session, limit=8)
        whole = play(config, asked)
        if len(whole.token_ids) > 5:
            asked.response.extend([0] * 5, [0.0] * 5, prompt_pb2.WeightsId(version=1))
            rest = play(config, dataclasses.replace(asked, attempt=2))
            assert rest.stops == (len(rest.token_ids) < 3)
            lengths.append(5 + len(rest.token_ids))
        else:
            lengths.append(len(whole.token_ids))

    for length in range(2, 9):
        assert lengths.count(length) / 3000 == pytest.approx(1 / 7, abs=0.03)


async def test_what_an_aborted_response_had_is_kept_and_counted(tmp_path: Path) -> None:
    config = ScriptedConfig(kind="scripted", mean_latency_s=0, min_tokens=6, hang_rate=1)
    config = config.model_copy(update={"token_latency_s": 0.05})
    grown, asked = asyncio.Event(), request(limit=6)

    async def sleep(seconds: float) -> None:
        if len(asked.response.token_ids) == 5:
            grown.set()

    engine = ScriptedEngine(config, vocab_size=VOCAB, eos_id=EOS, sleep=sleep)
    await engine.load(publish(tmp_path, 0))
    [future] = engine.generate([asked])
    await grown.wait()

    await engine.close()

    assert future.cancelled()
    assert len(asked.response.token_ids) == 5
    assert (engine.status().generated_token_count, engine.status().aborted_token_count) == (5, 5)


async def test_while_the_failing_file_is_there_every_generation_fails(tmp_path: Path) -> None:
    file = tmp_path / "failing"
    config = ScriptedConfig(kind="scripted", mean_latency_s=0, failing_file=str(file))
    engine = ScriptedEngine(config, vocab_size=VOCAB, eos_id=EOS)
    await engine.load(publish(tmp_path / "weights", 0))
    file.touch()
    with pytest.raises(EngineError, match="failing"):
        await engine.generate([request()])[0]

    file.unlink()
    assert (await engine.generate([request()])[0]).response.token_ids


async def test_a_manifest_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    engine = ScriptedEngine(ScriptedConfig(kind="scripted"), vocab_size=VOCAB, eos_id=EOS)
    weights = publish(tmp_path, 0)
    weights.checksum = "0" * 64

    with pytest.raises(EngineError, match="was published"):
        await engine.load(weights)


async def test_a_sequence_that_hangs_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    config = ScriptedConfig(kind="scripted", mean_latency_s=0, hang_rate=1)
    engine = ScriptedEngine(config, vocab_size=VOCAB, eos_id=EOS)
    await engine.load(publish(tmp_path, 0))
    [future] = engine.generate([request()])
    await asyncio.sleep(0)
    assert not future.done()

    await engine.close()
    assert future.cancelled()


def test_a_worker_with_the_scripted_engine_imports_no_torch() -> None:
    code = (
        "import sys, headrace.rollout.process;"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
