"""What is said of the settings of vLLM servers, before any is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.preflight import preflight
from headrace.config.load import load_config
from headrace.errors import UsageError
from headrace.rollout.engines.base import EngineLostError, SampleRequest
from headrace.rollout.engines.make import make_engine
from headrace.rpc.waits import Waits
from headrace.tokenizer.load import load_tokenizer

CONFIG = """
data:
  source:
    kind: python
    function: headrace.feeder.sources.digits:digit_rows
    options: {task: sort, digits: 4, size: 100, seed: 1}
  train_batch_size: 4
  max_prompt_length: 8
  max_response_length: 5
model:
  architecture: gpt2
  tokenizer: {alphabet: "0123456789>", eos: ";"}
trainer: {total_training_steps: 2}
rollout:
  engine:
    kind: vllm_server
    base_urls: ["http://localhost:8000"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.engine.base_urls=[]", "rollout.engine.base_urls = []: should have at least 1"),
        ("rollout.engine.base_urls=['gpu1:8000']", "rollout.engine.base_urls.0 = 'gpu1:8000'"),
        (
            "rollout.engine.base_urls=['http://a:1', 'http://a:1/']",
            "base_urls: names a server twice",
        ),
        ("rollout.engine.eject_after=0", "rollout.engine.eject_after = 0"),
        (
            "rollout.temperature=0.001",
            "rollout.temperature = 0.001: vLLM samples with 0.01 at least",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(file: Path, override: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(file, [override])

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("url", "warns"),
    [("http://gpu1:8000", True), ("https://gpu1:8000", False), ("http://127.0.0.1:8000", False)],
)
def test_a_key_that_others_can_read_is_warned_about(file: Path, url: str, warns: bool) -> None:
    config = load_config(
        file,
        [f"rollout.engine={{kind: vllm_server, base_urls: ['{url}'], api_key_file: key}}"],
    )

    assert any("can be read by everybody" in line for line in config.warnings()) is warns
    assert config.rollout.engine.model_dump()["api_key_file"] == file.parent / "key"
    without = load_config(file, [f"rollout.engine={{kind: vllm_server, base_urls: ['{url}']}}"])
    assert not without.warnings()


@pytest.mark.parametrize(
    ("name", "said"), [("api_key_file", "cannot be read"), ("ca_file", "holds no certificates")]
)
def test_files_that_cannot_be_read_are_named_before_anything_starts(
    file: Path, name: str, said: str
) -> None:
    with pytest.raises(UsageError, match=rf"rollout.engine.{name}: .*gone {said}"):
        preflight(file, [f"rollout.engine.{name}=gone"])

    assert preflight(file, []).config.rollout.engine.kind == "vllm_server"


async def test_the_engine_is_made_of_its_section(file: Path) -> None:
    config = load_config(file, ["rollout.engine.base_urls=['http://a:1', 'https://b/vllm']"])
    tokenizer = load_tokenizer(config.model)

    engine = make_engine(
        config, tokenizer, waits=Waits(stall_after_s=60), batch_ended=lambda _: None
    )

    assert engine.kind == "vllm_server"
    assert engine.status().room == 0
    [future] = engine.generate([SampleRequest("e0r0", 0, 1, [2], 1.0, 4)])
    with pytest.raises(EngineLostError, match="a:1: it has no weights yet; b: it has no weights"):
        await future
    await engine.close()
