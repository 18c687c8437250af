"""The run of docs/kubernetes.md as it answers: its status, and its metrics."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
from kubectl import kubectl, running, secret

LOOK = ["--replay", "localhost:7000", "--token-file", "/certs/token", "--ca", "/certs/ca.crt"]
METRICS_PORT = 9090


def status() -> dict[str, Any]:
    """Ask the replay buffer; {} while it is away."""
    answer = kubectl("exec", "replay-0", "--", "headrace", "status", "--json", *LOOK, check=False)
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        return {}
    return found


def wait_for(what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the run's status holds; give it."""
    for _ in range(200):
        now = status()
        if now and holds(now):
            return now
        time.sleep(2)
    pytest.fail(f"waited in vain for {what}:\n{kubectl('get', 'pods')}")


def wait_for_steps(more: int) -> None:
    """Wait until training has gone on by so many steps."""
    goal = step() + more
    now = wait_for(f"step {goal}", lambda now: int(now["committed_step"]) >= goal)
    assert not now["ended"], "the run is over before everything was tried: give it more steps"


def step() -> int:
    """Give the last committed step."""
    return int(wait_for("an answer", bool)["committed_step"])


def resumes(now: dict[str, Any]) -> int:
    """Count how often the run went back to a checkpoint."""
    return len(now.get("lineages", ())) - 1


def metrics() -> dict[str, str]:
    """Ask each pod for its metrics as the guide has Prometheus do it: under the name `replay`."""
    tls = ssl.create_default_context(cadata=secret("headrace-tls", "ca.crt").decode())
    token = secret("headrace-token", "token").decode().strip()
    asked = f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    answers = {}
    for name, ip in running("app.kubernetes.io/component!=redis").items():
        with (
            socket.create_connection((ip, METRICS_PORT), timeout=30) as plain,
            tls.wrap_socket(plain, server_hostname="replay") as link,
        ):
            link.sendall(asked)
            answers[name] = link.makefile().read()
    return answers
