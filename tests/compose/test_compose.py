"""docker-compose.yml for real: it trains, scales, and survives kills, restarts and cut networks.

Needs a Docker engine with compose v2 and the images it builds; `make test-compose` runs it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ["docker", "compose", "-p", "headrace-test", "-f", "docker-compose.yml",
           "-f", "docker/compose.test.yaml"]  # fmt: skip
LOOK = ["--replay", "localhost:7000", "--token-file", "/certs/token", "--ca", "/certs/ca.pem"]
STEPS = 300
"""Of the run, in docker/compose.test.yaml: more than go by while everything is killed and cut."""
OTHERS = ["redis", "replay", "feeder", "store", "checkpoint", "rollout"]
"""Everything but the trainer."""


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
    """Wait until training has gone on by so many steps, or to its end."""
    goal = None
    for _ in range(300):
        now = step()
        goal = now + more if goal is None and now else goal
        if (goal is not None and now >= goal) or is_done():
            return
        time.sleep(1)
    pytest.fail(f"training does not go on: {compose('ps', '-a')}")


def wait_for(what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the run's status holds; give it."""
    for _ in range(300):
        now = status()
        if now and holds(now):
            return now
        time.sleep(1)
    pytest.fail(f"waited in vain for {what}: {compose('ps', '-a')}")


def is_done() -> bool:
    state = trainer_state()
    return bool(state["Status"] == "exited" and state["ExitCode"] == 0)


def kill(service: str) -> None:
    """Kill -9 a container's process from outside, as an accident would."""
    container = compose("ps", "-q", service).splitlines()[0]
    os.kill(int(docker("inspect", "-f", "{{.State.Pid}}", container)), signal.SIGKILL)


def resumes(now: dict[str, Any]) -> int:
    """Count how often the run went back to a checkpoint."""
    return len(now.get("lineages", ())) - 1


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
    for service in OTHERS:
        kill(service)
        wait_for_steps(3)
    compose("exec", "-T", "replay", "headrace", "snapshot", *LOOK)
    saved = wait_for("a checkpoint", lambda now: int(now["saved_step"]) > 0)
    kill("trainer")
    now = wait_for("a resume", lambda now: resumes(now) == resumes(saved) + 1)
    assert int(now["resume"]["step"]) >= int(saved["saved_step"])
    wait_for_steps(3)
    for service in [*OTHERS, "trainer"]:
        compose("restart", service)
        wait_for_steps(3)
    before = status()
    compose("stop")
    compose("start")
    now = wait_for("the run to go on", lambda now: resumes(now) == resumes(before) + 1)
    # The trainer saved its last step while those that save with it were still there.
    assert int(now["resume"]["step"]) >= int(before["committed_step"])
    wait_for_steps(3)
    for service in OTHERS:
        container = compose("ps", "-q", service).splitlines()[0]
        network = "headrace-test_journal" if service == "redis" else "headrace-test_run"
        assert not is_done(), "the run is over before everything was tried: give it more steps"
        docker("network", "disconnect", network, container)
        time.sleep(8)
        docker("network", "connect", "--alias", service, network, container)
        wait_for_steps(3)

    for _ in range(600):
        if is_done():
            break
        time.sleep(1)
    assert trainer_state()["ExitCode"] == 0
    print(compose("exec", "-T", "replay", "headrace", "audit", *LOOK))
    ended = status()
    assert ended["ended"]
    counts = ended["counts"]
    assert int(counts["trained"]) == STEPS * 32
    assert int(ended["saved_step"]) == STEPS
    told = ("counts", "regenerated", "resume", "lineages")
    print(json.dumps({key: ended.get(key) for key in told}, indent=2))
