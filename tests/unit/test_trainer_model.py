"""Building the policy, and saying what is wrong where it cannot be built."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.errors import UsageError
from headrace.tokenizer import load_tokenizer
from headrace.trainer.model import build_model, pick_device
from headrace.trainer.number_format import computing, format_of
from headrace.trainer.publisher import WeightsWriter, save_model
from headrace.weights.digest import digest, text_of
from headrace.weights.directory import verify
from headrace.weights.tensors import TENSORS_NAME, parse

OPTIONS: dict[str, Any] = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16}
QWEN = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def config(**changes: Any) -> ModelConfig:
    settings = {
        "architecture": "gpt2",
        "options": OPTIONS,
        "tokenizer": AlphabetTokenizer(alphabet="0123", eos=";"),
    }
    return ModelConfig(**{**settings, **changes})


def build(settings: ModelConfig, *, max_length: int = 12) -> Any:
    return build_model(settings, load_tokenizer(settings), max_length=max_length)


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_vocabulary_and_special_tokens_follow_from_the_tokenizer() -> None:
    model = build(config())
    assert model.config.vocab_size == 6
    assert (model.config.pad_token_id, model.config.eos_token_id) == (0, 1)
    assert not model.training


def test_equal_seeds_give_equal_weights_and_others_do_not() -> None:
    assert same_weights(build(config(seed=3)), build(config(seed=3)))
    assert not same_weights(build(config(seed=3)), build(config(seed=4)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("architecture", "options"), [("gpt2", OPTIONS), ("qwen3", QWEN)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_written_weights_are_the_model_again_in_one_file(
    tmp_path: Path, architecture: str, options: dict[str, Any], tied: bool, dtype: str
) -> None:
    settings = config(
        architecture=architecture, options=options | {"tie_word_embeddings": tied}, dtype=dtype
    )
    model = build(settings)

    writer = WeightsWriter(tmp_path, run_id="r", lineage="a", probed=[[2, 3, 4, 5]])
    path, checksum = writer.write(model, 3)

    manifest, verified = verify(Path(path))
    assert verified == checksum
    assert {"config.json", "model.safetensors", "probe.json"} <= set(manifest.files)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert format_of(model) == getattr(torch, dtype)
    again = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    assert again.dtype == getattr(torch, dtype)
    rounded = copy.deepcopy(model).to(getattr(torch, dtype))
    assert same_weights(rounded, again)
    ids = torch.tensor([[2, 3, 4]])
    assert torch.equal(rounded(input_ids=ids).logits, again.eval()(input_ids=ids).logits)


@pytest.mark.parametrize(("architecture", "options"), [("gpt2", OPTIONS), ("qwen3", QWEN)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_with_checkpointed_layers_are_the_same_and_keep_less(
    architecture: str, options: dict[str, Any], dtype: str
) -> None:
    ids = torch.tensor([[2, 3, 4, 5]])
    found, kept = [], []
    for checkpointed in (False, True):
        settings = config(
            architecture=architecture,
            options=options,
            dtype=dtype,
            enable_gradient_checkpointing=checkpointed,
        )
        model = copy.deepcopy(build(settings))  # as the reference of a KL loss is made
        saved: list[int] = []

        def keep(tensor: torch.Tensor, saved: list[int] = saved) -> torch.Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            with computing(model):
                loss = model(input_ids=ids, use_cache=False).logits.float().logsumexp(-1).sum()
            kept.append(sum(saved))
        loss.backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert kept[1] < kept[0]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_version_lists_its_tensors_if_workers_may_receive_them_without_the_file(
    tmp_path: Path,
) -> None:
    model = build(config())
    found = {}
    for lists in (False, True):
        writer = WeightsWriter(
            tmp_path, run_id="r", lineage="a", probed=[[2, 3]], lists_tensors=lists
        )
        path = Path(writer.write(model, int(lists))[0])
        found[lists] = set(verify(path)[0].files)

    assert found[True] - found[False] == {TENSORS_NAME}
    listed = parse((path / TENSORS_NAME).read_bytes(), source="here")
    with safe_open(path / "model.safetensors", framework="pt") as file:
        assert {each.name: each.digest for each in listed.tensors} == {
            name: text_of(digest(file.get_tensor(name)))
            for name in file.keys()  # noqa: SIM118
        }


def test_a_directory_gives_the_model_that_was_saved(tmp_path: Path) -> None:
    model = build(config())
    save_model(model, tmp_path)
    again = build(ModelConfig(path=tmp_path, tokenizer=config().tokenizer))
    assert same_weights(model, again)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": OPTIONS | {"n_layers": 2}}, "n_layers is not an option.*mean 'n_layer'"),
        ({"options": OPTIONS | {"vocab_size": 9}}, "vocab_size follows from model.tokenizer"),
        ({"options": OPTIONS | {"n_head": 3}}, "cannot be built"),
        ({"options": OPTIONS | {"n_layer": "two"}}, "cannot be built"),
        ({"architecture": "gtp2"}, "'gtp2' is not a model type.*mean 'gpt2'"),
        ({"architecture": "vit", "options": {}}, "cannot be built as a causal"),
    ],
)
def test_a_model_that_cannot_be_built_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(config(**changes))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json: give a Hugging Face model"):
        build(ModelConfig(path=tmp_path / "none", tokenizer=config().tokenizer))


def test_a_damaged_directory_is_named(tmp_path: Path) -> None:
    save_model(build(config()), tmp_path)
    (tmp_path / "model.safetensors").write_text("nonsense")
    with pytest.raises(UsageError, match="cannot be loaded as a causal language model"):
        build(ModelConfig(path=tmp_path, tokenizer=config().tokenizer))


def test_sequences_longer_than_the_model_are_refused() -> None:
    with pytest.raises(UsageError, match="17 is more than the 16 positions"):
        build(config(), max_length=17)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    save_model(build(config()), tmp_path)
    larger = AlphabetTokenizer(alphabet="0123456789", eos=";")
    with pytest.raises(UsageError, match="the tokenizer has 12 tokens"):
        build(ModelConfig(path=tmp_path, tokenizer=larger))


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"trainer\.device = 'abacus'"):
        pick_device("abacus")


def test_weights_that_cannot_be_written_are_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()

    with pytest.raises(OSError, match=str(tmp_path)):
        save_model(build(config()), tmp_path)
