from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, PretrainedConfig, Qwen3Config

from headrace.config.rollout import TorchEngine as TorchConfig
from headrace.errors import UsageError
from headrace.rollout.engines.base import EngineError, Response, Sample, SampleRequest
from headrace.rollout.engines.torch_engine import TorchEngine
from headrace.v1 import prompt_pb2
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP
from headrace.weights.directory import write

EOS = 3
WEIGHTS = prompt_pb2.WeightsId(lineage="other", version=7)
GPT2 = GPT2Config(
    vocab_size=20, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=EOS,
    eos_token_id=EOS, pad_token_id=0,
)  # fmt: skip
QWEN3 = Qwen3Config(
    vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
    tie_word_embeddings=True, bos_token_id=EOS, eos_token_id=EOS, pad_token_id=0,
)  # fmt: skip


def make_model(config: PretrainedConfig, seed: int) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


def publish(root: Path, model: Any, version: int) -> prompt_pb2.PublishedWeights:
    """As a trainer does; what the model ties is written once."""

    def save(directory: Path) -> None:
        model.config.save_pretrained(directory)
        state, seen = {}, set()
        for name, value in model.state_dict().items():
            if value.data_ptr() not in seen:
                seen.add(value.data_ptr())
                state[name] = value.contiguous()
        save_file(state, directory / "model.safetensors")

    directory, checksum = write(
        root, run_id="run", lineage="main", version=version, write_files=save
    )
    return prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage="main", version=version),
        uri=str(directory),
        checksum=checksum,
    )


@asynccontextmanager
async def running(*, partial: bool = False, **options: Any) -> AsyncIterator[TorchEngine]:
    config = TorchConfig(device="cpu", threads=1, **options)
    engine = TorchEngine(config, eos_id=EOS, seed=0, partial=partial)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def request(session: int, *, uid: str = "e0r0", limit: int = 12, attempt: int = 1) -> SampleRequest:
    return SampleRequest(
        uid=uid,
        session=session,
        attempt=attempt,
        prompt_token_ids=[5, 6, 7][: 1 + session % 3],
        temperature=0.7,
        max_response_length=limit,
    )


def version_of(sample: Sample) -> int:
    [span] = sample.response.weight_spans
    assert (span.begin, span.end) == (0, len(sample.response.token_ids))
    return span.version


@pytest.mark.parametrize("config", [GPT2, QWEN3], ids=["gpt2", "qwen3"])
async def test_samples_carry_the_logprobs_and_the_version_of_the_weights_that_made_them(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    async with running() as engine:
        for version in (0, 1):
            model = make_model(config, seed=version)
            await engine.load(publish(tmp_path, model, version))
            requests = [request(session) for session in range(24)]

            samples = await asyncio.gather(*engine.generate(requests))

            for asked, sample in zip(requests, samples, strict=True):
                assert version_of(sample) == version
                stopped = sample.response.token_ids[-1] == EOS
                assert sample.finish_reason == (
                    FINISH_REASON_STOP if stopped else FINISH_REASON_LENGTH
                )
                ids = torch.tensor([[*asked.prompt_token_ids, *sample.response.token_ids]])
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, len(asked.prompt_token_ids) - 1 : -1]
                logp = torch.log_softmax(logits / 0.7, dim=-1)
                wanted = logp.gather(-1, torch.tensor(sample.response.token_ids)[:, None])[:, 0]
                assert sample.response.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)


async def test_another_attempt_samples_other_tokens_and_the_same_one_the_same(
    tmp_path: Path,
) -> None:
    async with running() as engine:
        await engine.load(publish(tmp_path, make_model(GPT2, 0), 0))

        async def tokens(attempt: int) -> list[list[int]]:
            asked = [request(session, attempt=attempt) for session in range(8)]
            return [
                sample.response.token_ids
                for sample in await asyncio.gather(*engine.generate(asked))
            ]

        first, again, other = await tokens(1), await tokens(1), await tokens(2)

    assert first == again
    assert first != other


async def test_a_batch_is_made_by_one_version_though_newer_weights_come_meanwhile(
    tmp_path: Path,
) -> None:
    async with running(max_batch_sequences=4) as engine:
        await engine.load(publish(tmp_path, make_model(GPT2, 0), 0))
        newer = publish(tmp_path, make_model(GPT2, 1), 1)
        futures = engine.generate([request(session, limit=60) for session in range(40)])
        await futures[0]
        await engine.load(newer)
        samples = await asyncio.gather(*futures)
        [last] = await asyncio.gather(*engine.generate([request(0)]))

    versions = [version_of(sample) for sample in samples]
    assert versions == sorted(versions)
    assert versions[0] == 0
    for batch in range(0, 40, 4):
        assert len(set(versions[batch : batch + 4])) == 1
    assert version_of(last) == 1


async def test_a_cancelled_sequence_is_aborted_and_its_tokens_are_counted(tmp_path: Path) -> None:
    model = make_model(GPT2, 0)
    with torch.no_grad():
        model.lm_head.weight[EOS] = -100  # never stops by itself; tied, so the embedding, too
    async with running(max_batch_sequences=2) as engine:
        await engine.load(publish(tmp_path, model, 0))
        futures = engine.generate([request(session, limit=60) for session in range(6)])
        futures[1].cancel()
        futures[5].cancel()

        await asyncio.gather(*(futures[index] for index in (0, 2, 3, 4)))
        status = engine.status()

    wanted = sum(len(futures[index].result().response.token_ids) for index in (0, 2, 3, 4))
    assert status.generated_token_count == wanted + status.aborted_token_count
    assert status.aborted_token_count <= 60  # one that was never begun has none


LONG = GPT2Config(**{**GPT2.to_dict(), "n_positions": 2048})


def make_endless(seed: int) -> Any:
    """A model whose answers are as long as they may be."""
    model = make_model(LONG, seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # far from uniform, so that a mistake shows
        model.transformer.ln_f.weight[0], model.transformer.ln_f.bias[0] = 0.0, 1.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[EOS] = 0.0
        model.lm_head.weight[EOS, 0] = -100.0
    return model


def logprobs_under(model: Any, asked: SampleRequest, response: list[int]) -> list[float]:
    """A forward pass over the one sequence alone."""
    ids = torch.tensor([[*asked.prompt_token_ids, *response]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(asked.prompt_token_ids) - 1 : -1].float()
    logp = torch.log_softmax(logits / asked.temperature, dim=-1)
    chosen: list[float] = logp.gather(-1, torch.tensor(response)[:, None])[:, 0].tolist()
    return chosen


class Pauses:
    """An engine's model waits before some of its steps, each time until something is so."""

    def __init__(self, engine: TorchEngine, *steps: int, until: Callable[[], bool]) -> None:
        self._engine, self._steps, self._until = engine, steps, until
        self._step = 0
        self._reached = threading.Semaphore(0)
        engine._model.register_forward_pre_hook(lambda *_: self._before_step())

    async def reached(self) -> None:
        """Wait until it waits, once more."""
        assert await asyncio.to_thread(self._reached.acquire, timeout=60)

    def _before_step(self) -> None:
        self._step += 1
        if self._step in self._steps:
            self._reached.release()
            while not self._until() and not self._engine._closing:
                time.sleep(0.001)


async def test_newer_weights_take_over_between_two_tokens_and_each_token_has_its_own_logprob(
    tmp_path: Path,
) -> None:
    models = [make_endless(seed) for seed in range(3)]
    versions = [publish(tmp_path, model, version) for version, model in enumerate(models)]
    async with running(partial=True, max_batch_sequences=4) as engine:
        await engine.load(versions[0])
        requests = [request(session, limit=300 + session) for session in range(6)]
        pauses = Pauses(engine, 100, 200, until=lambda: engine._swap_waits)
        futures = engine.generate(requests)
        for newer in versions[1:]:
            await pauses.reached()
            await engine.load(newer)
        samples = await asyncio.gather(*futures)
        status = engine.status()

    assert [span.version for span in samples[0].response.weight_spans] == [0, 1, 2]
    assert len(samples[5].response.weight_spans) == 1  # it began when the first four were over
    for asked, sample in zip(requests, samples, strict=True):
        response = sample.response
        assert len(response.token_ids) == asked.max_response_length
        assert sample.finish_reason == FINISH_REASON_LENGTH
        ends = [0]
        for span in response.weight_spans:
            assert span.begin == ends[-1] < span.end
            wanted = logprobs_under(models[span.version], asked, response.token_ids)
            assert response.logprobs[span.begin : span.end] == pytest.approx(
                wanted[span.begin : span.end], abs=1e-4
            )
            ends.append(span.end)
        assert ends[-1] == len(response.token_ids)
    assert status.generated_token_count == sum(each.max_response_length for each in requests)
    assert status.aborted_token_count == 0


@pytest.mark.parametrize("temperature", [1e-6, 1.0])
async def test_an_interrupted_sequence_is_the_uninterrupted_one_if_the_weights_are_the_same(
    temperature: float, tmp_path: Path
) -> None:
    model = make_endless(0)

    def requests() -> list[SampleRequest]:
        return [
            dataclasses.replace(
                request(session, limit=300), temperature=temperature, response=Response()
            )
            for session in range(4)
        ]

    async with running(partial=True) as engine:
        await engine.load(publish(tmp_path, model, 0))
        whole = [each.response for each in await asyncio.gather(*engine.generate(requests()))]
        pauses = Pauses(engine, 100, until=lambda: engine._swap_waits)
        futures = engine.generate(requests())
        await pauses.reached()
        await engine.load(publish(tmp_path, model, 1))
        samples = [each.response for each in await asyncio.gather(*futures)]
        # Another engine's prefix, as a lease brings it.
        resumed = requests()
        for each, response in zip(resumed, whole, strict=True):
            each.response.extend(response.token_ids[:70], response.logprobs[:70], WEIGHTS)
        before = engine.status().generated_token_count
        continued = [each.response for each in await asyncio.gather(*engine.generate(resumed))]
        sampled = engine.status().generated_token_count - before

    assert all(len(response.weight_spans) == 2 for response in samples)
    assert sampled == 4 * (300 - 70)
    for response in (*samples, *continued):
        wanted = whole[[each.token_ids for each in whole].index(response.token_ids)]
        assert response.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    for response in continued:
        assert [(span.begin, span.end) for span in response.weight_spans] == [(0, 70), (70, 300)]


async def test_weights_that_are_refused_interrupt_nothing_for_good(tmp_path: Path) -> None:
    async with running(partial=True) as engine:
        await engine.load(publish(tmp_path, make_endless(0), 0))
        pauses = Pauses(engine, 100, until=lambda: engine._swap_waits)
        [future] = engine.generate([request(0, limit=300)])
        await pauses.reached()
        with pytest.raises(EngineError, match="do not fit"):
            await engine.load(publish(tmp_path, make_model(GPT2, 0), 1))
        sample = await future

    assert version_of(sample) == 0
    assert len(sample.response.token_ids) == 300


async def until_grown(asked: SampleRequest) -> None:
    """Wait until there are further tokens of it."""
    before = len(asked.response.token_ids)
    while len(asked.response.token_ids) == before:  # noqa: ASYNC110 (a list has no event)
        await asyncio.sleep(0.01)


async def test_a_sequence_that_is_cancelled_in_the_middle_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.rollout.engines.torch_engine._FLUSH_S", 0)
    async with running(partial=True) as engine:
        await engine.load(publish(tmp_path, make_endless(0), 0))
        asked = [request(session, limit=400) for session in range(2)]
        futures = engine.generate(asked)
        Pauses(engine, 100, until=futures[0].cancelled)
        await until_grown(asked[0])
        futures[0].cancel()
        await engine.load(publish(tmp_path, make_endless(1), 1))
        await futures[1]
        status = engine.status()

    had = len(asked[0].response.token_ids)
    assert 0 < had < 400
    assert status.aborted_token_count == had
    assert status.generated_token_count == had + 400


async def test_closing_aborts_what_is_under_way(tmp_path: Path) -> None:
    async with running(max_batch_sequences=2) as engine:
        await engine.load(publish(tmp_path, make_model(GPT2, 0), 0))
        futures = engine.generate([request(session, limit=60) for session in range(400)])
        await futures[0]

    assert any(future.cancelled() for future in futures)


async def test_a_sequence_longer_than_the_model_is_its_own_error(tmp_path: Path) -> None:
    async with running() as engine:
        await engine.load(publish(tmp_path, make_model(GPT2, 0), 0))
        long, short = engine.generate([request(2, limit=62), request(0)])

        with pytest.raises(EngineError, match="65 positions, the model has 64"):
            await long
        assert (await short).response.token_ids


async def test_a_batch_that_breaks_fails_its_sequences_and_the_next_is_tried(
    tmp_path: Path,
) -> None:
    broken = make_model(GPT2, 0)
    with torch.no_grad():
        broken.transformer.ln_f.bias.fill_(float("nan"))
    async with running() as engine:
        await engine.load(publish(tmp_path, broken, 0))
        with pytest.raises(EngineError, match="not a number"):
            await engine.generate([request(0)])[0]

        await engine.load(publish(tmp_path, make_model(GPT2, 0), 1))
        assert version_of(await engine.generate([request(0)])[0]) == 1


@pytest.mark.parametrize("damage", ["checksum", "bytes", "gone", "version"])
async def test_weights_that_are_not_what_was_published_are_refused_and_the_old_ones_stay(
    damage: str, tmp_path: Path
) -> None:
    async with running() as engine:
        await engine.load(publish(tmp_path, make_model(GPT2, 0), 0))
        newer = publish(tmp_path, make_model(GPT2, 1), 1)
        file = Path(newer.uri) / "model.safetensors"
        if damage == "checksum":
            newer.checksum = "0" * 64
        elif damage == "bytes":
            file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
        elif damage == "gone":
            file.unlink()
        else:
            newer.id.version = 2

        with pytest.raises(EngineError):
            await engine.load(newer)
        assert version_of(await engine.generate([request(0)])[0]) == 0


async def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    wider = GPT2Config(**{**GPT2.to_dict(), "n_embd": 64})
    async with running() as engine:
        await engine.load(publish(tmp_path, make_model(GPT2, 0), 0))
        with pytest.raises(EngineError, match="do not fit"):
            await engine.load(publish(tmp_path, make_model(wider, 0), 1))
        assert version_of(await engine.generate([request(0)])[0]) == 0


async def test_a_directory_that_is_no_model_is_one_clear_error(tmp_path: Path) -> None:
    def save(directory: Path) -> None:
        (directory / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))

    directory, checksum = write(tmp_path, run_id="r", lineage="main", version=0, write_files=save)
    weights = prompt_pb2.PublishedWeights(
        id=prompt_pb2.WeightsId(lineage="main"), uri=str(directory), checksum=checksum
    )
    async with running() as engine:
        with pytest.raises(EngineError, match="no causal LM can be built"):
            await engine.load(weights)


def test_a_device_that_is_not_there_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"rollout.engine.device = warp"):
        TorchEngine(TorchConfig(device="warp"), eos_id=EOS, seed=0)
