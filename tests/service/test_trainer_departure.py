"""How a trainer's process ends that is told to: in its time, or at once."""

from __future__ import annotations

import asyncio
import signal
import sys

PROGRAM = """
import asyncio, sys
from headrace.trainer.departure import Departure

async def main():
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    loop.add_signal_handler(15, asked.set)
    departure = Departure(asked, grace_s=float(sys.argv[1]))
    departure.loses_nothing = lambda: False
    print("ready", flush=True)
    await departure.leaving.wait()
    print("leaving", flush=True)
    if sys.argv[2] == "hangs":
        await asyncio.Event().wait()
    departure.close()

asyncio.run(main())
"""


async def start(grace_s: float, then: str = "ends") -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(grace_s), then, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def output(process: asyncio.subprocess.Process) -> str:
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return out.decode()


async def test_when_its_time_is_up_every_wait_ends() -> None:
    process = await start(0.2)
    process.send_signal(signal.SIGTERM)
    assert "leaving" in await output(process)
    assert process.returncode == 0


async def test_a_second_signal_ends_it_at_once() -> None:
    process = await start(1e6)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert b"at_most_s" in await process.stdout.readline()  # the first has been taken
    process.send_signal(signal.SIGINT)
    assert "a second signal" in await output(process)
    assert process.returncode == 130
