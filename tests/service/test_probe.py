"""`headrace probe` against real processes: not ready, ready, nobody there."""

from __future__ import annotations

import asyncio
import sys

from headrace.rpc.process import Process


async def probed(address: str) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli.main", "probe", address,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await child.communicate()
    assert child.returncode is not None
    return child.returncode, output.decode()


async def test_a_process_is_probed_before_and_after_it_is_ready() -> None:
    process = Process(name="p", run_id="r", stall_after_s=60)
    address = await process.start(lambda _: [])
    code, said = await probed(address)
    assert (code, "NOT_SERVING" in said) == (1, True)
    process.ready()
    code, said = await probed(address)
    assert (code, said.strip()) == (0, f"{address}: SERVING")
    await process.close(grace_s=0)
    code, said = await probed(address)
    assert code == 1
    assert "UNAVAILABLE" in said
    assert "Traceback" not in said
