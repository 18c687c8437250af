"""docs/kubernetes.md on a real cluster, word for word; meanwhile everything dies once and moves.

Needs a cluster that `kubectl` reaches, whose only node is this machine and takes images from its
Docker engine; `make test-k8s` runs it. HEADRACE_K8S_OVERLAY names the overlay for it.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from manifests import ROOT

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(3600)]

OVERLAY = os.environ.get("HEADRACE_K8S_OVERLAY", "legacy-1.20")
VOLUMES = Path("/var/lib/headrace")
OWNERS = {"redis": 10002, "store": 10001, "checkpoints": 10001}
"""Of the directories that legacy-1.20 has as volumes."""
STEPS = int(os.environ.get("HEADRACE_K8S_STEPS", "600"))
"""More than go by while everything is killed and moved; a slow machine needs fewer."""
SEED = 7
ONCE = ["redis-0", "replay-0", "feeder-0", "store-0", "checkpoint-0"]
LOOK = ["--replay", "localhost:7000", "--token-file", "/certs/token", "--ca", "/certs/ca.crt"]


def kubectl(*words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["kubectl", "-n", "headrace", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or not check, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


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
    wait_for(f"step {goal}", lambda now: int(now["committed_step"]) >= goal)
    assert not status()["ended"], "the run is over before everything was tried: give it more steps"


def step() -> int:
    return int(wait_for("an answer", bool)["committed_step"])


def resumes(now: dict[str, Any]) -> int:
    """Count how often the run went back to a checkpoint."""
    return len(now.get("lineages", ())) - 1


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


class Guide:
    """The commands of docs/kubernetes.md, in a copy of the checkout with a longer run."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self._commands: list[str] = re.findall(
            r"```bash\n(.*?)```", (checkout / "docs" / "kubernetes.md").read_text(), re.DOTALL
        )

    def until(self, word: str) -> None:
        """Run the commands up to, and with, the next that has this word."""
        while True:
            command = self._commands.pop(0)
            self._run(command.replace("overlays/cpu-demo", f"overlays/{OVERLAY}"))
            if word in command:
                return

    @property
    def is_read(self) -> bool:
        """Whether nothing is left."""
        return not self._commands

    def _run(self, command: str) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.checkout, env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        print(f"$ {command}\n{done.stdout}", flush=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{kubectl('get', 'pods')}"


def copy_checkout(there: Path) -> None:
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    wheels = [str(path.relative_to(ROOT)) for path in (ROOT / "docker/wheels").glob("*.whl")]
    for name in [*names, *wheels]:
        if (ROOT / name).is_file():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, there / name)
    config = there / "k8s/overlays/cpu-demo/run.yaml"
    text = config.read_text()
    longer = text.replace(
        "total_training_steps: 250", f"total_training_steps: {STEPS}\n  save_freq: 10"
    )
    assert longer != text
    config.write_text(longer)


def forget() -> None:
    """Remove everything of an earlier test."""
    subprocess.run(["kubectl", "delete", "namespace", "headrace", "--ignore-not-found"], check=True)
    if OVERLAY == "legacy-1.20":
        subprocess.run(
            [
                "kubectl",
                "delete",
                "pv",
                "--ignore-not-found",
                *(f"headrace-{name}" for name in OWNERS),
            ],
            check=True,
        )
        shutil.rmtree(VOLUMES, ignore_errors=True)


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    forget()
    if OVERLAY == "legacy-1.20":
        for name, owner in OWNERS.items():
            (VOLUMES / name).mkdir(parents=True)
            os.chown(VOLUMES / name, owner, owner)
    copy_checkout(tmp_path)
    yield Guide(tmp_path)
    print(kubectl("get", "pods", "-o", "wide", check=False))
    forget()


def restart(chance: random.Random) -> None:
    """Delete each pod once, at a random moment; the trainer's as if its node were lost."""
    for pod in [*ONCE, *pods("rollout")]:
        time.sleep(chance.uniform(0, 5))
        kubectl("delete", "pod", pod, "--wait=false")
        wait_for_steps(3)
    before = wait_for("a checkpoint", lambda now: int(now["saved_step"]) > 0)
    kubectl("delete", "pod", *pods("trainer"), "--grace-period=0", "--force")
    now = wait_for("a resume", lambda now: resumes(now) > resumes(before))
    assert int(now["resume"]["step"]) >= int(before["saved_step"])
    wait_for_steps(3)


def roll() -> None:
    """Roll everything while it works; then workers that never become ready hold up nobody."""
    for kind in ("statefulset", "deployment"):
        kubectl("rollout", "restart", kind)
    for workload in ["statefulset/" + pod.removesuffix("-0") for pod in ONCE]:
        kubectl("rollout", "status", workload, "--timeout=10m")
    kubectl("rollout", "status", "deployment/rollout", "--timeout=10m")
    wait_for_steps(3)
    wrong = {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "rollout.n=0"}
    for change in (
        ["set", "image", "deployment/rollout", "headrace=headrace-rollout:none"],
        ["patch", "deployment", "rollout", "--type=json", "-p", json.dumps([wrong])],
    ):
        serving = pods("rollout")
        kubectl(*change)
        wait_for_steps(5)
        assert set(serving) < set(pods("rollout"))
        kubectl("rollout", "undo", "deployment/rollout")
        kubectl("rollout", "status", "deployment/rollout", "--timeout=10m")


def drain() -> None:
    """Drain the node, with all that is on it, and let it be used again."""
    [node] = kubectl("get", "nodes", "-o", "name").splitlines()
    before = wait_for("an answer", bool)
    kubectl("drain", node, "--delete-emptydir-data", "--timeout=5m", "--pod-selector",
            "app.kubernetes.io/part-of=headrace")  # fmt: skip
    kubectl("uncordon", node)
    wait_for("a resume", lambda now: resumes(now) > resumes(before))
    wait_for_steps(3)


def test_a_run_of_the_docs_survives_its_pods_and_ends(guide: Guide) -> None:
    guide.until("--replicas=4")
    assert len(pods("rollout")) == 4
    guide.until("--replicas=1")
    wait_for("three workers to have gone", lambda _: len(pods("rollout")) == 1)
    wait_for_steps(3)
    restart(random.Random(SEED))
    roll()
    drain()
    before = wait_for("an answer", bool)
    guide.until("delete job trainer")
    now = wait_for("a resume", lambda now: resumes(now) > resumes(before))
    assert int(now["resume"]["step"]) >= int(before["committed_step"]), "its step was not saved"
    wait_for_steps(3)
    guide.until("port-forward")
    check_end(status())
    guide.until("flushall")
    assert guide.is_read
    check_end(wait_for("the end again", lambda now: bool(now["ended"])))
    print(kubectl("exec", "replay-0", "--", "headrace", "audit", *LOOK))


def check_end(ended: dict[str, Any]) -> None:
    """See that every step was trained, each with its batch, and saved."""
    assert ended["ended"]
    assert int(ended["counts"]["trained"]) == STEPS * 32
    assert int(ended["saved_step"]) == STEPS
    told = ("counts", "regenerated", "resume", "lineages")
    print(json.dumps({key: ended.get(key) for key in told}, indent=2))
