"""Every configuration that comes with the project is one that `headrace config check` lets through."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli.credentials import make_credentials
from headrace.cli.main import app
from headrace.config.model import AlphabetTokenizer, ModelConfig
from headrace.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]
SHIPPED = [
    *(ROOT / "examples").glob("*.yaml"),
    ROOT / "docker" / "run.yaml",
    *(ROOT / "k8s" / "overlays").glob("*/run.yaml"),
]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def tokenizer(directory: Path) -> Path:
    """Make one with a chat template, for those whose model is not there."""
    alphabet = AlphabetTokenizer(alphabet="0123456789", eos=";")
    load_tokenizer(ModelConfig(architecture="gpt2", tokenizer=alphabet)).save(directory)
    settings = directory / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    return directory


def what_it_comes_without(values: dict[str, Any], directory: Path) -> list[str]:
    """Make what a user has to have for it, and say where that is."""
    overrides = []
    if "path" in values["model"]:
        overrides.append(f"model.tokenizer={tokenizer(directory / 'tokenizer')}")
    if "security" in values:
        made = make_credentials(directory, (), days=1, force=False, now=datetime.now(UTC))
        files = {"tls.ca": made.ca, "tls.cert": made.cert, "tls.key": made.key}
        files["token_file"] = made.token
        overrides += [f"security.{key}={file}" for key, file in files.items()]
        if "redis_password_file" in values["journal"]:
            overrides.append(f"journal.redis_password_file={made.token}")
    return overrides


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_shipped_passes_config_check_without_a_warning(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load(path.read_text())
    if values["data"]["source"]["kind"] == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    if str(values.get("checkpoint", {}).get("storage")).startswith("s3:"):
        pytest.importorskip("s3fs")
    monkeypatch.chdir(ROOT)  # where the project's page says they are started

    checked = CliRunner().invoke(
        app, ["config", "check", str(path), *what_it_comes_without(values, tmp_path)]
    )

    assert (checked.exit_code, checked.output) == (0, f"{path}: nothing is wrong\n")
