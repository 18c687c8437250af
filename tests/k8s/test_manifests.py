"""The manifests of k8s/ fit together, and fit the code that they start."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml
from manifests import (
    OVERLAYS,
    ROOT,
    WORKLOADS,
    Object,
    config_of,
    container_of,
    may_call,
    name_of,
    objects,
    of_kind,
    pod_of,
    problems,
    rendered,
)

from headrace.cli.credentials import make_credentials
from headrace.cli.main import app
from headrace.cli.preflight import preflight
from headrace.cli.single import PEERS, peers
from headrace.replay.group import STATES
from headrace.replay.groups import state_name

PROCESSES = tuple(PEERS)
REDIS_PORT = 6379
CLOSE_GRACE_S = 5.0
"""How long calls under way may take when a process closes."""


def workload(manifests: list[Object], name: str) -> Object:
    return next(each for each in of_kind(manifests, *WORKLOADS) if name_of(each) == name)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_is_referred_to_is_there_and_matches(overlay: str) -> None:
    assert problems(objects(overlay)) == []


def break_reference(found: list[Object]) -> None:
    pod_of(workload(found, "feeder"))["spec"]["serviceAccountName"] = "nobody"


def break_secret(found: list[Object]) -> None:
    sources = pod_of(workload(found, "replay"))["spec"]["volumes"]
    projected = next(each["projected"] for each in sources if "projected" in each)
    projected["sources"][0]["secret"]["name"] = "headrace-tsl"


def break_key(found: list[Object]) -> None:
    for each in of_kind(found, "ConfigMap"):
        each["data"]["my.yaml"] = each["data"].pop("run.yaml")


def break_port(found: list[Object]) -> None:
    service = next(each for each in of_kind(found, "Service") if name_of(each) == "store")
    service["spec"]["ports"][0]["targetPort"] = "grcp"


def break_selector(found: list[Object]) -> None:
    service = next(each for each in of_kind(found, "Service") if name_of(each) == "store")
    service["spec"]["selector"]["app.kubernetes.io/component"] = "stor"


def break_volume(found: list[Object]) -> None:
    container = pod_of(workload(found, "trainer"))["spec"]["containers"][0]
    container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] != "checkpoints"]


def break_policy(found: list[Object]) -> None:
    found[:] = [each for each in found if name_of(each) != "trainer-grpc"]


def break_closing(found: list[Object]) -> None:
    found[:] = [each for each in found if name_of(each) not in {"nothing", "names"}]


def break_password(found: list[Object]) -> None:
    container = pod_of(workload(found, "redis"))["spec"]["containers"][0]
    container["args"][0] = container["args"][0].replace("--port 0 --tls-port", "--port")


def break_budget(found: list[Object]) -> None:
    for each in of_kind(found, "PodDisruptionBudget"):
        each["spec"]["selector"] = {"matchLabels": {"app": "rollout"}}


def break_liveness(found: list[Object]) -> None:
    container = pod_of(workload(found, "store"))["spec"]["containers"][0]
    container["livenessProbe"] = container["readinessProbe"]


def break_rights(found: list[Object]) -> None:
    container = pod_of(workload(found, "store"))["spec"]["containers"][0]
    container["securityContext"]["readOnlyRootFilesystem"] = False


@pytest.mark.parametrize(
    "fault",
    [
        break_reference, break_secret, break_key, break_port, break_selector, break_volume,
        break_policy, break_closing, break_password, break_budget, break_liveness, break_rights,
    ],
)  # fmt: skip
@pytest.mark.parametrize("overlay", ["cpu-demo", "legacy-1.20"])
def test_what_does_not_fit_is_found(overlay: str, fault: Callable[[list[Object]], None]) -> None:
    found = objects(overlay)
    fault(found)
    assert problems(found) != []


@pytest.mark.parametrize("overlay", ["cpu-demo", "legacy-1.20"])
def test_the_configuration_passes_config_check(overlay: str, tmp_path: Path) -> None:
    [found] = of_kind(objects(overlay), "ConfigMap")
    path = tmp_path / "run.yaml"
    path.write_text(found["data"]["run.yaml"])
    made = make_credentials(tmp_path, (), days=1, force=False, now=datetime.now(UTC))
    files = {"ca": made.ca, "cert": made.cert, "key": made.key}
    overrides = [f"security.tls.{key}={file}" for key, file in files.items()]
    checked = preflight(path, [*overrides, f"security.token_file={made.token}"])
    assert checked.warnings == ()


def test_the_configuration_for_gpus_is_one() -> None:
    config = config_of("gpu-vllm")
    assert config.rollout.engine.kind == "vllm"
    assert config.checkpoint.storage is not None


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_process_may_call_whom_it_calls_and_nobody_else(overlay: str) -> None:
    found, config = objects(overlay), config_of(overlay)
    for caller in PROCESSES:
        for callee in PROCESSES:
            if caller == callee:
                continue
            allowed = may_call(found, workload(found, caller), workload(found, callee), 7000)
            assert allowed is (callee in peers(caller, config)), f"{caller} to {callee}"
        to_redis = may_call(found, workload(found, caller), workload(found, "redis"), REDIS_PORT)
        assert to_redis is (caller == "replay")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_addresses_of_the_configuration_are_those_of_the_services(overlay: str) -> None:
    found, config = objects(overlay), config_of(overlay)
    services = {
        f"{name_of(each)}:{port['port']}"
        for each in of_kind(found, "Service")
        for port in each["spec"]["ports"]
    }
    endpoints = config.endpoints.model_dump(exclude={"bind_host", "advertise_host"})
    assert services.issuperset(endpoints.values())
    assert urlsplit(str(config.journal.redis_url)).netloc in services


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("process", PROCESSES)
def test_a_container_is_started_with_words_that_the_command_line_knows(
    overlay: str, process: str
) -> None:
    container = container_of(workload(objects(overlay), process))
    command: Any = typer.main.get_command(app)
    words = list(container["args"])
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    values = command.make_context(command.name, words).params
    assert command.name == {"trainer": "train", "rollout": "worker"}.get(process, process)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (values["port"], values["metrics_port"], values["health_port"]) == (
        ports["grpc"], ports["metrics"], ports["health"]
    )  # fmt: skip


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_longer_to_go_than_its_process_takes(overlay: str) -> None:
    from headrace.rollout.worker import DRAIN_S, FAREWELL_S

    found, config = objects(overlay), config_of(overlay)
    needs = dict.fromkeys(PROCESSES, CLOSE_GRACE_S)
    needs["rollout"] += DRAIN_S + FAREWELL_S
    needs["trainer"] += config.checkpoint.preempt_grace_s
    for process, least in needs.items():
        given = pod_of(workload(found, process))["spec"]["terminationGracePeriodSeconds"]
        assert given >= 1.25 * least, process


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_there_are_never_two_of_what_a_run_has_once(overlay: str) -> None:
    found = objects(overlay)
    for process in {*PROCESSES, "redis"} - {"rollout", "trainer"}:
        each = workload(found, process)
        assert (each["kind"], each["spec"]["replicas"]) == ("StatefulSet", 1)
    trainer = workload(found, "trainer")
    assert (trainer["kind"], trainer["spec"]["parallelism"]) == ("Job", 1)
    assert pod_of(trainer)["spec"]["restartPolicy"] == "Never"
    if overlay != "legacy-1.20":  # what makes Kubernetes wait for the old pod's end
        assert "podFailurePolicy" in trainer["spec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_cannot_start_is_replaced_by_the_next_change(overlay: str) -> None:
    """By default a StatefulSet waits for a pod that never becomes ready."""
    for each in of_kind(objects(overlay), "StatefulSet"):
        assert each["spec"]["podManagementPolicy"] == "Parallel", name_of(each)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_the_store_may_hold_fits_into_its_memory_and_onto_its_volume(overlay: str) -> None:
    store, capacity = workload(objects(overlay), "store"), config_of(overlay).store.capacity_bytes
    memory = in_bytes(container_of(store)["resources"]["limits"]["memory"])
    [claim] = store["spec"]["volumeClaimTemplates"]
    assert memory >= 1.5 * capacity
    assert in_bytes(claim["spec"]["resources"]["requests"]["storage"]) >= 2 * capacity


def test_workers_are_scaled_by_a_metric_that_the_replay_buffer_has() -> None:
    """What docs/metrics.md says is what real processes serve: see `test_metrics_endpoint`."""
    found = objects("gpu-vllm")
    [scaler] = of_kind(found, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == name_of(workload(found, "rollout"))
    [metric] = [each["external"]["metric"] for each in scaler["spec"]["metrics"]]
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    assert f"| `{metric['name']}` | gauge | `state`, " in metrics
    [states] = metric["selector"]["matchExpressions"]
    assert states["key"] == "state"
    assert set(states["values"]) <= {state_name(state) for state in STATES}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_redis_is_full_before_the_kernel_or_the_volume_stops_it(overlay: str) -> None:
    redis = workload(objects(overlay), "redis")
    container = container_of(redis)
    [most] = [each["value"] for each in container["env"] if each["name"] == "MAXMEMORY"]
    assert '--maxmemory "$MAXMEMORY" --maxmemory-policy noeviction' in container["args"][0]
    [claim] = redis["spec"]["volumeClaimTemplates"]
    assert in_bytes(container["resources"]["limits"]["memory"]) >= 2 * in_bytes(most)
    assert in_bytes(claim["spec"]["resources"]["requests"]["storage"]) >= 4 * in_bytes(most)


@pytest.mark.parametrize("overlay", ["cpu-demo", "gpu-vllm"])
def test_a_pod_that_is_not_ready_holds_no_drain_up(overlay: str) -> None:
    for each in of_kind(objects(overlay), "PodDisruptionBudget"):
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", name_of(each)


def in_bytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi").removesuffix("gb")) * 2**30


def test_policies_and_their_table_in_the_docs_are_those_of_network_yaml() -> None:
    for path, text in network().written().items():
        assert path.read_text() == text, f"{path}: run `make docs`"


def network() -> ModuleType:
    spec = importlib.util.spec_from_file_location("network", ROOT / "k8s" / "network.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_of_a_patch_is_left(overlay: str) -> None:
    assert "name: any" not in rendered(overlay)
    assert all(yaml.safe_load_all(rendered(overlay)))
