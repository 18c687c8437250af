"""docker-compose.yml for real: it trains, scales, and survives kills and cut networks.

Needs a Docker engine with compose v2 and the images it builds; `make test-compose` runs it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ["docker", "compose", "-p", "headrace-test", "-f", "docker-compose.yml",
           "-f", "docker/compose.test.yaml"]  # fmt: skip
LOOK = ["--replay", "localhost:7000", "--token-file", "/certs/token", "--ca", "/certs/ca.pem"]
SERVICES = ["redis", "replay", "feeder", "store", "rollout"]
"""Everything but the trainer, which cannot resume yet."""


def docker(*words: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


def compose(*words: str, check: bool = True) -> str:
    done = subprocess.run([*COMPOSE, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


def status() -> dict[str, Any]:
    """Ask the replay buffer; {} while it is away."""
    answer = compose("exec", "-T", "replay", "headrace", "status", "--json", *LOOK, check=False)
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        return {}
    return found


def step() -> int:
    return int(status().get("committed_step", 0))


def wait_for_steps(more: int) -> None:
    """Wait until training has gone on by so many steps."""
    goal = None
    for _ in range(300):
        now = step()
        goal = now + more if goal is None and now else goal
        if (goal is not None and now >= goal) or trainer_state()["Status"] == "exited":
            return
        time.sleep(1)
    pytest.fail(f"training does not go on: {compose('ps', '-a')}")


def trainer_state() -> dict[str, Any]:
    name = compose("ps", "-a", "-q", "trainer")
    state: dict[str, Any] = json.loads(docker("inspect", "-f", "{{json .State}}", name))
    return state


@pytest.fixture(scope="module", autouse=True)
def run() -> Iterator[None]:
    compose("down", "--volumes", "--remove-orphans", check=False)
    compose("up", "-d")
    yield
    print(compose("logs", "--no-color", "--tail", "5"))
    compose("down", "--volumes", "--remove-orphans")


def test_a_run_survives_what_happens_to_its_containers_and_ends() -> None:
    wait_for_steps(3)
    compose("up", "-d", "--no-recreate", "--scale", "rollout=4")
    wait_for_steps(3)
    for service in SERVICES:
        container = compose("ps", "-q", service).splitlines()[0]
        pid = int(docker("inspect", "-f", "{{.State.Pid}}", container))
        os.kill(pid, signal.SIGKILL)
        wait_for_steps(3)
    for service in SERVICES:
        container = compose("ps", "-q", service).splitlines()[0]
        network = "headrace-test_journal" if service == "redis" else "headrace-test_run"
        docker("network", "disconnect", network, container)
        time.sleep(8)
        docker("network", "connect", "--alias", service, network, container)
        wait_for_steps(3)

    for _ in range(600):
        if trainer_state()["Status"] == "exited":
            break
        time.sleep(1)
    assert trainer_state()["ExitCode"] == 0
    print(compose("exec", "-T", "replay", "headrace", "audit", *LOOK))
    ended = status()
    assert ended["ended"]
    counts = ended["counts"]
    assert int(counts["trained"]) == 120 * 32
    print(json.dumps({"counts": counts, "regenerated": ended.get("regenerated", {})}, indent=2))
