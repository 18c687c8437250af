"""A small run to be broken: its configuration, its processes, the test as its trainer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster import Cluster
from judge import judge
from judge_durable import Witness
from judge_journal import read_file_journal, read_redis_journal
from judge_rules import Rules
from ports import free_port
from recorder import Recorder
from redis_server import RedisServer, thawed

from headrace.config.config import Config
from headrace.feeder.order import Order
from headrace.feeder.sources.digits import digit_rows
from headrace.v1 import journal_pb2, replay_pb2

RUN_ID = "chaos"
SETTLED_S = 30.0
"""How long the last rows of a run may take to be registered."""


def small_config(directory: Path, *, rows: int = 400, **sections: Any) -> dict[str, Any]:
    """B = 4, n = 2, W = 2, nothing is ever stale; scripted; sections are merged in."""
    config: dict[str, Any] = {
        "run": {"name": "chaos", "run_dir": str(directory / "run"), "run_id": RUN_ID},
        "data": {
            "source": {
                "kind": "python",
                "function": "headrace.feeder.sources.digits:digit_rows",
                "options": {"task": "sort", "digits": 4, "size": rows, "seed": 1},
            },
            "train_batch_size": 4,
            "gen_batch_size": 3,
            "max_prompt_length": 8,
            "max_response_length": 6,
        },
        "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "0123456789>", "eos": ";"}},
        "rollout": {
            "n": 2,
            "max_groups_in_flight": 8,
            "engine": {"kind": "scripted", "mean_latency_s": 0.05},
        },
        "reward": {"kind": "positional"},
        "trainer": {"num_warmup_batches": 2},
        "sampler": {"max_off_policy_threshold": None},
        "ledger": {"lease_s": 2.0},
        "store": {"capacity_bytes": 2**24},
    }
    for name, section in sections.items():
        config[name] = _merged(config.get(name, {}), section)
    return config


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value) if nested else value
    return merged


def rules_of(values: dict[str, Any], *, may_drop: Sequence[str] = ()) -> Rules:
    """Tell the judge what the run was told."""
    config = Config.model_validate(values)
    options = values["data"]["source"]["options"]
    rows, source = options["size"], digit_rows(**options)
    order = Order(rows, config.data.seed, config.data.shuffle)
    epochs = config.trainer.total_epochs
    most = rows * epochs // config.data.train_batch_size
    return Rules(
        n=config.rollout.n,
        batch=config.data.train_batch_size,
        warmup=config.trainer.num_warmup_batches,
        rows=rows,
        steps=min(most, config.trainer.total_training_steps or most),
        uid=lambda ordinal: order.place(ordinal).uid,
        text=lambda uid: source[int(uid.partition("r")[2])]["prompt"],
        epochs=epochs,
        threshold=config.sampler.max_off_policy_threshold,
        strategy=config.sampler.max_off_policy_strategy,
        basis=config.sampler.basis,
        sync=config.trainer.trainer_mode == "sync",
        max_failures=config.ledger.max_failures,
        most_tokens=config.data.max_response_length,
        max_expiries=config.ledger.max_expiries,
        eject_after=config.ledger.eject_after,
        may_drop=frozenset(may_drop),
    )


@dataclass
class Scene:
    """A cluster under way, and the test as its trainer."""

    cluster: Cluster
    recorder: Recorder
    rules: Rules
    witness: Witness = field(default_factory=Witness)

    @asynccontextmanager
    async def away(self, *victims: str) -> AsyncIterator[None]:
        """Kill these, one right after the other; start them again, in the same order.

        If the journal's keeper is among them, what it had is compared with what was acknowledged.
        """
        for victim in victims:
            self.cluster.kill(victim)
        with TemporaryDirectory() as place:
            if "redis" in victims and self.cluster.redis is not None:
                self.cluster.redis.freeze(Path(place))
            yield
            heard = len(self.recorder.history)
            journal = None if "redis" in victims or "replay" not in victims else self.journal()
            self.cluster.start(*victims)
            if "redis" in victims:
                journal = await asyncio.to_thread(_thaw, Path(place))
        if journal is not None:
            self.witness.saw("+".join(victims), heard, journal)

    async def until(self, holds: Callable[[Any], bool]) -> None:
        """Ask for the status until something holds of it."""

        async def look() -> bool:
            return holds(await self.recorder.status())

        await eventually(look)

    async def catch(self, worker: str) -> None:
        """Stop a worker amid its leases, with some groups finished and no batch of them.

        Nothing changes then until it goes on. Training has to be under way, so that there is such
        a moment again and again.
        """

        async def look() -> bool:
            self.cluster.pause(worker)
            counts = (await self.recorder.status()).counts
            if counts.running >= self.rules.batch > counts.finished > 0:
                return True
            self.cluster.resume(worker)
            return False

        await eventually(look)

    async def settled(self, fed: int | None = None) -> replay_pb2.AuditResponse:
        """Wait until the run has ended and its last rows are in; give the last audit."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            status = await self.recorder.status()
            if status.ended and (fed is None or status.counts.fed == fed):
                return await self.recorder.audit()
            assert time.monotonic() < deadline, f"{fed} were to be fed: {status}"
            await asyncio.sleep(0.05)

    def journal(self) -> list[journal_pb2.JournalRecord]:
        redis = self.cluster.redis
        if redis is None:
            return read_file_journal(self.cluster.run / "journal")
        return read_redis_journal(redis.url, RUN_ID)

    async def findings(self, fed: int | None = None) -> list[str]:
        """Have the run judged, once it has ended with so many prompts fed."""
        audit = await self.settled(fed)
        return judge(self.journal(), self.recorder.history, audit, self.rules, self.witness)


def save_no_model(directory: Path, version: int) -> None:
    """Write one small file, for engines that need no model."""
    (directory / "model.safetensors").write_text(f"weights {version}")


@asynccontextmanager
async def scene(
    directory: Path,
    config: dict[str, Any],
    *,
    journal: str = "file",
    workers: int = 2,
    part_count: int = 1,
    may_drop: Sequence[str] = (),
    save: Callable[[Path, int], None] = save_no_model,
) -> AsyncIterator[Scene]:
    """Start everything, with the recorder registered, auditing and watching all the while.

    `save` writes the weights of a version. In the end everything must be there again, stop in order, and leave nothing.
    """
    redis = None
    if journal == "redis":
        (directory / "redis").mkdir()
        redis = RedisServer(directory / "redis", port=free_port())
        settings = {"kind": "redis", "redis_url": redis.url}
        config = {**config, "journal": {**config.get("journal", {}), **settings}}
        redis.start()
    cluster = Cluster(directory, config, workers=workers, redis=redis)
    recorder = Recorder(
        cluster.members["replay"].address,
        cluster.members["store"].address,
        cluster.run / "weights",
        run_id=RUN_ID,
        part_count=part_count,
        save=save,
    )
    try:
        cluster.start(*cluster.members)
        await cluster.ready(*cluster.members)
        await recorder.begin()
        looking = [
            asyncio.create_task(each)
            for each in (recorder.keep_auditing(), recorder.keep_watching())
        ]
        yield Scene(cluster, recorder, rules_of(config, may_drop=may_drop))
        for task in looking:
            task.cancel()
        for ended in await asyncio.gather(*looking, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        await cluster.ready(*cluster.members)  # whoever was killed last has come back, too
        faults = await cluster.close()
        assert not faults, faults
    finally:
        cluster.kill_all()
        await recorder.close()


def _thaw(frozen: Path) -> list[journal_pb2.JournalRecord]:
    with thawed(frozen) as url:
        return read_redis_journal(url, RUN_ID)


async def eventually(look: Callable[[], bool | Awaitable[bool]], within_s: float = 60) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < deadline, "nothing happened"
        await asyncio.sleep(0.05)
