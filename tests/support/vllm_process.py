"""Real vLLM servers, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from ports import free_port

from headrace.rollout.engines.vllm_server.facts import BACKEND, EXTENSION

START_S = 600.0


class ServerProcess:
    """A server at a port of its own, which can be killed and started again."""

    def __init__(self, model: Path, log: Path) -> None:
        self.model = model
        self.log = log
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--host", "127.0.0.1", "--port", str(self.port),
            "--enable-scale-out", "--logprobs-mode", "processed_logprobs",
            "--generation-config", "vllm",
            "--weight-transfer-config", f'{{"backend": "{BACKEND}"}}',
            "--worker-extension-cls", EXTENSION,
            "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager",
            "--kv-cache-memory-bytes", str(2**26), "--block-size", "32",
        ]  # fmt: skip
        environment = {
            **os.environ, "VLLM_SERVER_DEV_MODE": "1", "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        }  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            said = self.log.read_text()[-3000:]
            assert self._process.poll() is None, f"it ended: {said}"
            assert time.monotonic() < deadline, f"it does not answer: {said}"
            time.sleep(0.5)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """End all its processes at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_engine(self) -> None:
        """End the process that has the scheduler, of which the one that answers is the parent."""
        assert self._process is not None
        found = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self._process.pid)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        [core] = [line.split()[0] for line in found.stdout.splitlines() if "EngineCore" in line]
        os.kill(int(core), signal.SIGKILL)

    def gauge(self, name: str) -> float:
        """Read one of its metrics."""
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


@contextmanager
def server_process(model: Path, log: Path) -> Iterator[ServerProcess]:
    """Give a server that answers."""
    server = ServerProcess(model, log)
    try:
        server.start()
        yield server
    finally:
        server.kill()
