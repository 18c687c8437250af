"""Finds what does not fit together in rendered manifests: names, ports, volumes, policies.

Each check gives a line per problem, so that a test can show that it finds one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config.config import Config
from headrace.config.load import load_config

ROOT = Path(__file__).parent.parent.parent
OVERLAYS = ("cpu-demo", "gpu-vllm", "legacy-1.20")
BY_HAND = {
    ("Secret", "headrace-tls"),
    ("Secret", "headrace-token"),
    ("Secret", "headrace-object-storage"),
    ("PersistentVolumeClaim", "models"),
}
"""What docs/kubernetes.md has its readers make."""
VERSIONS = ("1.29.0", "1.37.0")
"""Of Kubernetes: the oldest that docs/kubernetes.md promises, and the newest known."""
KUBELETS = "health"
"""The port that only the kubelet of the pod's own node asks."""
WORKLOADS = ("StatefulSet", "Deployment", "Job")

Object = dict[str, Any]


def require(tool: str) -> str:
    """Find a program; a machine without it skips the test, except in CI."""
    found = shutil.which(tool)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{tool} is not installed, and CI is set")
        pytest.skip(f"{tool} is not installed")
    return found


def check(*command: str) -> None:
    """Run a checker on something; it finds nothing."""
    done = subprocess.run(
        [require(command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr


@cache
def rendered(overlay: str) -> str:
    """Render an overlay, offline."""
    command = [require("kubectl"), "kustomize", str(ROOT / "k8s" / "overlays" / overlay)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def config_of(overlay: str) -> Config:
    """Read an overlay's configuration."""
    return load_config(_configuration(overlay))


def _configuration(overlay: str) -> Path:
    there = ROOT / "k8s" / "overlays" / overlay / "run.yaml"
    return there if there.exists() else _configuration("cpu-demo")


def objects(overlay: str) -> list[Object]:
    """Give the objects of an overlay, to change at will."""
    return list(yaml.safe_load_all(rendered(overlay)))


def of_kind(manifests: Iterable[Object], *kinds: str) -> Iterator[Object]:
    """Pick objects by kind."""
    return (found for found in manifests if found["kind"] in kinds)


def name_of(manifest: Object) -> str:
    """Name an object."""
    return str(manifest["metadata"]["name"])


def pod_of(workload: Object) -> Object:
    """Give a workload's pod."""
    pod: Object = workload["spec"]["template"]
    return pod


def container_of(workload: Object) -> Object:
    """Give the only container of a workload's pods."""
    [container] = pod_of(workload)["spec"]["containers"]
    return dict(container)


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector takes these labels."""
    return all(
        labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()
    ) and all(
        labels.get(wish["key"]) in wish["values"]
        for wish in selector.get("matchExpressions", ())
        if wish["operator"] == "In"
    )


def problems(manifests: list[Object]) -> list[str]:
    """Find everything that does not fit together."""
    checks = (references, services, volumes, policies, passwords, budgets, probes, rights)
    return [problem for check in checks for problem in check(manifests)]


def _refers(workload: Object) -> Iterator[tuple[str, str]]:
    """What a workload refers to, by kind and name."""
    spec = pod_of(workload)["spec"]
    yield "ServiceAccount", spec.get("serviceAccountName", "default")
    if workload["kind"] == "StatefulSet":
        yield "Service", workload["spec"]["serviceName"]
    for volume in spec.get("volumes", ()):
        for source in (volume, *volume.get("projected", {}).get("sources", ())):
            if "configMap" in source:
                yield "ConfigMap", source["configMap"]["name"]
            if "secret" in source:
                yield "Secret", source["secret"].get("secretName") or source["secret"]["name"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    for container in spec["containers"]:
        for source in container.get("envFrom", ()):
            yield "Secret", source["secretRef"]["name"]


def references(manifests: list[Object]) -> Iterator[str]:
    """See that what is referred to is there, or made by hand, and that nothing else is."""
    there = {(found["kind"], name_of(found)) for found in manifests}
    used = set()
    for workload in of_kind(manifests, *WORKLOADS):
        for reference in _refers(workload):
            used.add(reference)
            if reference not in there | BY_HAND:
                yield f"{name_of(workload)} refers to {reference}, which nobody makes"
        yield from _keys(workload, manifests)
    for kind in ("ServiceAccount", "ConfigMap", "PersistentVolumeClaim"):
        for found in of_kind(manifests, kind):
            if (kind, name_of(found)) not in used:
                yield f"{kind} {name_of(found)} is used by nobody"
    for scaler in of_kind(manifests, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        if (target["kind"], target["name"]) not in there:
            yield f"{name_of(scaler)} scales {target}, which is not there"


def _keys(workload: Object, manifests: list[Object]) -> Iterator[str]:
    """See that the configuration that a container is started with is in the ConfigMap."""
    maps = {name_of(found): found["data"] for found in of_kind(manifests, "ConfigMap")}
    spec, container = pod_of(workload)["spec"], container_of(workload)
    sources = {volume["name"]: volume.get("configMap") for volume in spec["volumes"]}
    keys = {
        f"{mount['mountPath']}/{key}"
        for mount in container["volumeMounts"]
        if (source := sources.get(mount["name"]))
        for key in maps.get(source["name"], ())
    }
    wanted = [word for word in container["args"] if word.endswith(".yaml")]
    if (keys or wanted) and not (wanted and keys.issuperset(wanted)):
        yield f"{name_of(workload)} is started with {wanted}, the ConfigMap has {sorted(keys)}"


def services(manifests: list[Object]) -> Iterator[str]:
    """See that each Service finds pods of one workload, and ports that these have."""
    workloads = list(of_kind(manifests, *WORKLOADS))
    for service in of_kind(manifests, "Service"):
        spec = service["spec"]
        found = [
            workload
            for workload in workloads
            if selects({"matchLabels": spec["selector"]}, pod_of(workload)["metadata"]["labels"])
        ]
        if len(found) != 1:
            yield f"Service {name_of(service)} finds {[name_of(each) for each in found]}"
        ports = {port["name"] for each in found for port in container_of(each)["ports"]}
        for port in spec["ports"]:
            if port["targetPort"] not in ports:
                yield f"Service {name_of(service)}: no container has a port {port['targetPort']}"
    for workload in workloads:
        selector = workload["spec"].get("selector", {})
        if not selects(selector, pod_of(workload)["metadata"]["labels"]):
            yield f"{name_of(workload)} does not select its own pods"


def volumes(manifests: list[Object]) -> Iterator[str]:
    """See that what is mounted is a volume, and that volumes are mounted."""
    for workload in of_kind(manifests, *WORKLOADS):
        spec = pod_of(workload)["spec"]
        made = [volume["name"] for volume in spec.get("volumes", ())]
        claims = workload["spec"].get("volumeClaimTemplates", ())
        made += [claim["metadata"]["name"] for claim in claims]
        mounted = {mount["name"] for mount in container_of(workload)["volumeMounts"]}
        if mounted != set(made):
            yield f"{name_of(workload)} mounts {sorted(mounted)} and has {sorted(made)}"


def policies(manifests: list[Object]) -> Iterator[str]:
    """See that every port is closed but to those that a policy names, and that none is left out."""
    found = list(of_kind(manifests, "NetworkPolicy"))
    for workload in of_kind(manifests, *WORKLOADS):
        labels = pod_of(workload)["metadata"]["labels"]
        own = [policy for policy in found if selects(policy["spec"]["podSelector"], labels)]
        closed = {kind for policy in own for kind in policy["spec"]["policyTypes"]}
        if closed != {"Ingress", "Egress"}:
            yield f"no policy closes {name_of(workload)}"
        allowed = {
            port["port"]
            for policy in own
            for rule in policy["spec"].get("ingress", ())
            for port in rule["ports"]
        }
        ports = {port["name"]: port["containerPort"] for port in container_of(workload)["ports"]}
        for name, number in ports.items():
            called = name != KUBELETS and not (workload["kind"] == "Deployment" and name == "grpc")
            if called and number not in allowed:
                yield f"no policy lets anybody to port {number} of {name_of(workload)}"
        for number in allowed - set(ports.values()):
            yield f"a policy opens port {number} of {name_of(workload)}, which it has not"


def may_call(manifests: list[Object], caller: Object, callee: Object, port: int) -> bool:
    """Whether the policies let pods of one workload call a port of another's, at both ends."""
    return _allows(manifests, "egress", "to", caller, callee, port) and _allows(
        manifests, "ingress", "from", callee, caller, port
    )


def _allows(
    manifests: list[Object], way: str, side: str, here: Object, there: Object, port: int
) -> bool:
    own, other = (pod_of(each)["metadata"]["labels"] for each in (here, there))
    return any(
        selects(peer["podSelector"], other)
        for policy in of_kind(manifests, "NetworkPolicy")
        if selects(policy["spec"]["podSelector"], own)
        for rule in policy["spec"].get(way, ())
        if port in [each["port"] for each in rule["ports"]]
        for peer in rule.get(side, ())
        if "podSelector" in peer
    )


def passwords(manifests: list[Object]) -> Iterator[str]:
    """See that Redis, which knows the token, listens under TLS only."""
    for workload in of_kind(manifests, *WORKLOADS):
        words = " ".join(container_of(workload).get("args", ()))
        if "--requirepass" in words and "--port 0 --tls-port" not in words:
            yield f"{name_of(workload)} takes its password in the clear"


def budgets(manifests: list[Object]) -> Iterator[str]:
    """See that budgets are for pods that are there."""
    pods = [pod_of(each)["metadata"]["labels"] for each in of_kind(manifests, *WORKLOADS)]
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        if not any(selects(budget["spec"]["selector"], labels) for labels in pods):
            yield f"PodDisruptionBudget {name_of(budget)} is for nobody"


def probes(manifests: list[Object]) -> Iterator[str]:
    """See that all are probed, and that nobody is killed for not being ready."""
    for workload in of_kind(manifests, *WORKLOADS):
        container = container_of(workload)
        found = [container.get(f"{kind}Probe") for kind in ("startup", "liveness", "readiness")]
        if not all(found):
            yield f"{name_of(workload)} lacks a probe"
        if name_of(workload) == "redis":
            continue
        for probe in filter(None, found[:2]):
            if probe.get("grpc", {}).get("service") != "live" and "tcpSocket" not in probe:
                yield f"{name_of(workload)} is restarted when it is not ready"


def rights(manifests: list[Object]) -> Iterator[str]:
    """See that no pod may do what it need not."""
    for account in of_kind(manifests, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount {name_of(account)} gives its token away"
    for workload in of_kind(manifests, *WORKLOADS):
        spec, container = pod_of(workload)["spec"], container_of(workload)
        wanted = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        if container.get("securityContext") != wanted:
            yield f"{name_of(workload)}'s container may do more than it needs"
        pod = spec.get("securityContext", {})
        if not pod.get("runAsNonRoot") or pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name_of(workload)}'s pod may do more than it needs"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name_of(workload)} gets a token of Kubernetes"
        if "memory" not in container["resources"].get("limits", {}):
            yield f"{name_of(workload)} may take all memory"
