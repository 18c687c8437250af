"""One update: the right probabilities, the same gradient however the batch is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.config.trainer import AlgorithmConfig, OptimConfig
from headrace.trainer import forward
from headrace.trainer.actor import Actor
from headrace.trainer.batch import Batch, collate
from headrace.trainer.forward import score
from headrace.trainer.number_format import published, set_format
from headrace.v1.trajectory_pb2 import Trajectory

VOCABULARY = 11


def tiny_model(*, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(5)
    config = AutoConfig.for_model(
        "gpt2", n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=VOCABULARY
    )
    config.bos_token_id = config.eos_token_id = 1
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    set_format(model, dtype)
    return model


def sampled(model: Any, count: int, *, temperature: float = 1.0) -> list[Trajectory]:
    """Sample ragged sequences token by token, each by itself and without any padding."""
    numbers = np.random.default_rng(7)
    torch.manual_seed(11)
    found = []
    for i in range(count):
        prompt = numbers.integers(2, VOCABULARY, numbers.integers(1, 6)).tolist()
        ids, logprobs = list(prompt), []
        for _ in range(int(numbers.integers(1, 8))):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
            probabilities = (logits / temperature).softmax(-1)
            token = int(torch.multinomial(probabilities, 1))
            ids.append(token)
            logprobs.append(float(probabilities[token].log()))
        found.append(
            Trajectory(
                schema_version=1,
                key=f"e0r{i}_0_0_aa1",
                prompt_token_ids=prompt,
                response_token_ids=ids[len(prompt) :],
                logprobs=logprobs,
                loss_mask=[bool(numbers.random() < 0.8) for _ in logprobs],
                temperature=temperature,
                reward=float(numbers.random()),
            )
        )
    return found


def batch_of(trajectories: list[Trajectory]) -> Batch:
    advantages = np.array([t.reward - 0.5 for t in trajectories])
    return collate(trajectories, advantages, pad_id=0)


def actor(model: Any, *, micro: int | None = None, lr: float = 1e-2, **algorithm: Any) -> Actor:
    return Actor(
        model,
        algorithm=AlgorithmConfig(**algorithm),
        optim=OptimConfig(lr=lr, lr_schedule="linear", lr_min_ratio=0.5),
        total_updates=3,
        micro_batch_size=micro,
    )


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_probabilities_are_those_that_were_sampled_from(temperature: float) -> None:
    model = tiny_model()
    trajectories = sampled(model, 24, temperature=temperature)
    batch = batch_of(trajectories)

    scores = score(model, batch)

    places = slice(batch.first_place, None)
    is_response = batch.behaviour_logprobs[:, places] != 0
    gap = (scores.logprobs - batch.behaviour_logprobs[:, places])[is_response].abs().max()
    assert gap < 1e-4
    metrics = actor(model).update(batch)
    assert metrics["training/rollout_probs_diff_max"] < 1e-4
    assert 0 < metrics["training/rollout_logprobs_diff_mean"] < 1e-4
    assert metrics["training/rollout_logprobs_diff_max"] == pytest.approx(
        float(gap.detach()), abs=1e-6
    )
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == 0


def test_entropy_is_that_of_the_distribution_after_temperature() -> None:
    model = tiny_model()
    batch = batch_of(sampled(model, 4, temperature=0.7))
    with torch.no_grad():
        logits = model(input_ids=batch.token_ids).logits[:, batch.first_place : -1] / 0.7
    truth = torch.distributions.Categorical(logits=logits).entropy()
    assert torch.allclose(score(model, batch).entropy, truth, atol=1e-5)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("micro", [1, 5])
def test_micro_batches_give_the_gradient_of_the_whole(mode: str, micro: int) -> None:
    behaviour = tiny_model()
    batch = batch_of(sampled(behaviour, 12))
    found = []
    for size in (None, micro):
        model = tiny_model()
        learner = actor(model, micro=size, loss_agg_mode=mode, kl_loss_coef=0.1)
        with torch.no_grad():  # so that neither ratios nor KL are trivial
            torch.manual_seed(1)
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        metrics = learner.accumulate(batch)
        found.append((gradient(model), metrics))
    (whole, whole_metrics), (cut, cut_metrics) = found
    assert ((whole - cut).norm() / whole.norm()).item() < 1e-6
    assert cut_metrics == pytest.approx(whole_metrics, rel=1e-4, abs=1e-6)
    assert whole_metrics["actor/kl_loss"] > 0


def test_the_gradient_on_policy_is_that_of_the_plain_policy_gradient() -> None:
    model = tiny_model()
    trajectories = sampled(model, 6, temperature=0.7)
    actor(model).accumulate(batch_of(trajectories))
    found = gradient(model)

    model.zero_grad()
    losses, tokens = [], 0
    for t in trajectories:
        ids = torch.tensor([[*t.prompt_token_ids, *t.response_token_ids]])
        logprobs = (model(input_ids=ids).logits[0, :-1] / 0.7).log_softmax(-1)
        chosen = logprobs.gather(-1, ids[0, 1:, None])[len(t.prompt_token_ids) - 1 :, 0]
        mask = torch.tensor(list(t.loss_mask))
        losses.append(-(t.reward - 0.5) * (chosen * mask).sum())
        tokens += int(mask.sum())
    (torch.stack(losses).sum() / tokens).backward()

    assert ((gradient(model) - found).norm() / found.norm()).item() < 1e-4


def test_updates_raise_what_had_a_good_advantage_and_follow_the_schedule() -> None:
    model = tiny_model()
    batch = batch_of(sampled(model, 32))
    learner = actor(model)
    before = score(model, batch).logprobs.detach()
    rates = [learner.update(batch)["actor/lr"] for _ in range(3)]
    change = (score(model, batch).logprobs.detach() - before) * batch.loss_mask[
        :, batch.first_place :
    ]
    assert rates == pytest.approx([1e-2, 0.75e-2, 0.5e-2])
    assert (change.sum(dim=1) * batch.advantages).sum() > 0


def test_the_reference_stays_what_the_policy_was_at_the_beginning() -> None:
    model = tiny_model()
    batch = batch_of(sampled(model, 8))
    learner = actor(model, kl_loss_coef=0.5)
    assert learner.update(batch)["actor/kl_loss"] == pytest.approx(0, abs=1e-6)
    assert learner.update(batch)["actor/kl_loss"] > 1e-6


def test_a_gradient_that_is_not_finite_is_not_applied() -> None:
    model = tiny_model()
    batch = batch_of(sampled(model, 4))
    batch.advantages.fill_(float("inf"))
    before = [p.detach().clone() for p in model.parameters()]
    metrics = actor(model).update(batch)
    assert not np.isfinite(metrics["actor/grad_norm"])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_model_in_bfloat16_computes_in_it_and_learns_at_the_usual_rate() -> None:
    model = tiny_model(dtype=torch.bfloat16)
    batch = batch_of(sampled(model, 4))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    published_before = published(model)
    learner = actor(model, micro=2, lr=1e-6)

    metrics = [learner.update(batch) for _ in range(3)]

    assert np.isfinite(metrics[-1]["actor/grad_norm"])
    assert metrics[0]["training/rollout_probs_diff_max"] < 0.1
    moved = torch.cat([(a != b).flatten() for a, b in zip(before, model.parameters(), strict=True)])
    touched = torch.cat(
        [learner.optimizer.state[p]["exp_avg"].flatten() != 0 for p in model.parameters()]
    )
    assert (moved | ~touched).float().mean() > 0.99
    assert touched.float().mean() > 0.5
    # What three such updates change is less than bfloat16 can say of most weights.
    now = published(model)
    same = [torch.equal(now[name], published_before[name]) for name in now]
    assert {value.dtype for value in now.values()} == {torch.bfloat16}
    assert sum(same) > 0


def test_updates_add_up_to_what_is_published_in_bfloat16() -> None:
    model = tiny_model(dtype=torch.bfloat16)
    batch = batch_of(sampled(model, 16))
    learner = actor(model, lr=1e-5)
    before = published(model)["transformer.h.0.attn.c_attn.weight"]
    for _ in range(60):
        learner.update(batch)
    now = published(model)["transformer.h.0.attn.c_attn.weight"]
    assert (now != before).float().mean() > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_gradients_do_not_depend_on_how_many_places_are_scored_at_once(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    batch = batch_of(sampled(tiny_model(), 6, temperature=0.7))
    found = []
    for logits in (2**26, 1):
        monkeypatch.setattr(forward, "CHUNK_LOGITS", logits)
        model = tiny_model(dtype=dtype)
        metrics = actor(model).accumulate(batch)
        found.append((gradient(model), metrics))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
