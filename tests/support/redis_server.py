"""A real redis-server of the test's own: started, killed and started again on the same socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import redis


def require_redis() -> str:
    """Find redis-server; a machine without one skips the test, except in CI."""
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is not installed, and CI is set")
        pytest.skip("redis-server is not installed")
    return found


class RedisServer:
    """A redis-server with AOF and `appendfsync always`, unless told otherwise."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self._binary = require_redis()
        self.directory = directory
        self._socket = Path(f"/tmp/headrace-{os.getpid()}-{id(self)}.sock")
        self._settings = {"appendonly": "yes", "appendfsync": "always", "save": ""} | settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        options = [
            word
            for name, value in self._settings.items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        self._process = subprocess.Popen(
            [
                self._binary, "--port", "0", "--unixsocket", str(self._socket),
                "--dir", str(self.directory), *options,
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        client = redis.Redis.from_url(self.url)
        for _ in range(1000):
            try:
                client.ping()
            except redis.exceptions.RedisError:
                time.sleep(0.01)
            else:
                client.close()
                return
        pytest.fail("redis-server did not come up")

    def kill(self) -> None:
        """kill -9."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            self.kill()
        self._socket.unlink(missing_ok=True)
