from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.errors import UsageError
from headrace.tokenizer import Tokenizer, load_tokenizer

DIGITS = ModelConfig(
    architecture="gpt2", tokenizer=AlphabetTokenizer(alphabet="0123456789>", eos=";")
)
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def from_directory(directory: Path) -> Tokenizer:
    return load_tokenizer(ModelConfig(architecture="gpt2", tokenizer=directory))


def test_ids_are_padding_then_the_stop_then_the_alphabet_in_order() -> None:
    tokenizer = load_tokenizer(DIGITS)

    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.vocab_size) == (0, 1, 13)
    assert tokenizer.encode("09>;") == [2, 11, 12, 1]


def test_decoding_leaves_out_the_stop_and_padding() -> None:
    tokenizer = load_tokenizer(DIGITS)

    assert tokenizer.decode([3, 4, 1, 0, 0]) == "12"


def test_a_character_outside_the_alphabet_is_named() -> None:
    with pytest.raises(UsageError, match=r"'x' of '12x' is not in the alphabet '0123456789>'"):
        load_tokenizer(DIGITS).encode("12x")


def test_an_alphabet_refuses_chat_messages() -> None:
    with pytest.raises(UsageError, match="an alphabet has no chat template"):
        load_tokenizer(DIGITS).render([{"role": "user", "content": "1"}])


@pytest.mark.parametrize("alphabet", ["0123456789>", "ab \n\tä<|pd>", "hello wrd", " .,'n\"\\"])
def test_a_saved_alphabet_is_the_same_tokenizer_for_transformers(
    alphabet: str, tmp_path: Path
) -> None:
    config = AlphabetTokenizer(alphabet="".join(dict.fromkeys(alphabet)), eos=";")
    ours = load_tokenizer(ModelConfig(architecture="gpt2", tokenizer=config))
    ours.save(tmp_path)
    theirs = from_directory(tmp_path)
    text = alphabet + alphabet[::-1] + "  " * (" " in alphabet)

    assert theirs.vocab_size == ours.vocab_size
    assert (theirs.eos_id, theirs.pad_id) == (ours.eos_id, ours.pad_id)
    assert theirs.encode(text + ";") == ours.encode(text + ";")
    ids = ours.encode(text)
    assert theirs.decode([*ids, 1, 0]) == ours.decode([*ids, 1, 0]) == text


def chat_directory(directory: Path) -> Path:
    load_tokenizer(
        ModelConfig(
            architecture="gpt2",
            tokenizer=AlphabetTokenizer(alphabet="abcdefghijklmnopqrstuvwxyz[]", eos=";"),
        )
    ).save(directory)
    settings = directory / "tokenizer_config.json"
    content = json.loads(settings.read_text()) | {"chat_template": CHAT_TEMPLATE}
    settings.write_text(json.dumps(content))
    return directory


def test_a_chat_template_is_applied_and_opens_the_answer(tmp_path: Path) -> None:
    tokenizer = from_directory(chat_directory(tmp_path))

    assert tokenizer.render([{"role": "user", "content": "hi"}]) == "[user]hi[assistant]"


def test_a_chat_template_that_refuses_messages_says_so_in_one_line(tmp_path: Path) -> None:
    tokenizer = from_directory(chat_directory(tmp_path))

    with pytest.raises(UsageError, match=r"refuses messages of the roles .*no tools here"):
        tokenizer.render([{"role": "tool", "content": "hi"}])


def test_a_saved_directory_tokenizer_keeps_its_chat_template(tmp_path: Path) -> None:
    tokenizer = from_directory(chat_directory(tmp_path / "a"))
    tokenizer.save(tmp_path / "b")

    again = from_directory(tmp_path / "b")
    assert again.render([{"role": "user", "content": "hi"}]) == "[user]hi[assistant]"


def test_a_directory_without_a_chat_template_refuses_messages(tmp_path: Path) -> None:
    load_tokenizer(DIGITS).save(tmp_path)

    with pytest.raises(UsageError, match="no chat template"):
        from_directory(tmp_path).render([{"role": "user", "content": "1"}])


def test_a_missing_or_empty_directory_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere: no such directory"):
        from_directory(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no tokenizer could be loaded"):
        from_directory(tmp_path)


def test_an_alphabet_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from headrace.config.model import AlphabetTokenizer, ModelConfig\n"
        "from headrace.tokenizer import load_tokenizer\n"
        "c = ModelConfig(architecture='gpt2', tokenizer=AlphabetTokenizer(alphabet='ab', eos=';'))\n"
        "assert load_tokenizer(c).encode('ab') == [2, 3]\n"
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
