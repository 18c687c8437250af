"""How many tokens an engine makes under a worker, beside the same engine without one.

Under a worker: groups are fed, leased, generated, scored, stored on disk and recorded, by the real
worker, ledger and store, from the first prompt to the trainer's batch. Bare: the engine samples as
many responses to prompts of the same kind, and forgets them.

What a worker does costs the same for any model. So there are two: one of the size of the smallest
that people train, and a toy that makes tokens as fast as a GPU does, with no more cores than there
are here.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from headrace.bench.bare_engine import BareEngine, BareTorch, BareVllm
from headrace.bench.findings import Findings
from headrace.bench.goal import Goal
from headrace.bench.laps import Lap, Laps, Way, interleaved
from headrace.bench.setting import Setting
from headrace.bench.stopwatch import Stopwatch
from headrace.bench.table import Row, microseconds
from headrace.bench.worker_run import Run, running_run
from headrace.config.config import Config
from headrace.config.rollout import TorchEngine
from headrace.config.vllm import VllmEngine
from headrace.tokenizer.load import load_tokenizer
from headrace.v1 import prompt_pb2

LEAST_RATIO: Final = 0.95
HEADING: Final = (
    "rollout: CPU that the worker adds to its process per token; tokens per second / bare engine's"
)
SESSIONS: Final = 8
PROMPT_TOKENS: Final = 32
ALPHABET: Final = "".join(chr(0x4E00 + i) for i in range(509))
"""Many tokens, so that few responses end before their limit."""


@dataclass(frozen=True)
class Size:
    """A model, and how much of it is sampled in a lap."""

    name: str
    layers: int
    heads: int
    """Of 64 numbers each."""
    kv_heads: int
    intermediate: int
    groups: int
    """Of prompts, in a step."""
    most_tokens: int
    """Of a response."""
    has_goal: bool

    @property
    def options(self) -> dict[str, Any]:
        """The model's."""
        return {
            "hidden_size": 64 * self.heads,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": 64,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
        }

    @property
    def batch(self) -> int:
        """Sequences that an engine samples together: a quarter of a step's.

        So what a worker does with those that are done falls into the time of others, but for the
        last.
        """
        return self.groups * SESSIONS // 4


def sizes(*, is_quick: bool) -> list[Size]:
    """Give both models."""
    toy = Size("4 layers", 4, 4, 2, 768, 64, 64 if is_quick else 128, has_goal=False)
    small = Size("SmolLM2-135M's", 30, 9, 3, 1536, 8, 32 if is_quick else 64, has_goal=True)
    return [toy, small]


def _engines(batch: int) -> dict[str, dict[str, Any]]:
    """Give the sections of the engines that are installed, by kind.

    An engine gets half of the cores: the rest of headrace has the others.
    """
    threads = max(1, (os.cpu_count() or 1) // 2)
    found: dict[str, dict[str, Any]] = {
        "torch": {"kind": "torch", "max_batch_sequences": batch, "threads": threads}
    }
    if find_spec("vllm") is not None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings would fill the terminal
        found["vllm"] = {
            "kind": "vllm",
            "threads": threads,
            "kv_cache_memory_bytes": 2**28,
            "engine_args": {"max_num_seqs": batch},
        }
    return found


class Comparison:
    """One engine, under a worker and bare.

    Args:
        directory: where all files go.
        engine: its section.
        size: of the model, and of a lap.

    """

    def __init__(self, directory: Path, engine: dict[str, Any], size: Size) -> None:
        self.directory = directory
        self.size = size
        self._engine = engine
        self._numbers = random.Random(0)
        self._weights = prompt_pb2.PublishedWeights()
        self._eos_id = load_tokenizer(self.make_config({}).model).eos_id

    def make_config(self, endpoints: dict[str, str]) -> Config:
        """Make the run's configuration."""
        return Config.model_validate(
            {
                "run": {"run_dir": str(self.directory), "run_id": "bench"},
                "data": {
                    "source": {"kind": "jsonl", "path": "none"},
                    "train_batch_size": self.size.groups,
                    "max_prompt_length": PROMPT_TOKENS,
                    "max_response_length": self.size.most_tokens,
                },
                "model": {
                    "architecture": "qwen3",
                    "options": self.size.options,
                    "tokenizer": {"alphabet": ALPHABET, "eos": "."},
                },
                "rollout": {"n": SESSIONS, "engine": self._engine},
                "sampler": {"max_off_policy_strategy": "none"},
                "trainer": {"save_freq": -1},
                "ledger": {"lease_s": 3600.0},
                "endpoints": endpoints,
            }
        )

    def write_weights(self, lineage: str) -> prompt_pb2.PublishedWeights:
        """Write a model as a trainer does."""
        from headrace.trainer.model import build_model
        from headrace.trainer.probe import draw_sequences
        from headrace.trainer.publisher import WeightsWriter

        config = self.make_config({}).model
        tokenizer = load_tokenizer(config)
        length = PROMPT_TOKENS + self.size.most_tokens
        model = build_model(config, tokenizer, max_length=length)
        writer = WeightsWriter(
            self.directory / "weights",
            run_id="bench",
            lineage=lineage,
            probed=draw_sequences(model, tokenizer, max_length=length),
        )
        uri, checksum = writer.write(model, 0)
        self._weights = prompt_pb2.PublishedWeights(
            id=prompt_pb2.WeightsId(lineage=lineage, version=0), uri=uri, checksum=checksum
        )
        return self._weights

    def _prompts(self) -> list[list[int]]:
        """Make prompts that were never there before, so that no cache knows them."""
        return [
            [self._numbers.randrange(2, len(ALPHABET)) for _ in range(PROMPT_TOKENS)]
            for _ in range(self.size.groups)
        ]

    def under_worker(self, run: Run) -> Way:
        """Time a step's groups."""

        async def way() -> Lap:
            before = run.engine.status().generated_token_count
            with Stopwatch().lap(0) as taken:
                step = await run.step(self._prompts())
            await run.forget(step)
            made = run.engine.status().generated_token_count - before
            return Lap(made, taken.lap.seconds, taken.lap.cpu_s)

        return way

    def bare(self, engine: BareEngine) -> Way:
        """Time as many responses."""

        async def way() -> Lap:
            prompts = [prompt for prompt in self._prompts() for _ in range(SESSIONS)]
            with Stopwatch().lap(0) as taken:
                made = await engine.generate(prompts, most_tokens=self.size.most_tokens)
            return Lap(made, taken.lap.seconds, taken.lap.cpu_s)

        return way

    @asynccontextmanager
    async def bare_engine(self) -> AsyncIterator[BareEngine]:
        """Have the engine on the weights that were written."""
        section = self.make_config({}).rollout.engine
        directory = Path(self._weights.uri)
        engine: BareEngine
        if isinstance(section, VllmEngine):
            engine = await BareVllm.start(
                section,
                directory,
                max_length=PROMPT_TOKENS + self.size.most_tokens,
                eos_id=self._eos_id,
            )
        else:
            assert isinstance(section, TorchEngine)
            engine = BareTorch(section, directory, eos_id=self._eos_id)
        try:
            yield engine
        finally:
            await engine.close()


async def measure(setting: Setting) -> Findings:
    """Measure each engine that is installed, with each model."""
    rounds = 3 if setting.is_quick else 5
    findings = Findings(rows=[Row(HEADING)])
    for size in sizes(is_quick=setting.is_quick):
        for kind, engine in _engines(size.batch).items():
            directory = setting.scratch / f"{kind}-{size.layers}"
            directory.mkdir()
            findings += await compare(kind, Comparison(directory, engine, size), rounds)
    if find_spec("vllm") is None:
        findings.notes.append("rollout: vllm is left out, as it is not installed: docs/vllm.md")
    return findings


async def compare(kind: str, comparison: Comparison, rounds: int) -> Findings:
    """Measure one engine."""
    async with running_run(
        comparison.directory, comparison.make_config, comparison.write_weights
    ) as run:
        under_worker = comparison.under_worker(run)
        await under_worker()  # vLLM is started with the first weights
        async with comparison.bare_engine() as engine:
            laps = await interleaved(
                {"worker": under_worker, "bare": comparison.bare(engine)}, rounds=rounds
            )
    return _findings(kind, comparison.size, laps)


def _findings(kind: str, size: Size, laps: dict[str, Laps]) -> Findings:
    ratio = laps["worker"].over(laps["bare"])
    added_s = laps["worker"].cpu_per_item_s - laps["bare"].cpu_per_item_s
    # Beside the CPU of a model that is not a toy the difference of both is noise.
    cost = "" if size.has_goal else microseconds(added_s)
    what = f"{kind}, {size.name}"
    goal = f"tokens through a worker, {what}, / the bare engine's"
    return Findings(
        rows=[Row(what, cost, bare=ratio)],
        goals=[Goal.at_least(goal, LEAST_RATIO, ratio.median, "x")] if size.has_goal else [],
        laps={f"rollout, {what}, {way}": done for way, done in laps.items()},
    )
