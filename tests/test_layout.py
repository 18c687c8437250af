"""The traps of a namespace package that several folders fill, and of heavy imports."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
ROOTS = tuple(PROJECT / root for root in ("services", "trainer", "rollout", "proto/gen"))
SERVICES = sorted(
    path.name
    for path in (PROJECT / "services" / "headrace").iterdir()
    if path.name != "__pycache__"
)


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: str(root.relative_to(PROJECT)))
def test_no_root_claims_the_namespace_for_itself(root: Path) -> None:
    assert (root / "headrace").is_dir()
    assert not (root / "headrace" / "__init__.py").exists()


def test_no_subpackage_lives_in_two_roots() -> None:
    # Python would take the first and say nothing of the other.
    names = Counter(
        path.stem
        for root in ROOTS
        for path in (root / "headrace").iterdir()
        if path.name != "__pycache__"
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_every_subpackage_is_a_package_with_types() -> None:
    packages = [path for root in ROOTS for path in (root / "headrace").iterdir() if path.is_dir()]
    for package in packages:
        if package.name != "__pycache__":
            assert (package / "__init__.py").is_file(), package
            assert (package / "py.typed").is_file(), package


def modules(name: str) -> list[str]:
    """Return all modules of a subpackage, or of a module, of the services."""
    services = PROJECT / "services"
    path = services / "headrace" / name
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    dotted = (".".join(file.relative_to(services).with_suffix("").parts) for file in files)
    return [module.removesuffix(".__init__") for module in dotted]


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "store"])
def test_importing_a_service_imports_no_torch(name: str) -> None:
    # The whole package, module by module; a `__main__` is imported, not run.
    script = (
        "import importlib, sys\n"
        f"for module in {modules(name)!r}:\n"
        "    importlib.import_module(module)\n"
        "heavy = {'torch', 'transformers', 'transfer_queue', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
