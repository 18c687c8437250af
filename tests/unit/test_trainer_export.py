"""A checkpoint becomes a directory that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_actor import TOKENIZER, fixed_batch, new_actor, save, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from headrace.checkpoint.manifest import Manifest
from headrace.checkpoint.storage import DamagedError, write_part
from headrace.cli.main import app
from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.errors import UsageError
from headrace.trainer.actor import Actor
from headrace.trainer.export import export
from headrace.trainer.model import build_model
from headrace.trainer.number_format import format_of
from headrace.v1.prompt_pb2 import StateCounts
from headrace.v1.resume_pb2 import CheckpointPart, Lineage

IDS = torch.tensor([[2, 3, 4, 5]])


def stored(actor: Actor, directory: Path, *, step: int = 3) -> CheckpointPart:
    """Write an actor's state into `storage` below the directory, as a trainer does."""
    save(actor, directory, step=step)
    return write_part(
        f"file://{directory}/storage/global_step_{step}",
        name="trainer",
        owner="trainer",
        source=directory / "trainer",
        target="trainer",
    )


def qwen() -> Any:
    config = ModelConfig(
        architecture="qwen3",
        options={
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
            "tie_word_embeddings": True,
        },
        tokenizer=AlphabetTokenizer(alphabet="012345678", eos=";"),
        dtype="bfloat16",
    )  # fmt: skip
    return build_model(config, TOKENIZER, max_length=16)


@pytest.mark.parametrize("make", [tiny_model, qwen])
def test_the_directory_has_the_model_its_number_format_and_its_tokenizer(
    tmp_path: Path, make: Any
) -> None:
    actor = new_actor(make())
    actor.update(fixed_batch(0))
    count = export(stored(actor, tmp_path), tmp_path / "deep" / "out")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "deep" / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "deep" / "out")
    published = actor.model.to(format_of(actor.model))
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, published(input_ids=IDS).logits)
    assert model.dtype == published.dtype
    assert count == sum(parameter.numel() for parameter in model.parameters())
    assert tokenizer.encode("0123;") == TOKENIZER.encode("0123;")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    part = stored(new_actor(), tmp_path)
    (tmp_path / "out").mkdir()
    export(part, tmp_path / "out")
    with pytest.raises(UsageError, match="is there already"):
        export(part, tmp_path / "out")


def test_a_damaged_checkpoint_makes_no_directory(tmp_path: Path) -> None:
    part = stored(new_actor(), tmp_path)
    (tmp_path / "storage" / "global_step_3" / "trainer" / "state.json").unlink()
    with pytest.raises(DamagedError, match=r"state\.json is missing"):
        export(part, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_the_command_finds_the_checkpoint_by_its_step(tmp_path: Path) -> None:
    part = stored(new_actor(), tmp_path)
    manifest = Manifest(
        run_id="r",
        snapshot_id="s",
        lineages=(Lineage(id="a"),),
        step=3,
        weight_version=3,
        position=7,
        counts=StateCounts(),
        data_fingerprint="f",
        store_incarnation="i",
        facts={},
        unix_time_s=0.0,
        headrace_version="0",
        parts=tuple(
            part if name == "trainer" else CheckpointPart(name=name, owner=name, uri=part.uri)
            for name in ("ledger", "store", "trainer")
        ),
    )
    storage = tmp_path / "storage"
    (storage / "global_step_3" / "manifest.json").write_bytes(manifest.to_bytes())
    ask = CliRunner().invoke

    missing = ask(app, ["export", "4", str(tmp_path / "out"), "--storage", str(storage)])
    assert missing.exit_code == 2
    assert "no checkpoint of step 4; there are: 3" in missing.output
    done = ask(app, ["export", "latest", str(tmp_path / "out"), "--storage", str(storage)])
    assert done.exit_code == 0, done.output
    assert "step 3" in done.output
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "gpt2"
