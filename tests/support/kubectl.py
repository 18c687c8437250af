"""The cluster that `kubectl` reaches, and the namespace of docs/kubernetes.md in it."""

from __future__ import annotations

import base64
import json
import subprocess


def kubectl(*words: str, check: bool = True) -> str:
    """Run a command in the namespace; give what it prints."""
    done = subprocess.run(
        ["kubectl", "-n", "headrace", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or not check, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


def pods(component: str) -> list[str]:
    """Name the pods of a component that are not done."""
    found = json.loads(kubectl("get", "pods", "-l", f"app.kubernetes.io/component={component}",
                               "-o", "json"))  # fmt: skip
    return [
        each["metadata"]["name"]
        for each in found["items"]
        if each["status"]["phase"] in {"Pending", "Running"}
        and "deletionTimestamp" not in each["metadata"]
    ]


def running(selector: str) -> dict[str, str]:
    """Give the addresses of running pods, by name."""
    found = json.loads(kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
    return {
        each["metadata"]["name"]: each["status"]["podIP"]
        for each in found
        if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
    }


def refused() -> set[str]:
    """Name the components of which a container ended with exit code 2: it cannot be used so."""
    found = json.loads(kubectl("get", "pods", "-o", "json"))["items"]
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in found
        for container in each["status"].get("containerStatuses", ())
        for state in (container["state"], container["lastState"])
        if state.get("terminated", {}).get("exitCode") == 2
    }


def node() -> str:
    """Name the only node."""
    [name] = kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    return name


def address(service: str) -> str:
    """Give a Service's address, which stays; the node, this machine, reaches it."""
    found = json.loads(kubectl("get", "service", service, "-o", "json"))["spec"]
    return f"{found['clusterIP']}:{found['ports'][0]['port']}"


def secret(name: str, key: str) -> bytes:
    """Read a Secret."""
    data = json.loads(kubectl("get", "secret", name, "-o", "json"))["data"]
    return base64.b64decode(data[key])
