"""Workers of two runs on one machine, with one folder for the weights of both."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import probed
from vllm_world import MARKS, make_model

pytestmark = MARKS

NAME = "qwen3-tied"
VERSIONS = 3
WORKER = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import vllm_world
from headrace.v1 import prompt_pb2

async def main():
    async with vllm_world.running() as engine:
        for line in sys.stdin:
            weights, seeds = json.loads(line)
            await engine.load(prompt_pb2.PublishedWeights.FromString(bytes.fromhex(weights)))
            requests = [vllm_world.request(session) for session in range(8)]
            await vllm_world.sampled(engine, requests)
            gaps = [
                max(vllm_world.gap(vllm_world.make_model(sys.argv[2], seed), asked) for asked in requests)
                for seed in seeds
            ]
            print(json.dumps(gaps), flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


class Neighbour:
    """A process with a vLLM, of a run of its own."""

    def __init__(self, run_id: str, first_seed: int, process: asyncio.subprocess.Process) -> None:
        self.run_id = run_id
        self._first_seed = first_seed
        self._process = process

    @classmethod
    async def start(cls, run_id: str, first_seed: int, script: Path) -> Neighbour:
        support = str(Path(probed.__file__).parent)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), support, NAME,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(run_id, first_seed, process)

    def seed(self, version: int) -> int:
        return self._first_seed + version

    async def gaps(self, root: Path, version: int, seeds: list[int]) -> Any:
        """Have it take a version, and give how far its samples are from the models of seeds."""
        model = make_model(NAME, self.seed(version))
        weights = probed.publish(root, model, version, run_id=self.run_id)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        told = json.dumps([weights.SerializeToString().hex(), seeds])
        self._process.stdin.write(f"{told}\n".encode())
        async with asyncio.timeout(300):
            return json.loads(await self._process.stdout.readline())

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(60):
            assert await self._process.wait() == 0


async def test_workers_of_two_runs_on_one_machine_do_not_mix_their_weights(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    one, other = await asyncio.gather(
        Neighbour.start("one", 0, script), Neighbour.start("other", VERSIONS, script)
    )

    for version in range(VERSIONS):
        seeds = [one.seed(version), other.seed(version)]
        both = await asyncio.gather(
            *(worker.gaps(tmp_path / "weights", version, seeds) for worker in (one, other))
        )

        [[own, foreign], [foreign_too, own_too]] = both
        assert max(own, own_too) < 1e-4
        assert min(foreign, foreign_too) > 1e-2

    await asyncio.gather(one.close(), other.close())
