"""What docs/kubernetes.md shows fits the manifests; what is run of it, `make test-k8s` runs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from manifests import (
    BY_HAND,
    OVERLAYS,
    ROOT,
    VERSIONS,
    WORKLOADS,
    check,
    config_of,
    container_of,
    name_of,
    objects,
    of_kind,
    pod_of,
    problems,
    selects,
)

DOCS = (ROOT / "docs" / "kubernetes.md").read_text()
BLOCKS = DOCS.split("```")[1::2]


def shown(word: str) -> dict[str, Any]:
    """Give the one object that a block of YAML, or a command's own, has with this word."""
    [text] = [block for block in BLOCKS if word in block]
    inner = re.search(r"<<'END'\n(.*)^END$", text, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = yaml.safe_load(inner[1] if inner else text.removeprefix("yaml\n"))
    return found


def called(overlay: str) -> set[str]:
    """Name the hosts that processes call."""
    config = config_of(overlay)
    endpoints = config.endpoints.model_dump(exclude={"bind_host", "advertise_host"})
    hosts = {str(address).partition(":")[0] for address in endpoints.values()}
    return hosts | {str(urlsplit(str(config.journal.redis_url)).hostname)}


def test_every_block_is_run_by_make_test_k8s_or_says_that_it_is_not() -> None:
    for block in BLOCKS:
        assert block.startswith(("bash\n", "yaml\n# Not run")), block


def test_what_is_made_by_hand_is_said() -> None:
    for _, name in BY_HAND:
        assert name in DOCS
    for overlay in OVERLAYS:
        tls = config_of(overlay).security.tls
        assert tls is not None
        for file in (tls.ca, tls.cert, tls.key):
            assert f"--from-file={file.name}=" in DOCS


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_certificates_name_everybody_who_is_called(overlay: str) -> None:
    made = re.findall(r"headrace certs init certs(.*)", DOCS)
    assert len(made) == 2
    for options in made:
        assert called(overlay) == set(re.findall(r"--host (\S+)", options))
    certificate = shown("kind: Certificate")["spec"]
    assert set(certificate["dnsNames"]) == called(overlay) | {"localhost"}
    assert ("Secret", certificate["secretName"]) in BY_HAND


def test_prometheus_finds_each_process_by_a_name_of_its_certificate() -> None:
    [job] = shown("scrape_configs")["scrape_configs"]
    assert job["tls_config"]["server_name"] in shown("kind: Certificate")["spec"]["dnsNames"]
    [keep] = [rule for rule in job["relabel_configs"] if rule.get("action") == "keep"]
    for workload in of_kind(objects("gpu-vllm"), *WORKLOADS):
        ports = [port["name"] for port in container_of(workload)["ports"]]
        assert (keep["regex"] in ports) is (name_of(workload) != "redis")


def test_prometheus_gives_the_labels_that_the_autoscaler_goes_by() -> None:
    [job] = shown("scrape_configs")["scrape_configs"]
    given = {rule.get("target_label") for rule in job["relabel_configs"]}
    [scaler] = of_kind(objects("gpu-vllm"), "HorizontalPodAutoscaler")
    for metric in scaler["spec"]["metrics"]:
        assert given.issuperset(metric["external"]["metric"]["selector"]["matchLabels"])


def test_the_policy_for_a_service_of_your_own_is_one_for_workers(tmp_path: Path) -> None:
    policy = shown("kind: NetworkPolicy")
    for workload in of_kind(objects("cpu-demo"), *WORKLOADS):
        labels = pod_of(workload)["metadata"]["labels"]
        is_worker = name_of(workload) == "rollout"
        assert selects(policy["spec"]["podSelector"], labels) is is_worker
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(policy))
    for version in VERSIONS:
        check("kubernetes-validate", "--strict", "-k", version, str(path))


def test_modules_of_your_own_are_found_by_those_who_import_them(tmp_path: Path) -> None:
    base = os.path.relpath(ROOT / "k8s" / "overlays" / "cpu-demo", tmp_path)
    added = shown("name: mine")
    (tmp_path / "my_rewards.py").write_text("def score(*, response): return 1.0\n")
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"namespace": "headrace", "resources": [base], **added})
    )

    found = objects(str(tmp_path))

    assert problems(found) == []
    for workload in of_kind(found, *WORKLOADS):
        container = container_of(workload)
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        paths = [each["value"] for each in container.get("env", ()) if each["name"] == "PYTHONPATH"]
        imports = name_of(workload) in ("rollout", "feeder")
        assert paths == ([places["mine"]] if imports else [])
