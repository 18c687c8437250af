"""The wire contract: its style, and that the committed code is what the files generate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PROTOS = PROJECT / "proto" / "headrace" / "v1"
GENERATED = PROJECT / "proto" / "gen" / "headrace" / "v1"
BY_HAND = {"__init__.py", "py.typed"}
"""What `make proto` writes beside protoc's output."""

# protoc's plugins and buf lie beside the interpreter, which need not be on the PATH.
ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=PROJECT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def contents(directory: Path) -> dict[str, str]:
    return {
        path.name: path.read_text()
        for path in directory.iterdir()
        if path.is_file() and path.name not in BY_HAND
    }


def test_the_committed_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    outputs = [
        f"--{plugin}_out={tmp_path}" for plugin in ("python", "mypy", "grpc_python", "mypy_grpc")
    ]
    protos = sorted(str(path.relative_to(PROJECT)) for path in PROTOS.glob("*.proto"))
    generated = run(sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *outputs, *protos)
    assert generated.returncode == 0, generated.stderr

    fresh, committed = contents(tmp_path / "headrace" / "v1"), contents(GENERATED)

    assert sorted(fresh) == sorted(committed), "run `make proto`"
    changed = [name for name in fresh if fresh[name] != committed[name]]
    assert changed == [], "run `make proto`"


@pytest.mark.parametrize("command", ["lint", "format --diff --exit-code"])
def test_the_protos_keep_to_bufs_rules(command: str) -> None:
    checked = run("buf", *command.split())
    assert checked.returncode == 0, checked.stdout + checked.stderr
