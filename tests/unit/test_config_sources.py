"""Settings of data sources that other sections, or other sources, have a say in."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.data import MixtureSource
from headrace.config.load import dump_config, load_config
from headrace.errors import UsageError

COMMON = """\
model: {architecture: gpt2, tokenizer: {alphabet: '01', eos: ;}}
trainer: {total_training_steps: 5}
"""
MIXTURE = """\
data:
  train_batch_size: 4
  source:
    kind: mixture
    parts:
      easy: {source: {kind: jsonl, path: easy.jsonl}, weight: 3}
      hard: {source: {kind: parquet, path: /rows/*.parquet}}
"""
STREAM = """\
data:
  train_batch_size: 4
  shuffle: false
  source: {kind: stream, function: 'rows:make'}
"""


def write(folder: Path, data: str, common: str = COMMON) -> Path:
    path = folder / "run.yaml"
    path.write_text(data + common)
    return path


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as raised:
        load_config(path, overrides)
    return str(raised.value)


def test_paths_in_a_mixture_count_from_the_file_and_keys_in_it_can_be_overridden(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, MIXTURE)
    config = load_config(path, ["data.source.parts.hard.weight=0.5"])

    assert isinstance(config.data.source, MixtureSource)
    easy, hard = config.data.source.parts.values()
    assert easy.source.model_dump()["path"] == tmp_path / "easy.jsonl"
    assert hard.source.model_dump()["path"] == Path("/rows/*.parquet")
    assert (easy.weight, hard.weight) == (3, 0.5)
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_config(config))
    assert load_config(copy) == config


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("data.source.parts.easy.weight=0", "data.source.parts.easy.weight = 0: should be greater"),
        ("data.source.parts.easy.weight=-1", "data.source.parts.easy.weight = -1: should be gr"),
        ("data.source.parts.easy.weight=.inf", "data.source.parts.easy.weight = inf: should be a"),
        (
            "data.source.parts.easy.wieght=1",
            "data.source.parts.easy.wieght: unknown key; did you mean data.source.parts.NAME.wei",
        ),
        (
            "data.source.parts.new.weight=1",
            "data.source.parts.new.source: is required (jsonl | parquet | hf | reasoning_gym | py",
        ),
        (
            "data.source.parts.easy.source={kind: mixture, parts: {}}",
            "data.source.parts.easy.source.kind = 'mixture': should be 'jsonl' or 'parquet' or",
        ),
        ("data.source.parts.easy.source.path=", "data.source.parts.easy.source.path = null: sho"),
        ("data.source.parts={}", "data.source.parts = {}: should have at least 1 item"),
    ],
)
def test_what_is_wrong_in_a_mixture_is_named_with_its_part(
    tmp_path: Path, override: str, text: str
) -> None:
    assert f": {text}" in complaint(write(tmp_path, MIXTURE), override)


def test_a_stream_needs_to_be_told_when_to_stop(tmp_path: Path) -> None:
    path = write(tmp_path, STREAM, COMMON.replace("total_training_steps: 5", ""))

    assert "has no known length: set trainer.total_training_steps" in complaint(path)
    assert load_config(path, ["trainer.total_training_steps=3"]).data.source.kind == "stream"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("data.shuffle=true", "has its own order: set data.shuffle to false"),
        ("trainer.total_epochs=2", "is read once: set trainer.total_epochs to 1"),
        ("trainer.warm_start.steps=1", "cannot be read beside the feed: set trainer.warm_start."),
    ],
)
def test_what_a_stream_cannot_do_is_refused(tmp_path: Path, override: str, text: str) -> None:
    assert f"data.source.kind = stream {text}" in complaint(write(tmp_path, STREAM), override)
