"""Starts a part of a run - `replay`, `store`, `rollout` - as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.config.config import Config
from headrace.rpc import announce

MAIN = """
    import asyncio, importlib, pathlib, sys
    from headrace.config.config import Config
    from headrace.errors import UsageError
    from headrace.log import configure
    from headrace.rpc.process import ProcessOptions

    if __name__ == "__main__":
        part, name, config, announcement, port = sys.argv[1:]
        configure(name, "test")
        run = importlib.import_module(f"headrace.{part}.process").run
        options = ProcessOptions(
            name=name, port=int(port), announce=pathlib.Path(announcement)
        )
        try:
            sys.exit(asyncio.run(run(Config.model_validate_json(config), options)))
        except UsageError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
"""


@dataclass
class Part:
    """A process under way."""

    process: asyncio.subprocess.Process
    log: Path
    announcement: Path

    async def address(self) -> str:
        """Wait until it announces where it listens."""
        async with asyncio.timeout(60):
            while True:
                announced = announce.read(self.announcement)
                if announced is not None and announced.pid == self.process.pid:
                    return announced.address
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.02)

    async def exit_code(self) -> int:
        async with asyncio.timeout(60):
            return await self.process.wait()


@asynccontextmanager
async def started(
    part: str,
    config: Config,
    directory: Path,
    name: str,
    *,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Part]:
    """Start it; it is killed in the end if it still runs."""
    log = directory / f"{name}.log"
    announcement = directory / f"{name}.json"
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(MAIN),
            part,
            name,
            config.model_dump_json(),
            str(announcement),
            str(port),
            stderr=file,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield Part(process, log, announcement)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
