"""What vLLM itself says of arguments, before anything of it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import probed
import pytest
import yaml
from launched import headrace
from vllm_world import MARKS, POSITIONS, make_model, running, settings

from headrace.errors import UsageError
from headrace.rollout.engines.vllm_args import make_config, prepare

pytestmark = MARKS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"engine_args": {"max_nm_seqs": 8}},
            "rollout.engine.engine_args.max_nm_seqs: vLLM has no such argument; "
            "did you mean max_num_seqs?",
        ),
        (
            {"engine_args": {"block_size": "wide"}},
            "rollout.engine.engine_args.block_size = 'wide': vLLM says: Input should be a valid",
        ),
        (
            {"engine_args": {"kv_cache_dtype": "fp9"}},
            "rollout.engine.engine_args.kv_cache_dtype = 'fp9': vLLM says: Input should be 'auto'",
        ),
        (
            {"engine_args": {"compilation_config": {"mod": 3}}},
            "rollout.engine.engine_args.compilation_config = {'mod': 3}: vLLM says: Unexpected",
        ),
    ],
)
def test_names_and_types_are_checked_by_vllms_own_class(options: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        prepare(settings(**options))

    assert said in str(refused.value)


def test_a_package_that_would_change_what_is_drawn_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sharper-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sharper\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[vllm.logits_processors]\nsharper = sharper:Sharper\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UsageError, match=r"sharper \(sharper:Sharper\); remove those packages"):
        prepare(settings())


def test_what_is_configured_is_what_vllm_gets(tmp_path: Path) -> None:
    weights = probed.publish(tmp_path, make_model("gpt2-tied", 0), 0)
    config = settings(dtype="bfloat16", engine_args={"max_num_seqs": 8})
    prepare(config)

    made = make_config(config, Path(weights.uri), max_length=40, seed=7)

    assert str(made.model_config.dtype) == "torch.bfloat16"
    assert made.model_config.max_model_len == 40
    assert made.model_config.seed == 7
    assert made.model_config.logprobs_mode == "processed_logprobs"
    assert made.model_config.generation_config == "vllm"
    assert made.model_config.enforce_eager
    assert made.scheduler_config.max_num_seqs == 8
    assert made.cache_config.block_size == 32
    assert made.cache_config.enable_prefix_caching
    assert made.cache_config.kv_cache_memory_bytes == 2**26
    assert made.weight_transfer_config.backend == "safetensors_file"


async def test_what_does_not_fit_the_model_is_the_users_mistake(tmp_path: Path) -> None:
    weights = probed.publish(tmp_path, make_model("gpt2-tied", 0), 0)
    async with running(max_model_len=POSITIONS + 1) as engine:
        with pytest.raises(UsageError, match=r"vLLM refuses rollout.engine: .*max_model_len"):
            await engine.load(weights)


def test_the_command_line_asks_vllm_before_a_run(tmp_path: Path) -> None:
    config = yaml.safe_load((Path(__file__).parents[2] / "examples/sort_digits.yaml").read_text())
    config["rollout"]["engine"] = {"kind": "vllm", "engine_args": {"max_nm_seqs": 8}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    checked = headrace(tmp_path, "config", "check", "config.yaml", timeout_s=300)

    assert checked.returncode == 2
    assert checked.stderr.splitlines() == [
        "error: rollout.engine.engine_args.max_nm_seqs: vLLM has no such argument; "
        "did you mean max_num_seqs?"
    ]
