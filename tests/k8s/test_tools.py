"""What other people's checkers say about the manifests and the Dockerfile: nothing.

`make check-k8s` installs them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from manifests import OVERLAYS, VERSIONS, check, rendered

pytestmark = pytest.mark.timeout(300)


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
