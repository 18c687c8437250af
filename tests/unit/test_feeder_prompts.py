from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.config.config import Config
from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.errors import UsageError
from headrace.feeder.fingerprint import feed_fingerprint
from headrace.feeder.prompts import MAX_PAYLOAD_BYTES, Packer, Prompts
from headrace.feeder.sources.load import open_source
from headrace.tokenizer import load_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz[]"
MODEL = ModelConfig(
    architecture="gpt2", tokenizer=AlphabetTokenizer(alphabet=LETTERS + " ", eos=";")
)
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


def configured(path: Path, *rows: Mapping[str, Any], **data: Any) -> Config:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Config.model_validate(
        {
            "data": {
                "source": {"kind": "jsonl", "path": path},
                "train_batch_size": 1,
                "max_prompt_length": 5,
                **data,
            },
            "model": MODEL.model_dump(),
        }
    )


def prompts(path: Path, *rows: Mapping[str, Any], model: ModelConfig = MODEL) -> Prompts:
    source = open_source(configured(path, *rows).data)
    return Prompts(source, Packer(load_tokenizer(model), max_prompt_length=5))


def test_a_prompt_has_tokens_text_answer_and_the_other_columns(tmp_path: Path) -> None:
    row = {"prompt": "abc", "answer": "cba", "level": 3, "tags": ["x"]}
    [prompt] = prompts(tmp_path / "words.jsonl", row).read([0])

    assert list(prompt.token_ids) == [2, 3, 4]
    assert (prompt.text, prompt.answer, prompt.data_source) == ("abc", "cba", "words")
    assert json.loads(prompt.metadata_json) == {"level": 3, "tags": ["x"]}


def test_chat_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    directory = tmp_path / "tokenizer"
    load_tokenizer(MODEL).save(directory)
    settings = directory / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    model = ModelConfig(architecture="gpt2", tokenizer=directory)
    row = {"prompt": [{"role": "user", "content": "hi"}], "answer": ""}
    [prompt] = prompts(tmp_path / "a.jsonl", row, model=model).read([0])

    assert prompt.text == "[user]hi[assistant]"
    assert len(prompt.token_ids) == len(prompt.text)


def test_only_prompts_beyond_the_limit_are_too_long(tmp_path: Path) -> None:
    rows = [{"prompt": "a" * length, "answer": ""} for length in (5, 6)]
    reader = prompts(tmp_path / "a.jsonl", *rows)

    assert [reader.packer.is_too_long(prompt) for prompt in reader.read([0, 1])] == [False, True]


def test_a_row_that_the_tokenizer_refuses_is_named(tmp_path: Path) -> None:
    reader = prompts(
        tmp_path / "a.jsonl", {"prompt": "a", "answer": ""}, {"prompt": "7", "answer": ""}
    )

    with pytest.raises(UsageError, match=r"a\.jsonl, row 1: the character '7'"):
        reader.read([0, 1])


def test_chat_messages_for_an_alphabet_are_refused_by_row(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "hi"}], "answer": ""}

    with pytest.raises(UsageError, match=r"row 0: .* an alphabet has no chat template"):
        prompts(tmp_path / "a.jsonl", row).read([0])


def test_a_prompt_too_big_for_a_control_message_is_refused(tmp_path: Path) -> None:
    row = {"prompt": "a", "answer": "", "image": "x" * MAX_PAYLOAD_BYTES}

    with pytest.raises(UsageError, match=r"row 0: \d+ bytes with its metadata; at most 1048576"):
        prompts(tmp_path / "a.jsonl", row).read([0])


def test_the_fingerprint_has_what_changes_the_feed_and_nothing_else(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": ""}, {"prompt": "b", "answer": ""}]

    def digest(**data: Any) -> str:
        config = configured(tmp_path / "a.jsonl", *rows, **data)
        return feed_fingerprint(open_source(config.data), config)

    first = digest()
    assert digest(gen_batch_size=7, max_response_length=9, train_batch_size=2) == first
    changes: list[dict[str, Any]] = [{"seed": 1}, {"shuffle": False}, {"max_prompt_length": 6}]
    for change in changes:
        assert digest(**change) != first


def test_how_often_the_rows_are_read_may_change(tmp_path: Path) -> None:
    config = configured(tmp_path / "a.jsonl", {"prompt": "a", "answer": ""})
    trainer = config.trainer.model_copy(update={"total_epochs": 3})
    source = open_source(config.data)

    longer = config.model_copy(update={"trainer": trainer})
    assert feed_fingerprint(source, longer) == feed_fingerprint(source, config)
