"""A real redis-server of the test's own: started, killed and started again at the same address."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    """A redis-server with AOF and `appendfsync always`, unless told otherwise.

    Listens on a port of 127.0.0.1 if it is given one, else on a socket of its own.
    """

    def __init__(self, directory: Path, port: int = 0, **settings: str) -> None:
        self._binary = require_redis()
        self.directory = directory
        self._port = port
        self._socket = Path(f"/tmp/headrace-{os.getpid()}-{id(self)}.sock")
        self._settings = {"appendonly": "yes", "appendfsync": "always", "save": ""} | settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0" if self._port else f"unix://{self._socket}"

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
        where = [] if self._port else ["--unixsocket", str(self._socket)]
        self._process = subprocess.Popen(
            [
                self._binary, "--port", str(self._port), "--bind", "127.0.0.1", *where,
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

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def freeze(self, to: Path) -> Path:
        """Copy what a killed server has on its disk."""
        return shutil.copytree(self.directory / "appendonlydir", to / "appendonlydir").parent

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            self.kill()
        self._socket.unlink(missing_ok=True)


@contextmanager
def thawed(directory: Path) -> Iterator[str]:
    """Serve what was frozen to a directory; gives the URL."""
    server = RedisServer(directory)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
