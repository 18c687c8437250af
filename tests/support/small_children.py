"""Very small child processes for the launcher: a run of them in a folder."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.cli.ending import Ending
from headrace.cli.keeper import AskStanding, Part, Ports
from headrace.cli.launcher import Command
from headrace.cli.supervisor import Supervisor, nobody_knows
from headrace.config.services import LauncherConfig

PROGRAM = """
import json, os, pathlib, signal, sys

folder, name, behaviour, port, metrics, peers = sys.argv[1:]
folder = pathlib.Path(folder)

def note(what):
    with (folder / "history").open("a") as file:
        file.write(f"{name} {what}\\n")

def on_sigterm(*_):
    note("stopped")
    sys.exit(0)

signal.signal(signal.SIGTERM, on_sigterm)
if behaviour == "saves":
    def on_sigterm(*_):
        import time
        time.sleep(1)
        note("saved")
        sys.exit(130)
    signal.signal(signal.SIGTERM, on_sigterm)
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note(f"started {peers}".strip())
if behaviour == "wrong":
    print("error: no such data set")
    sys.exit(2)
if behaviour != "silent":
    own = os.getpid() % 1000
    found = {
        "address": f"127.0.0.1:{port if port != '0' else 4000 + own}",
        "metrics": f"127.0.0.1:{metrics if metrics != '0' else 5000 + own}",
        "pid": os.getpid(),
    }
    file = folder / f"{name}.new"
    file.write_text(json.dumps(found))
    file.replace(folder / f"{name}.json")
if behaviour == "raises":
    raise OSError(28, "No space left on device")
if behaviour == "home":
    import time
    time.sleep(0.3)
    sys.exit(0)
if behaviour.startswith("exit"):
    print("the last words")
    sys.exit(int(behaviour[4:]))
if behaviour == "once" and not (folder / f"{name}.died").exists():
    (folder / f"{name}.died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    signal.pause()
"""

SETTINGS = LauncherConfig(max_restarts=2, stop_grace_s=5, start_timeout_s=20)


class Run:
    """A run of small children in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[str] = []

    def part(
        self,
        name: str,
        behaviour: str,
        *,
        needs: tuple[str, ...] = (),
        is_main: bool = False,
        resumes: bool = False,
        may_leave: bool = False,
        saving_s: float = 0.0,
    ) -> Part:
        def command(addresses: Mapping[str, str], ports: Ports) -> Command:
            peers = ",".join(addresses[name] for name in needs)
            program = [sys.executable, "-S", "-c", PROGRAM, str(self.folder)]
            return Command(
                name=name,
                arguments=[*program, name, behaviour, *map(str, ports), peers],
                log=self.folder / f"{name}.log",
                announcement=self.folder / f"{name}.json",
            )

        return Part(
            name,
            command,
            needs=needs,
            is_main=is_main,
            resumes=resumes,
            may_leave=may_leave,
            saving_s=saving_s,
        )

    def supervisor(
        self,
        *parts: Part,
        settings: LauncherConfig = SETTINGS,
        standing: AskStanding = nobody_knows,
    ) -> Supervisor:
        return Supervisor(parts, settings, report=self.reports.append, standing=standing)

    async def ending(
        self,
        *parts: Part,
        settings: LauncherConfig = SETTINGS,
        standing: AskStanding = nobody_knows,
    ) -> Ending:
        supervisor = self.supervisor(*parts, settings=settings, standing=standing)
        supervisor.start()
        try:
            return await asyncio.wait_for(supervisor.over(), 30)
        finally:
            await supervisor.stop(supervisor.names)

    def history(self) -> list[str]:
        file = self.folder / "history"
        return file.read_text().splitlines() if file.exists() else []
