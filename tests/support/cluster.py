"""The services of a run as processes of the test, to be killed, stopped and started again.

Starts them by their commands, on ports chosen beforehand, and shares no code with headrace's own
launcher. When it closes, nothing that it started may be left, and it says so if something is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ports import free_port
from redis_server import RedisServer

SERVICES = ("replay", "store", "feeder")
LIVE = "live"
"""The health service's name for a process that is there, ready or not."""
START_S = 60.0
"""How long a process may take to be ready, on a busy machine."""
GONE_S = 10.0
"""How long what a killed process started may take to notice."""


@dataclass
class Member:
    """One process: its current life, and where it always listens."""

    name: str
    role: str
    """`replay`, `store`, `feeder` or `worker`."""
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Cluster:
    """Replay buffer, store, feeder and workers, by name; and `redis`, if the run has one."""

    def __init__(
        self,
        directory: Path,
        config: dict[str, Any],
        *,
        workers: int = 2,
        redis: RedisServer | None = None,
    ) -> None:
        self.directory = directory
        self.redis = redis
        self.run = directory / "run"
        self.config = directory / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.workers = [f"worker-{number}" for number in range(workers)]
        self.members = {name: Member(name, name) for name in SERVICES}
        self.members |= {name: Member(name, "worker") for name in self.workers}
        self._lives: list[subprocess.Popen[bytes]] = []

    # -- lives

    def start(self, *names: str) -> None:
        """Start processes, all at once; each listens where it did before."""
        for name in names:
            if name == "redis":
                assert self.redis is not None
                self.redis.start(wait=False)
                continue
            member = self.members[name]
            assert member.process is None or member.process.poll() is not None, name
            worker = member.role == "worker"
            words = ["worker", "--name", name] if worker else ["serve", member.role]
            peers = {"replay": (), "feeder": ("replay",), "store": ("replay",)}
            endpoints = [
                f"endpoints.{peer}={self.members[peer].address}"
                for peer in peers.get(member.role, ("replay", "store"))
            ]
            options = ["--port", str(member.port), "--announce", str(self._announced(name))]
            program = [sys.executable, "-m", "headrace.cli.main", *words, str(self.config)]
            with self.log(name).open("ab") as log:
                member.process = subprocess.Popen(
                    [*program, *options, *endpoints],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    # A child whose standard input ends, because the test died, goes by itself.
                    env={**os.environ, "OMP_NUM_THREADS": "1", "HEADRACE_STDIN_IS_PARENT": "1"},
                    start_new_session=True,
                )
            self._lives.append(member.process)

    def add(self, name: str, role: str) -> None:
        """Make place for one more process, to be started."""
        self.members[name] = Member(name, role)

    async def retire(self, name: str) -> int:
        """SIGTERM, for good; give the exit code."""
        code = await self.stop(name)
        del self.members[name]
        return code

    def lose(self, name: str) -> None:
        """SIGKILL, for good."""
        self.kill(name)
        del self.members[name]

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _announced(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def pid(self, name: str) -> int:
        process = self.members[name].process
        assert process is not None
        return process.pid

    def kill(self, name: str) -> None:
        """SIGKILL the process itself, by its id; not what it started."""
        if name == "redis":
            assert self.redis is not None
            self.redis.kill()
            return
        process = self.members[name].process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def pause(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGCONT)

    async def stop(self, name: str, within_s: float = 30.0) -> int:
        """SIGTERM; give the exit code."""
        process = self.members[name].process
        assert process is not None
        process.terminate()
        return await self.ended(name, within_s)

    async def ended(self, name: str, within_s: float = 30.0) -> int:
        """Wait for its end; give the exit code."""
        process = self.members[name].process
        assert process is not None
        return await asyncio.to_thread(process.wait, within_s)

    async def ready(self, *names: str) -> None:
        """Wait until these are SERVING. One that ended by itself is a failure.

        A worker is ready once it has weights, which the test has still to publish: it has to live.
        """
        await asyncio.gather(*(self._ready(name) for name in names))

    async def _ready(self, name: str) -> None:
        member = self.members[name]
        async with asyncio.timeout(START_S), grpc.aio.insecure_channel(member.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest(service=LIVE if member.role == "worker" else "")
            while True:
                assert member.process is not None
                assert member.process.poll() is None, self.log(name).read_text()[-2000:]
                try:
                    answer = await stub.Check(asked, timeout=2)
                    serves = answer.status == health_pb2.HealthCheckResponse.SERVING
                    if serves and self._announced_pid(name) == member.process.pid:
                        break
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(0.05)
        announced = json.loads(self._announced(name).read_text())
        assert (announced["address"], announced["pid"]) == (member.address, member.process.pid)

    def _announced_pid(self, name: str) -> int:
        """Give the process that announced itself last; 0 if none did."""
        announced = self._announced(name)
        return int(json.loads(announced.read_text())["pid"]) if announced.exists() else 0

    # -- the end

    async def close(self) -> list[str]:
        """End everything, the replay buffer last; name what did not end as it should have.

        Redis outlives them all, for they are to end in order.
        """
        faults: list[str] = []
        for names in ([name for name in self.members if name != "replay"], ["replay"]):
            for ended in await asyncio.gather(*(self._end(name) for name in names)):
                faults += ended
        faults += await self._orphans()
        self.kill_all()
        return faults

    async def _end(self, name: str) -> list[str]:
        process = self.members[name].process
        if process is None or process.poll() is not None:
            return []
        os.kill(process.pid, signal.SIGCONT)
        try:
            code = await self.stop(name)
        except subprocess.TimeoutExpired:
            return [f"{name} did not stop"]
        return [f"{name} ended with exit code {code}"] if code else []

    async def _orphans(self) -> list[str]:
        deadline = time.monotonic() + GONE_S
        while left := [life.pid for life in self._lives if _group_lives(life.pid)]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        return [f"process {pid} has left something running" for pid in left]

    def kill_all(self) -> None:
        """Kill everything ever started here, and what that started."""
        if self.redis is not None:
            self.redis.stop()
        for life in self._lives:
            if _group_lives(life.pid):
                os.killpg(life.pid, signal.SIGKILL)
            life.wait()
            assert life.stdin is not None
            life.stdin.close()


def _group_lives(pid: int) -> bool:
    """Whether anything of a process's session lives. A zombie of ours does not count."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, group = (
                    (entry / "stat").read_text().rpartition(")")[2].split(maxsplit=3)[:3]
                )
            except OSError:
                continue
            if int(group) == pid and state != "Z":
                return True
    return False
