"""What a user gets who installs the package, without extras, where nothing of ours is."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SERVICES = sorted(
    path.stem
    for path in (PROJECT / "services" / "headrace").iterdir()
    if path.name != "__pycache__"
)
HEAVY = ("torch", "transformers", "transfer_queue", "ray", "numpy")
CONFIG = """
data:
  source: {kind: jsonl, path: rows.jsonl}
  train_batch_size: 1
model:
  architecture: gpt2
  tokenizer: {alphabet: "0123456789", eos: "."}
"""

# The package index answers slowly at times.
pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Nothing may reach the project's folders but through the wheel.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    built = run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", directory, PROJECT),
        cwd=directory,
    )
    assert built.returncode == 0, built.stderr
    [path] = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the `bin` of a fresh environment that has the wheel and what it depends on."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=True)
    installed = run(directory / "bin" / "pip", "install", "--quiet", wheel, cwd=directory)
    assert installed.returncode == 0, installed.stderr
    return directory / "bin"


def test_the_wheel_puts_only_headrace_into_site_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    top_level = {name.partition("/")[0] for name in names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {"headrace"}
    assert "headrace/__init__.py" not in names  # it is a namespace, open to others
    assert "headrace/v1/replay_pb2.py" in names


def test_what_is_no_python_comes_along(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    for root in ("services", "trainer", "rollout", "proto/gen"):
        for path in (PROJECT / root / "headrace").rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                assert str(path.relative_to(PROJECT / root)) in names


def test_the_command_helps(binaries: Path, tmp_path: Path) -> None:
    helped = run(binaries / "headrace", "--help", cwd=tmp_path)

    assert helped.returncode == 0, helped.stderr
    assert "headrace run" in helped.stdout


def test_every_service_is_importable_without_extras(binaries: Path, tmp_path: Path) -> None:
    script = (
        "import importlib, importlib.util, pkgutil, sys\n"
        f"found = [name for name in {HEAVY!r} if importlib.util.find_spec(name)]\n"
        "assert not found, f'{found} came with the package'\n"
        f"for name in {SERVICES!r}:\n"
        "    module = importlib.import_module(f'headrace.{name}')\n"
        "    paths = getattr(module, '__path__', [])\n"
        "    for part in pkgutil.walk_packages(paths, f'{module.__name__}.'):\n"
        "        importlib.import_module(part.name)\n"
    )

    imported = run(binaries / "python", "-I", "-c", script, cwd=tmp_path)

    assert imported.returncode == 0, imported.stderr


def test_a_run_without_extras_says_in_one_line_what_to_install(
    binaries: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "answer": "1"}\n')
    (tmp_path / "config.yaml").write_text(CONFIG)

    refused = run(binaries / "headrace", "run", "config.yaml", cwd=tmp_path)

    assert refused.returncode == 2
    [line] = (refused.stdout + refused.stderr).splitlines()
    assert "torch" in line
    assert "pip install 'headrace[local]'" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "rows.jsonl"]
