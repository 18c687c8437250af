"""docs/kubernetes.md on a real cluster, word for word; meanwhile everything dies once and moves.

A watcher outside keeps what it is told all the while; in the end the judge compares that with the
journal in Redis, and with what the weights have seen.

Needs a cluster that `kubectl` reaches, whose only node is this machine and takes images from its
Docker engine; `make test-k8s` runs it. HEADRACE_K8S_OVERLAY names the overlay for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from cluster_run import metrics, resumes, status, wait_for, wait_for_steps
from guide import Guide
from history import Entry
from judge import judge_watched
from judge_journal import read_redis_journal
from kubectl import address, kubectl, node, pods, refused, secret
from manifests import ROOT
from scene import eventually, rules_of
from watcher import RECONNECT, Watcher

from headrace.v1 import replay_pb2

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(3600)]

OVERLAY = os.environ.get("HEADRACE_K8S_OVERLAY", "legacy-1.20")
CONFIGURATION = "k8s/overlays/cpu-demo/run.yaml"
VOLUMES = Path("/var/lib/headrace")
OWNERS = {"redis": 10002, "store": 10001, "checkpoints": 10001}
"""Of the directories that legacy-1.20 has as volumes."""
STEPS = 5000
"""More than go by while everything is killed and moved."""
LAST_STEPS = 200
"""So many are left when all of that has been tried; their number is changed for it."""
MORE_STEPS = 20
"""So many are trained where the run is moved to when it is over."""
ROWS = 200_000
"""Enough for all of them."""
SEED = 7
PROCESSES = ("replay", "feeder", "store", "checkpoint", "trainer", "rollout")
ONCE = ["redis-0", "replay-0", "feeder-0", "store-0", "checkpoint-0"]
OUTAGE_S = 600.0
"""How long the replay buffer may not answer: a drain moves it, Redis and what they need."""
AUDIT_EVERY_S = 2.0


def copy_checkout(there: Path) -> None:
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    wheels = [str(path.relative_to(ROOT)) for path in (ROOT / "docker/wheels").glob("*.whl")]
    for name in [*names, *wheels]:
        if (ROOT / name).is_file():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, there / name)
    change(there, "total_training_steps: 250", f"total_training_steps: {STEPS}\n  save_freq: 10")
    change(there, "size: 20000", f"size: {ROWS}")
    # The judge wants to know of every prompt, also behind a checkpoint.
    change(there, "kind: redis\n", f"kind: redis\n  keep_settled: {ROWS}\n")


def configuration(checkout: Path) -> dict[str, Any]:
    """Give the run's configuration as it is now."""
    found: dict[str, Any] = yaml.safe_load((checkout / CONFIGURATION).read_text())
    return found


def change(checkout: Path, before: str, after: str) -> None:
    """Edit the run's configuration."""
    config = checkout / CONFIGURATION
    text = config.read_text()
    assert text.count(before) == 1, before
    config.write_text(text.replace(before, after))


def forget() -> None:
    """Remove everything of an earlier test."""
    subprocess.run(["kubectl", "delete", "namespace", "headrace", "--ignore-not-found"], check=True)
    if OVERLAY == "legacy-1.20":
        volumes = [f"headrace-{name}" for name in OWNERS]
        subprocess.run(["kubectl", "delete", "pv", "--ignore-not-found", *volumes], check=True)
        shutil.rmtree(VOLUMES, ignore_errors=True)


def begin() -> None:
    """Have a cluster without anything of the run, and with empty volumes for it."""
    forget()
    if OVERLAY == "legacy-1.20":
        for name, owner in OWNERS.items():
            (VOLUMES / name).mkdir(parents=True)
            os.chown(VOLUMES / name, owner, owner)


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    begin()
    copy_checkout(tmp_path)
    yield Guide(tmp_path, OVERLAY)
    print(kubectl("get", "pods", "-o", "wide", check=False))
    forget()


@asynccontextmanager
async def watching() -> AsyncIterator[Watcher]:
    """Audit, and watch every event, all the while."""
    tls = grpc.ssl_channel_credentials(secret("headrace-tls", "ca.crt"))
    token = grpc.access_token_call_credentials(secret("headrace-token", "token").decode().strip())
    options = [
        *RECONNECT,
        ("grpc.ssl_target_name_override", "replay"),
        ("grpc.keepalive_time_ms", 30_000),  # a node may take a pod away without a word
        ("grpc.http2.max_pings_without_data", 0),
    ]
    channel = grpc.aio.secure_channel(
        address("replay"), grpc.composite_channel_credentials(tls, token), options
    )
    watcher = Watcher(channel, outage_s=OUTAGE_S)
    looking = [
        asyncio.create_task(watcher.keep_auditing(AUDIT_EVERY_S)),
        asyncio.create_task(watcher.keep_watching()),
    ]
    try:
        yield watcher
    finally:
        for task in looking:
            task.cancel()
        for ended in await asyncio.gather(*looking, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        await watcher.close()


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


def roll(guide: Guide) -> None:
    """Roll everything while it works, for a change of the configuration: an end that is near.

    First a change that nobody can start with: the next one replaces what it has stopped.
    """
    kubectl("rollout", "restart", "statefulset/redis")
    before = wait_for("an answer", bool)
    old = {pod for component in ("trainer", "rollout") for pod in pods(component)}
    roll_what_is_wrong(guide)
    change(guide.checkout, "  n: 0\n", "  n: 16\n")
    last = int(before["committed_step"]) + LAST_STEPS
    change(guide.checkout, f"total_training_steps: {STEPS}", f"total_training_steps: {last}")
    guide.follow("Change and upgrade")
    wait_for_all()
    wait_for("a resume", lambda now: resumes(now) > resumes(before))
    assert old.isdisjoint({*pods("trainer"), *pods("rollout")})


def wait_for_all() -> None:
    """Wait until everything but the trainer is rolled out."""
    for workload in ["statefulset/" + pod.removesuffix("-0") for pod in ONCE]:
        kubectl("rollout", "status", workload, "--timeout=10m")
    kubectl("rollout", "status", "deployment/rollout", "--timeout=10m")


def roll_what_is_wrong(guide: Guide) -> None:
    """Apply a configuration that cannot be used: all but the old workers stop at it."""
    serving = pods("rollout")
    change(guide.checkout, "  n: 16\n", "  n: 0\n")
    kubectl("delete", "job", "trainer", "--cascade=foreground")
    kubectl("apply", "-k", str(guide.checkout / "k8s/overlays" / OVERLAY))
    for _ in range(100):
        if refused() == {*PROCESSES}:
            break
        time.sleep(2)
    assert refused() == {*PROCESSES}
    assert set(serving) < set(pods("rollout"))


def roll_a_bad_image() -> None:
    """Roll workers out that never become ready: they hold up nobody."""
    serving = pods("rollout")
    kubectl("set", "image", "deployment/rollout", "headrace=headrace-rollout:none")
    wait_for_steps(5)
    assert set(serving) < set(pods("rollout"))
    kubectl("rollout", "undo", "deployment/rollout")
    kubectl("rollout", "status", "deployment/rollout", "--timeout=10m")


def adopt(guide: Guide) -> None:
    """Make the StatefulSets anew, to go on with their pods."""
    before = wait_for("an answer", bool)
    uids = ["get", "pods", *ONCE, "-o", "jsonpath={.items[*].metadata.uid}"]
    old = kubectl(*uids)
    guide.mentioned("--cascade=orphan")
    guide.until("delete job trainer")
    now = wait_for("a resume", lambda now: resumes(now) > resumes(before))
    assert int(now["resume"]["step"]) >= int(before["committed_step"]), "its step was not saved"
    wait_for_all()
    assert kubectl(*uids) == old


def fill_the_journal(guide: Guide) -> None:
    """Let Redis have no room for more, until the guide gives it some."""
    redis = 'REDISCLI_AUTH="$(cat /certs/token)" redis-cli --tls --insecure'
    kubectl("exec", "redis-0", "--", "sh", "-c", f"{redis} config set maxmemory 1mb")
    time.sleep(2)
    assert status() == {}, "it goes on without a journal"
    guide.follow("The journal's room")
    wait_for_steps(3)


def observe(guide: Guide) -> None:
    """Ask everybody for metrics, as Prometheus does."""
    guide.mentioned("label namespace", "headrace")
    answers = metrics()
    assert {pod.partition("-")[0] for pod in answers} == {*PROCESSES}
    for pod, answer in answers.items():
        assert f'headrace_process_info{{process="{pod.partition("-")[0]}' in answer, pod


def renew(guide: Guide) -> None:
    """Give everybody a new certificate and a new token."""
    old = secret("headrace-token", "token")
    guide.follow("Certificates")
    wait_for_all()
    assert secret("headrace-token", "token") != old
    wait_for("an answer under them", lambda now: bool(now["ended"]))


def move(guide: Guide) -> None:
    """Take the checkpoints to a cluster that has nothing of the run, and train on there."""
    last = configuration(guide.checkout)["trainer"]["total_training_steps"]
    change(guide.checkout, f"total_training_steps: {last}",
           f"total_training_steps: {last + MORE_STEPS}")  # fmt: skip
    guide.until("verify backup")
    begin()
    guide.again("create namespace")
    guide.until("checkpoints verify /run/headrace")
    ended = wait_for("the end there", lambda now: bool(now["ended"]))
    assert (int(ended["resume"]["step"]), ended["resume"]["restored"]) == (last, True)
    check_end(guide.checkout, ended)


def drain_workers() -> None:
    """Drain four workers: the budget lets one of them go, the others work until it is replaced."""
    drain_node("app.kubernetes.io/component=rollout", "--timeout=30s", check=False)
    ready = kubectl("get", "deployment", "rollout", "-o", "jsonpath={.status.readyReplicas}")
    assert ready == "3"
    wait_for_steps(3)
    kubectl("uncordon", node())
    kubectl("rollout", "status", "deployment/rollout", "--timeout=10m")


def drain(guide: Guide) -> None:
    """Drain the node, with all that is on it, and let it be used again."""
    before = wait_for("an answer", bool)
    drain_node("app.kubernetes.io/part-of=headrace", "--timeout=5m")
    guide.mentioned("uncordon", node())
    wait_for("a resume", lambda now: resumes(now) > resumes(before))
    wait_for_steps(3)


def drain_node(selector: str, *options: str, check: bool = True) -> None:
    kubectl("drain", node(), "--delete-emptydir-data", "--pod-selector", selector, *options,
            check=check)  # fmt: skip


def disturb(guide: Guide) -> None:
    """Follow the guide to the run's end, with everything that may happen on the way."""
    kubectl("scale", "deployment/rollout", "--replicas=1")
    guide.until("--replicas=4")
    assert len(pods("rollout")) == 4
    drain_workers()
    guide.until("--replicas=1")
    wait_for("three workers to have gone", lambda _: len(pods("rollout")) == 1)
    wait_for_steps(3)
    restart(random.Random(SEED))
    roll_a_bad_image()
    drain(guide)
    adopt(guide)
    wait_for_steps(3)
    fill_the_journal(guide)
    observe(guide)
    guide.follow("Your own task")
    for command in ("describe pod", "logs"):
        guide.mentioned(command, pods("rollout")[0])
    roll(guide)
    guide.until("port-forward")
    check_end(guide.checkout, status())


async def test_a_run_of_the_docs_survives_its_pods_and_ends(guide: Guide) -> None:
    await asyncio.to_thread(guide.until, "rollout status deployment/rollout")
    async with watching() as watcher:
        await asyncio.to_thread(disturb, guide)
        seen = seen_by_the_weights(guide.checkout)
        assert await found_by_the_judge(guide.checkout, watcher, seen) == []
    await asyncio.to_thread(renew, guide)
    await asyncio.to_thread(move, guide)
    async with watching() as watcher:
        # The journal begins with the checkpoint whose weights were asked above.
        assert await found_by_the_judge(guide.checkout, watcher, None) == []
    await asyncio.to_thread(guide.until, "flushall")
    check_end(guide.checkout, wait_for("the end again", lambda now: bool(now["ended"])))
    async with watching() as watcher:
        assert await found_by_the_judge(guide.checkout, watcher, None) == []
    guide.mentioned("delete namespace")
    assert guide.left == ["kubectl delete node NAME"], "all but the only node"


def check_end(checkout: Path, ended: dict[str, Any]) -> None:
    """See that every step was trained, each with its batch, and saved."""
    last = configuration(checkout)["trainer"]["total_training_steps"]
    assert ended["ended"]
    assert int(ended["counts"]["trained"]) == last * 32
    assert int(ended["saved_step"]) == last
    told = ("counts", "regenerated", "resume", "lineages")
    print(json.dumps({key: ended.get(key) for key in told}, indent=2))


def seen_by_the_weights(checkout: Path) -> str:
    """Read what the weights of the checkpoint that the guide has copied have seen."""
    last = configuration(checkout)["trainer"]["total_training_steps"]
    [state] = checkout.glob(f"checkpoints/global_step_{last}/trainer/*/state.json")
    return str(json.loads(state.read_text())["seen"])


async def found_by_the_judge(checkout: Path, watcher: Watcher, seen: str | None) -> list[str]:
    """Judge the run, once the watcher was told of everything."""
    last = await watcher.audit()
    await eventually(lambda: watcher.told >= last.position)
    return await asyncio.to_thread(judged, checkout, watcher.history, last, seen)


def judged(
    checkout: Path, history: Sequence[Entry], last: replay_pb2.AuditResponse, seen: str | None
) -> list[str]:
    """Judge what was seen of the run, and its journal."""
    config = configuration(checkout)
    token = secret("headrace-token", "token").decode().strip()
    tls = f"ssl_ca_certs={checkout}/certs/ca.pem&ssl_check_hostname=false"
    url = f"rediss://:{token}@{address('redis')}/0?{tls}"
    records = read_redis_journal(url, config["run"]["run_id"])
    audits = sum(entry.call == "Audit" and not entry.error for entry in history)
    print(f"the judge reads {len(records)} events and {audits} audits")
    rules = rules_of(config, may_drop=["stale", "stale_at_restore"])
    return judge_watched(records, history, last, replace(rules, first_steps=STEPS), seen)
