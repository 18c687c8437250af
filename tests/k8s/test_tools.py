"""What other people's checkers say about the manifests and the Dockerfile: nothing.

`make check-k8s` installs them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from manifests import OVERLAYS, ROOT, rendered, require

pytestmark = pytest.mark.timeout(300)

VERSIONS = ("1.29.0", "1.37.0")
"""Of Kubernetes: the oldest that docs/kubernetes.md promises, and the newest known."""


def check(*command: str) -> None:
    done = subprocess.run(
        [require(command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr


def written(overlay: str, directory: Path) -> Path:
    path = directory / f"{overlay}.yaml"
    path.write_text(rendered(overlay))
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", ["cpu-demo", "gpu-vllm"])
def test_kubernetes_has_everything_that_an_overlay_sets(
    overlay: str, version: str, tmp_path: Path
) -> None:
    check("kubernetes-validate", "--strict", "-k", version, str(written(overlay, tmp_path)))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_checkov_finds_no_right_that_is_not_needed(overlay: str, tmp_path: Path) -> None:
    check("checkov", "--config-file", "k8s/checkov.yaml", "-f", str(written(overlay, tmp_path)))


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    check("hadolint", "docker/Dockerfile")
