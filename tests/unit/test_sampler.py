from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, Qwen3Config

from headrace.rollout.engines.draws import uniforms
from headrace.rollout.engines.sampler import NotANumberError, Piece, Prompt, Wish, sample

EOS = 3
VOCAB = 20
CONFIGS = {
    "gpt2": GPT2Config(
        vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=EOS,
        eos_token_id=EOS, pad_token_id=0,
    ),
    "qwen3": Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        tie_word_embeddings=True, bos_token_id=EOS, eos_token_id=EOS, pad_token_id=0,
    ),
}  # fmt: skip


@pytest.fixture(params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    built = AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()
    with torch.no_grad():
        for weight in built.parameters():
            weight.mul_(3)  # far from uniform, so that a mistake shows
    yield built
    torch.set_num_threads(threads)


def ragged(*, temperature: float, count: int = 24) -> list[Prompt]:
    """Prompts of 1 to 9 tokens, some of them equal, with limits of 1 to 12 tokens."""
    draw = random.Random(1)
    texts = [tuple(draw.randrange(4, VOCAB) for _ in range(1 + i % 9)) for i in range(count // 2)]
    return [
        Prompt(texts[i % len(texts)], temperature, 1 + draw.randrange(12), seed=i)
        for i in range(count)
    ]


def run(model: Any, prompts: list[Prompt]) -> list[Piece]:
    found = list(sample(model, prompts, eos_id=EOS, aborted=lambda _: False))
    assert sorted(each.index for each in found) == list(range(len(prompts)))
    return sorted(found, key=lambda each: each.index)


def logprobs_of(model: Any, prompt: Prompt, response: list[int]) -> list[float]:
    """A forward pass over the one sequence alone, without cache and padding."""
    ids = torch.tensor([[*prompt.token_ids, *response]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt.token_ids) - 1 : -1].float()
    logp = torch.log_softmax(logits / prompt.temperature, dim=-1)
    chosen: list[float] = logp.gather(-1, torch.tensor(response)[:, None])[:, 0].tolist()
    return chosen


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward_pass(model: Any, temperature: float) -> None:
    prompts = ragged(temperature=temperature)

    found = run(model, prompts)

    assert any(each.stopped for each in found)
    assert any(not each.stopped for each in found)
    for prompt, each in zip(prompts, found, strict=True):
        wanted = logprobs_of(model, prompt, each.token_ids)
        assert each.logprobs == pytest.approx(wanted, abs=1e-4)


def test_what_is_read_bit_by_bit_is_read_all_the_same(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ragged(temperature=1.0)
    at_once = run(model, prompts)
    monkeypatch.setattr("headrace.rollout.engines.sampler._PREFILL_TOKENS", 3 * len(prompts))

    for each, wanted in zip(run(model, prompts), at_once, strict=True):
        assert each.token_ids == wanted.token_ids
        assert each.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


def test_a_sequence_ends_with_the_stop_token_or_at_its_limit(model: Any) -> None:
    prompts = ragged(temperature=1.0, count=60)

    for prompt, each in zip(prompts, run(model, prompts), strict=True):
        assert EOS not in each.token_ids[:-1]
        assert each.stopped == (each.token_ids[-1] == EOS)
        assert each.stopped or len(each.token_ids) == prompt.max_new_tokens


def test_a_cold_sampler_is_greedy_search(model: Any) -> None:
    prompts = [Prompt(each.token_ids, 1e-6, 10, seed=0) for each in ragged(temperature=1.0)]

    for prompt, each in zip(prompts, run(model, prompts), strict=True):
        ids = torch.tensor([prompt.token_ids])
        wanted = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10,
            eos_token_id=EOS, pad_token_id=0,
        )  # fmt: skip
        assert each.token_ids == wanted[0, len(prompt.token_ids) :].tolist()


def test_what_a_sequence_draws_does_not_depend_on_its_batch(model: Any) -> None:
    prompts = ragged(temperature=1.0)

    together = run(model, prompts)

    alone = [run(model, [prompt])[0] for prompt in prompts]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_tokens_come_as_often_as_the_model_says(model: Any) -> None:
    draws = 4000
    prompt = (5, 7)
    found = run(model, [Prompt(prompt, 0.7, 1, seed=i * 2**40) for i in range(draws)])

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].float()
    expected = torch.softmax(logits / 0.7, dim=-1).numpy() * draws
    counts = np.bincount([each.token_ids[0] for each in found], minlength=VOCAB)
    common = expected > 20
    chi2 = float((((counts - expected) ** 2) / expected)[common].sum())
    # The 0.9999 quantile of chi-squared with 20 degrees of freedom is 52.4.
    assert chi2 < 52.4


def test_an_aborted_sequence_leaves_between_two_steps(model: Any) -> None:
    prompts = [Prompt((5, 6), 1.0, 12, seed=i) for i in range(8)]
    asked: list[int] = []

    def aborted(index: int) -> bool:
        asked.append(index)
        return index == 2 and asked.count(2) == 2

    whole = run(model, prompts)
    found = {each.index: each for each in sample(model, prompts, eos_id=EOS, aborted=aborted)}

    if len(whole[2].token_ids) > 1:
        assert found[2].aborted
        assert found[2].token_ids == whole[2].token_ids[:2]
    others = [index for index in range(8) if index != 2]
    assert [found[i].token_ids for i in others] == [whole[i].token_ids for i in others]
    assert not any(found[i].aborted for i in others)


def test_a_batch_shows_what_it_has_and_ends_between_two_steps(model: Any) -> None:
    prompts = ragged(temperature=1.0)
    whole = run(model, prompts)
    wishes = iter([Wish.GO_ON, Wish.SHOW, Wish.SHOW, Wish.GO_ON, Wish.STOP])

    found: dict[int, list[Piece]] = {index: [] for index in range(len(prompts))}
    pieces = sample(model, prompts, eos_id=EOS, aborted=lambda _: False, wish=lambda: next(wishes))
    for piece in pieces:
        found[piece.index].append(piece)

    for index, uninterrupted in enumerate(whole):
        token_ids = [token for piece in found[index] for token in piece.token_ids]
        assert token_ids == uninterrupted.token_ids[:5]
        assert [piece.over for piece in found[index]][:-1] == [False] * (len(found[index]) - 1)
        assert found[index][-1].over == (len(uninterrupted.token_ids) <= 5)
        if len(uninterrupted.token_ids) > 5:
            assert [len(piece.token_ids) for piece in found[index]] == [2, 1, 2]


def test_a_sequence_that_goes_on_draws_what_it_would_have_drawn(model: Any) -> None:
    prompts = ragged(temperature=1.0)
    whole = run(model, prompts)
    begun = [
        (prompt, each, len(each.token_ids) // 2)
        for prompt, each in zip(prompts, whole, strict=True)
        if len(each.token_ids) > 1
    ]

    rest = run(
        model,
        [
            Prompt(
                (*prompt.token_ids, *each.token_ids[:half]),
                prompt.temperature,
                prompt.max_new_tokens - half,
                prompt.seed,
                drawn=half,
            )
            for prompt, each, half in begun
        ],
    )

    for (_, each, half), found in zip(begun, rest, strict=True):
        assert found.token_ids == each.token_ids[half:]
        assert found.logprobs == pytest.approx(each.logprobs[half:], abs=1e-4)
        assert found.stopped == each.stopped


def test_a_finished_sequence_may_wait_at_the_last_position_of_the_model() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["gpt2"]).eval()
    full = Prompt((5,) * 60, 1.0, 4, seed=1)
    short = [Prompt((6,), 1.0, 40, seed=i) for i in range(8)]

    found = run(model, [full, *short])

    assert 1 <= len(found[0].token_ids) <= 4


def test_a_broken_model_is_an_error(model: Any) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))

    with pytest.raises(NotANumberError):
        run(model, ragged(temperature=1.0))


def test_draws_are_the_published_splitmix64() -> None:
    # First outputs of SplitMix64 with seed 1234567, as in the test vectors of Rosetta Code.
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]

    seeds = np.array([1234567], dtype=np.uint64)

    assert [int(uniforms(seeds, np.uint64(i))[0] * 2**53) for i in range(3)] == [
        w >> 11 for w in wanted
    ]
