"""The feeder in a process of its own: the real one, on a file of rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.bench.child import running
from headrace.bench.stopwatch import cpu_of
from headrace.config.config import Config
from headrace.feeder.process import run
from headrace.rpc.process import ProcessOptions

ROW_COUNT = 200_000


def write_rows(path: Path) -> None:
    """Write rows, more than any run of the benchmark reads."""
    rows = ({"prompt": f"{i:08}", "answer": f"{i:08}"} for i in range(ROW_COUNT))
    path.write_text("\n".join(json.dumps(row) for row in rows))


def _serve(_pipe: Connection, config_json: str) -> None:
    config = Config.model_validate_json(config_json)
    asyncio.run(run(config, ProcessOptions(name="feeder")))


@asynccontextmanager
async def running_feeder(
    replay: str, rows: Path, *, batch_size: int, chunk_size: int
) -> AsyncIterator[Callable[[], float]]:
    """Start one that reads so many rows at a time (G); yield the CPU seconds it has used."""
    config = Config.model_validate(
        {
            "run": {"run_dir": str(rows.parent), "run_id": "bench"},
            "data": {
                "source": {"kind": "jsonl", "path": str(rows)},
                "train_batch_size": batch_size,
                "gen_batch_size": chunk_size,
            },
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "0123456789", "eos": "."}},
            "endpoints": {"replay": replay},
        }
    )
    async with running("feeder", _serve, config.model_dump_json()) as child:
        yield cpu_of(child.pid)
