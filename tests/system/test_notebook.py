"""The notebook that is shipped, executed against a run whose replay buffer is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from headrace.client import connect

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "live_run.ipynb"
STOP_S = 60.0
CONFIG: dict[str, Any] = {
    "run": {"name": "notebook"},
    "data": {
        "source": {
            "kind": "python",
            "function": "headrace.feeder.sources.digits:digit_rows",
            "options": {"task": "sort", "digits": 4, "size": 20000, "seed": 1},
        },
        "train_batch_size": 4,
        "max_prompt_length": 8,
        "max_response_length": 5,
    },
    "model": {
        "architecture": "gpt2",
        "options": {"n_layer": 1, "n_embd": 16, "n_head": 1, "n_positions": 16},
        "tokenizer": {"alphabet": "0123456789>", "eos": ";"},
    },
    "rollout": {"n": 2, "engine": {"kind": "scripted", "mean_latency_s": 0.5}},
    "reward": {"kind": "positional"},
    "trainer": {"num_warmup_batches": 4, "threads": 1, "tensorboard": False},
    "sampler": {"max_off_policy_strategy": "none"},
}


@asynccontextmanager
async def a_run(directory: Path) -> AsyncIterator[Path]:
    """Start `headrace run` and give its run directory; interrupt it at the end."""
    config, place = directory / "config.yaml", directory / "runs" / "one"
    config.write_text(yaml.safe_dump(CONFIG))
    with (directory / "run.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli.main", "run", str(config), "--plain"),
            f"run.run_dir={place}",
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        async with asyncio.timeout(120):
            while not (place / "endpoints" / "replay.json").exists():
                assert process.returncode is None, (directory / "run.log").read_text()
                await asyncio.sleep(0.1)
        yield place
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(STOP_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Killer:
    """Kills the replay buffer when a cell with these words is done."""

    def __init__(self, run: Path, words: str) -> None:
        self._announced = run / "endpoints" / "replay.json"
        self._words = words
        self.killed = 0

    def __call__(self, *, cell: Any, **_: Any) -> None:
        if cell.cell_type == "code" and self._words in cell.source:
            os.kill(json.loads(self._announced.read_text())["pid"], signal.SIGKILL)
            self.killed += 1


async def interrupted_watch(run: Path) -> Any:
    """Watch a run without an end, interrupt the kernel as a user does, and go on."""
    cells = [
        f"from headrace.client import connect; run = connect({str(run)!r})",
        "run.watch()",
        "'went on'",
    ]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))

    def interrupt_after_a_while(*, cell: Any, **_: Any) -> None:
        if cell.source == "run.watch()":
            asyncio.get_running_loop().call_later(
                5, lambda: asyncio.ensure_future(client.km.interrupt_kernel())
            )

    client = NotebookClient(notebook, timeout=120, on_cell_start=interrupt_after_a_while)
    await client.async_execute()
    return notebook


def shown(notebook: Any, kind: str) -> list[str]:
    """Give all outputs of a kind."""
    return [
        output.data[kind]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if kind in output.get("data", {})
    ]


@pytest.mark.timeout(600)
async def test_the_notebook_runs_against_a_live_run_word_for_word(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    async with a_run(tmp_path) as place:
        killer = Killer(place, "run.watch(for_s=5)")
        client = NotebookClient(
            notebook,
            timeout=300,
            resources={"metadata": {"path": str(NOTEBOOK.parent)}},
            on_cell_executed=killer,
        )
        env = {**os.environ, "HEADRACE_RUN": str(place.parent), "OMP_NUM_THREADS": "1"}
        await client.async_execute(env=env)  # raises what a cell raises
        watching = await interrupted_watch(place)

    assert killer.killed == 1
    assert len(shown(notebook, "image/png")) == 3
    tables = shown(notebook, "text/html")
    assert "notebook" in tables[0] or "one" in tables[0]
    assert any("step_committed" in table for table in tables)
    assert any("paused" in table for table in tables)
    assert "['x1r0', 'x1r1']" in shown(notebook, "text/plain")
    assert shown(notebook, "text/plain")[-1] == "True"

    assert "step " in shown(watching, "text/html")[-1]
    assert shown(watching, "text/plain")[-1] == "'went on'"

    after = await asyncio.to_thread(lambda: connect(place).audit())
    assert after.ok, after.violations


def test_the_notebook_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
