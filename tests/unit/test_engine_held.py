"""Files of weights stay readable, here and for a child, when the trainer has removed them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.held import held


def version(root: Path) -> Path:
    directory = root / "run_l0_v00000003"
    (directory / "deep").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "deep" / "model.safetensors").write_bytes(b"w" * 100_000)
    return directory


def test_what_is_held_is_there_when_its_directory_is_gone(tmp_path: Path) -> None:
    directory = version(tmp_path)
    with held(directory) as files:
        shutil.rmtree(directory)

        assert (files / "config.json").read_text() == "{}"
        assert (files / "deep" / "model.safetensors").is_file()
        code = "import sys, pathlib; print(len(pathlib.Path(sys.argv[1]).read_bytes()))"
        for _ in range(2):  # whoever opens it begins at its beginning
            told = subprocess.run(
                [sys.executable, "-c", code, str(files / "deep" / "model.safetensors")],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert told.stdout.strip() == "100000"

    assert not files.exists()


def test_what_is_gone_already_is_an_error_that_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="v00000003 was removed by the trainer"),
        held(tmp_path / "run_l0_v00000003"),
    ):
        pass
