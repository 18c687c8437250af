"""What is said of the vLLM engine's settings, where vLLM need not be installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import vllm_http

from headrace.cli.preflight import preflight
from headrace.config.load import load_config
from headrace.config.vllm import VllmEngine
from headrace.errors import UsageError
from headrace.rollout.engines.make import make_engine
from headrace.rollout.engines.vllm_import import check_section
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
    kind: vllm
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "rollout.engine.engine_args={logprobs_mode: raw_logprobs}",
            "rollout.engine.engine_args.logprobs_mode: is not yours to set: responses must be "
            "drawn from the distribution that the trainer computes",
        ),
        (
            "rollout.engine.engine_args={kv_offloading_size: 4.0}",
            "rollout.engine.engine_args.kv_offloading_size: is not yours to set: keys and values",
        ),
        (
            "rollout.engine.engine_args={stream_interval: 8}",
            "rollout.engine.engine_args.stream_interval: is not yours to set: each token is told",
        ),
        (
            "rollout.engine.engine_args={model: other}",
            "rollout.engine.engine_args.model: is not yours to set: headrace loads the weights",
        ),
        (
            "rollout.engine.engine_args={tensor_parallel_size: 2}",
            "rollout.engine.engine_args.tensor_parallel_size: set "
            "rollout.engine.tensor_parallel_size instead",
        ),
        ("rollout.engine.enforce_eagr=true", "did you mean rollout.engine.enforce_eager?"),
        (
            "rollout.engine.max_model_len=12",
            "rollout.engine.max_model_len = 12 is less than data.max_prompt_length + "
            "data.max_response_length = 13: leave it out",
        ),
        ("rollout.temperature=0.001", "rollout.temperature = 0.001: vLLM samples with 0.01 at"),
    ],
)
def test_what_would_change_the_distribution_or_cannot_work_is_refused_by_name(
    file: Path, override: str, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load_config(file, [override])

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_arguments_are_left_to_vllm(file: Path) -> None:
    config = load_config(file, ["rollout.engine.engine_args={max_num_seqs: 8}"])

    assert config.rollout.engine.kind == "vllm"
    assert config.rollout.engine.engine_args == {"max_num_seqs": 8}
    assert config.rollout.max_groups_in_flight == "auto"


def test_without_vllm_it_is_said_that_its_arguments_are_not_checked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.rollout.engines.vllm_import.find_spec", lambda _: None)

    checked = preflight(file, ["rollout.engine.engine_args={max_nm_seqs: 8}"])

    assert checked.warnings == (
        "vLLM is not installed here: its own check of rollout.engine is left to the worker",
    )


def test_a_vllm_that_says_nothing_in_time_is_left_to_the_worker(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = load_config(file, ["rollout.engine.engine_args={max_num_seqs: 8}"]).rollout.engine
    assert isinstance(section, VllmEngine)
    monkeypatch.setattr("headrace.rollout.engines.vllm_import.find_spec", lambda _: object())

    warning = check_section(section, within_s=0.001)  # no process has even begun by then

    assert warning == (
        "vLLM has said nothing of its arguments within 0.001 s: "
        "its own check of rollout.engine is left to the worker"
    )


async def test_a_folder_that_cannot_have_links_to_the_weights_is_refused_by_its_key(
    file: Path, tmp_path: Path
) -> None:
    config = load_config(file, [f"weights.tmpdir={file}"])
    tokenizer = load_tokenizer(config.model)
    engine = make_engine(
        config, tokenizer, waits=Waits(stall_after_s=60), batch_ended=lambda _: None
    )

    with pytest.raises(UsageError, match=rf"weights\.tmpdir: no folder can be made in {file}"):
        await engine.load(vllm_http.publish(tmp_path, 0))
    await engine.close()
