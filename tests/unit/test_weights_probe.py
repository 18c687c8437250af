"""An engine takes weights only if it computes with them what the trainer does."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probed import GPT2, QWEN3, publish, sequences, settings, trained
from safetensors.torch import load_file, save_file

from headrace.config.rollout import TorchEngine as TorchConfig
from headrace.rollout.engines import probe
from headrace.rollout.engines.base import EngineError, SampleRequest
from headrace.rollout.engines.model import score
from headrace.rollout.engines.probe import Probe, ProbeError
from headrace.rollout.engines.torch_engine import TorchEngine
from headrace.tokenizer import load_tokenizer
from headrace.trainer.probe import draw_sequences, make_probe
from headrace.trainer.publisher import save_model
from headrace.weights.directory import write
from headrace.weights.document import WeightsDamagedError
from headrace.weights.probe import PROBE_NAME, ScoredSequence, TrainerProbe, parse


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(TorchConfig(device="cpu", threads=1, **options), eos_id=1, seed=0)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def version_sampled(engine: TorchEngine) -> int:
    request = SampleRequest(
        uid="e0r0", session=0, attempt=1, prompt_token_ids=[2, 3], temperature=1.0,
        max_response_length=4,
    )  # fmt: skip
    sample = await engine.generate([request])[0]
    return sample.response.weight_spans[0].version


@pytest.mark.parametrize(
    ("model", "dtype", "most"),
    [
        (GPT2, "float32", 1e-4),
        (QWEN3, "float32", 1e-4),
        (GPT2 | {"dtype": "bfloat16"}, "float32", 0.1),
        (GPT2, "bfloat16", 0.1),
    ],
    ids=["gpt2", "qwen3", "rough trainer", "rough engine"],
)
async def test_an_engine_that_agrees_takes_each_version_and_says_how_well(
    model: dict[str, Any], dtype: str, most: float, tmp_path: Path
) -> None:
    async with running(dtype=dtype) as engine:
        assert engine.status().probe_gap is None
        for version in (0, 1):
            weights = publish(tmp_path, trained(settings(version, **model)), version)
            await engine.load(weights)
            gap = engine.status().probe_gap

            assert gap is not None
            assert (gap > 1e-3) == (most > 1e-3)
            assert gap < most
            assert await version_sampled(engine) == version


def scaled(directory: Path) -> None:
    path = directory / "model.safetensors"
    save_file({name: 1.05 * value for name, value in load_file(path).items()}, path)


def other_version(directory: Path) -> None:
    save_model(trained(settings(seed=9)), directory)


def not_numbers(directory: Path) -> None:
    path = directory / "model.safetensors"
    save_file({name: nan * value for name, value in load_file(path).items()}, path)


def other_config(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_head": 2}))


async def test_weights_with_another_configuration_are_refused_from_the_first_version_on(
    tmp_path: Path,
) -> None:
    async with running() as engine:
        with pytest.raises(ProbeError, match="version 0 are refused"):
            await engine.load(publish(tmp_path, trained(settings()), 0, spoil=other_config))
        gap = engine.status().probe_gap
        await engine.load(publish(tmp_path, trained(settings()), 1))

        assert gap is not None
        assert gap > 0.1
        assert await version_sampled(engine) == 1


@pytest.mark.parametrize("spoil", [scaled, other_version, not_numbers])
async def test_an_engine_that_says_something_else_keeps_the_old_weights(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    async with running() as engine:
        await engine.load(publish(tmp_path, trained(settings(0)), 0))
        before = [weight.clone() for weight in engine._model.parameters()]
        with pytest.raises(ProbeError, match=r"differ from the trainer's by .* on average") as said:
            await engine.load(publish(tmp_path, trained(settings(1)), 1, spoil=spoil))

        after = list(engine._model.parameters())
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
        assert await version_sampled(engine) == 0
        gap = engine.status().probe_gap
        assert gap is not None
        assert isnan(gap) == (spoil is not_numbers)
        assert gap == said.value.mean or isnan(said.value.mean)
        assert not said.value.weights_lost
        assert "raise rollout.engine.logprob_tolerance only if" in str(said.value)


async def test_a_number_format_that_is_too_rough_for_what_was_asked_is_refused(
    tmp_path: Path,
) -> None:
    weights = publish(tmp_path, trained(settings()), 0)
    async with running(dtype="bfloat16", logprob_tolerance=1e-3) as engine:
        with pytest.raises(ProbeError, match="in float32, the engine in bfloat16"):
            await engine.load(weights)


async def test_a_probe_that_the_model_cannot_score_is_an_error_of_the_engine(
    tmp_path: Path,
) -> None:
    def longer(directory: Path) -> None:
        spoiled = TrainerProbe(1, "float32", [ScoredSequence([2] * 30, [0.0] * 29)])
        (directory / PROBE_NAME).write_bytes(spoiled.to_bytes())

    async with running() as engine:
        await engine.load(publish(tmp_path, trained(settings(0)), 0))
        with pytest.raises(EngineError, match="the probe cannot be scored: "):
            await engine.load(publish(tmp_path, trained(settings(1)), 1, spoil=longer))
        assert await version_sampled(engine) == 0


async def test_an_older_trainers_weights_are_taken_with_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe._warn.cache_clear()
    async with running() as engine:
        for version in (0, 1):
            weights = publish(
                tmp_path, trained(settings()), version,
                spoil=lambda directory: (directory / PROBE_NAME).unlink(),
            )  # fmt: skip
            await engine.load(weights)
            assert await version_sampled(engine) == version
        assert engine.status().probe_gap is None

    assert capsys.readouterr().out.count("weights_without_probe") == 1


def made(*, dtype: str = "float32") -> Probe:
    sequence = ScoredSequence([2, 3, 4], [-1.0, -2.0])
    return Probe(7, TrainerProbe(1, dtype, [sequence, sequence]))


@pytest.mark.parametrize(
    ("trainer", "engine", "tolerance", "limit"),
    [
        ("float32", "float32", None, 1e-3),
        ("float32", "bfloat16", None, 0.1),
        ("bfloat16", "float32", None, 0.1),
        ("float32", "float16", None, 0.1),
        ("float32", "float32", 0.5, 0.5),
        ("bfloat16", "bfloat16", 0.01, 0.01),
    ],
)
def test_the_mean_gap_is_judged_by_the_number_formats_or_as_the_user_wants(
    trainer: str, engine: str, tolerance: float | None, limit: float
) -> None:
    def check(gap: float) -> float:
        # One token is off by all of it: the mean of four is what counts.
        found = [[-1.0 + 4 * gap, -2.0], [-1.0, -2.0]]
        return made(dtype=trainer).check(found, dtype=engine, tolerance=tolerance)

    assert check(0.99 * limit) == pytest.approx(0.99 * limit)
    with pytest.raises(ProbeError, match=f"{limit:g} are tolerated") as said:
        check(1.01 * limit)
    assert said.value.mean == pytest.approx(1.01 * limit)


@pytest.mark.parametrize("found", [[[-1.0, -2.0]], [[-1.0, -2.0], [-1.0]], []])
def test_numbers_that_are_missing_are_no_agreement(found: list[list[float]]) -> None:
    with pytest.raises(ProbeError, match="4 in 2 were asked for"):
        made().check(found, dtype="float32")


def test_what_is_no_number_is_no_agreement() -> None:
    with pytest.raises(ProbeError, match="by nan nats"):
        made().check([[nan, -2.0], [-1.0, -2.0]], dtype="float32", tolerance=100)


def test_the_trainers_numbers_are_those_of_a_plain_forward() -> None:
    model = trained(settings(0, **QWEN3))
    found = make_probe(model, sequences(model))

    for each in found.sequences:
        ids = torch.tensor([each.token_ids])
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        wanted = logp.gather(-1, ids[0, 1:, None])[:, 0].tolist()
        assert each.logprobs == pytest.approx(wanted, abs=1e-5)
    assert found.dtype == "float32"
    assert parse(found.to_bytes(), source="x") == found


def test_sequences_of_several_lengths_are_scored_as_each_alone() -> None:
    model = trained(settings())
    asked = [[2, 3], [4, 5, 6, 7, 8], [9, 10, 11]]

    together = score(model, asked)

    assert [len(each) for each in together] == [1, 4, 2]
    for found, ids in zip(together, asked, strict=True):
        assert found == pytest.approx(score(model, [ids])[0], abs=1e-5)


@pytest.mark.parametrize(("max_length", "length"), [(2, 2), (16, 15), (65, 64), (4096, 64)])
def test_sequences_are_the_models_own_and_leave_an_engine_room_for_a_token(
    max_length: int, length: int
) -> None:
    tokenizer = load_tokenizer(settings())
    model = trained(settings(options=GPT2["options"] | {"n_positions": 4096}))
    before = torch.random.get_rng_state()
    drawn = draw_sequences(model, tokenizer, max_length=max_length)

    assert torch.equal(torch.random.get_rng_state(), before)
    model.generation_config.top_k = 1  # what a directory says of sampling does not count
    assert drawn == draw_sequences(model, tokenizer, max_length=max_length)
    assert [len(ids) for ids in drawn] == [length] * 4
    assert {i for ids in drawn for i in ids} <= set(range(2, tokenizer.vocab_size))


def test_sequences_are_likelier_than_tokens_drawn_blindly() -> None:
    model = trained(settings(0, **QWEN3))

    def mean(drawn: list[list[int]]) -> float:
        found = make_probe(model, drawn).sequences
        return float(np.mean([each.logprobs for each in found]))

    blind = [random.Random(i).choices(range(2, 12), k=23) for i in range(4)]
    assert mean(sequences(model)) > mean(blind) + 0.4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"nonsense", "x: not a probe of weights"),
        (b'{"schema_version": 2}', "x: schema version 2 is not 1"),
        (b'{"schema_version": 1, "dtype": "float32", "sequences": [{}]}', "not a probe"),
        (
            b'{"schema_version": 1, "dtype": "f", '
            b'"sequences": [{"token_ids": [1, 2], "logprobs": []}]}',
            "2 tokens and 0 log-probabilities",
        ),
    ],
)
def test_a_file_that_is_no_probe_is_said(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsDamagedError, match=message):
        parse(data, source="x")

    def save(directory: Path) -> None:
        (directory / PROBE_NAME).write_bytes(data)

    directory, _ = write(tmp_path, run_id="r", lineage="main", version=0, write_files=save)
    with pytest.raises(EngineError, match="the probe cannot be read: "):
        probe.read(directory)
