"""A run around one worker: the real ledger, the real store, and who else those need to go on.

The worker is in this process. Feeder and trainer are two calls each; weights are written once.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.bench.child import running
from headrace.config.config import Config
from headrace.errors import UsageError
from headrace.rollout.engines.make import make_engine
from headrace.rollout.process import settings
from headrace.rollout.rewards.make import make_rewards
from headrace.rollout.worker import Worker
from headrace.rpc.channel import open_channel
from headrace.rpc.process import ProcessOptions
from headrace.rpc.waits import Waits
from headrace.tokenizer.load import load_tokenizer
from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2_grpc, store_pb2, store_pb2_grpc
from headrace.v1 import replay_pb2 as pb

if TYPE_CHECKING:
    from headrace.v1.replay_pb2_grpc import ReplayBufferServiceAsyncStub
    from headrace.v1.store_pb2_grpc import TrajectoryStoreServiceAsyncStub

LONGEST_S: Final = 900.0
"""A step that takes longer will not come: the engine does not start, most likely."""


class Run:
    """Steps of a run whose groups the worker generates.

    Args:
        config: the run's.
        replay: its ledger.
        store: where its trajectories are.

    """

    def __init__(
        self,
        config: Config,
        replay: ReplayBufferServiceAsyncStub,
        store: TrajectoryStoreServiceAsyncStub,
    ) -> None:
        self._replay = replay
        self._store = store
        self._waits = Waits(stall_after_s=LONGEST_S)
        self._stopping = asyncio.Event()
        self._incarnation = 0
        self._steps = itertools.count(1)
        self._cursor = 0
        tokenizer = load_tokenizer(config.model)
        self.engine = make_engine(
            config, tokenizer, waits=self._waits, batch_ended=lambda _seconds: None
        )
        self._rewards = make_rewards(config.reward, self._waits)
        self._worker = Worker(
            settings(config, "worker"),
            engine=self.engine,
            rewards=self._rewards,
            decode=tokenizer.decode,
            replay_stub=replay,
            store_stub=store,
            waits=self._waits,
            stopping=self._stopping,
        )
        self._working: asyncio.Task[None] | None = None

    async def open(self, write_weights: Callable[[str], prompt_pb2.PublishedWeights]) -> None:
        """Have a feed, a trainer, its first weights, and a worker.

        `write_weights` writes them for a time line.
        """
        await self._replay.OpenFeed(pb.OpenFeedRequest(row_count=10**9, fingerprint="bench"))
        trainer = await self._replay.RegisterTrainer(pb.RegisterTrainerRequest(trainer_id="t"))
        self._incarnation = trainer.incarnation
        weights = await asyncio.to_thread(write_weights, trainer.lineage)
        await self._replay.PublishWeights(
            pb.PublishWeightsRequest(incarnation=self._incarnation, weights=weights)
        )
        await self._rewards.start()
        await self.engine.start()
        self._working = asyncio.create_task(self._worker.run(), name="worker")

    async def close(self) -> None:
        """Send the worker home."""
        self._stopping.set()
        if self._working is not None:
            await asyncio.gather(self._working, return_exceptions=True)
        await self.engine.close()
        await self._rewards.close()

    async def step(self, prompts: Sequence[Sequence[int]]) -> Step:
        """Have a step's groups generated, scored, stored and recorded.

        Raises:
            UsageError: the worker has ended, or they do not come.

        """
        step = next(self._steps)
        payloads = [
            feeder_pb2.PromptPayload(token_ids=ids, text="bench", answer="none") for ids in prompts
        ]
        request = pb.RegisterPromptsRequest(
            first_ordinal=self._cursor,
            prompts=[
                pb.NewPrompt(uid=f"e0r{self._cursor + i}", payload=payload)
                for i, payload in enumerate(payloads)
            ],
        )
        answer = await self._replay.RegisterPrompts(request)
        assert answer.accepted_count == len(prompts), "the window is too small for the benchmark"
        self._cursor = answer.cursor
        groups = await self._beside_the_worker(self._sampled(step))
        return Step(step, [each.key for group in groups for each in group.trajectories])

    async def _sampled(self, step: int) -> Sequence[prompt_pb2.SampledGroup]:
        request = pb.SampleBatchRequest(
            incarnation=self._incarnation, step=step, part_count=1, wait_s=5.0
        )
        while True:
            answer = await self._replay.SampleBatch(request)
            if answer.status == pb.SAMPLE_STATUS_READY:
                return answer.groups

    async def _beside_the_worker(self, work: Any) -> Any:
        assert self._working is not None
        waiting = asyncio.ensure_future(work)
        await asyncio.wait(
            (waiting, self._working), timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        if self._working.done():
            raise UsageError(f"the worker ended: {self._working.exception()}")
        waits = "; ".join(f"{each.name}: {each.ends_when}" for each in self._waits.snapshot())
        raise UsageError(f"no step was generated within {LONGEST_S:g} s; waited for {waits}")

    async def forget(self, step: Step) -> None:
        """Commit a step, and let go of its trajectories."""
        await self._replay.CommitStep(
            pb.CommitStepRequest(incarnation=self._incarnation, step=step.number)
        )
        await self._store.DeleteTrajectories(store_pb2.DeleteTrajectoriesRequest(keys=step.keys))


class Step:
    """A step that was generated."""

    def __init__(self, number: int, keys: Sequence[str]) -> None:
        self.number = number
        self.keys = keys


def _serve(_pipe: Connection, part: str, config_json: str, announcement: str) -> None:
    run = importlib.import_module(f"headrace.{part}.process").run
    options = ProcessOptions(name=part, announce=Path(announcement))
    asyncio.run(run(Config.model_validate_json(config_json), options))


@asynccontextmanager
async def running_run(
    directory: Path,
    make_config: Callable[[dict[str, str]], Config],
    write_weights: Callable[[str], prompt_pb2.PublishedWeights],
) -> AsyncIterator[Run]:
    """Start ledger, store and worker; yield before the worker has weights.

    Args:
        directory: the run's, made already.
        make_config: makes the configuration, of endpoints that are known.
        write_weights: writes weights for a time line.

    Raises:
        UsageError: a process does not come up, or the engine cannot be made.

    """
    endpoints: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        channels = {}
        for part in ("replay", "store"):
            announcement = directory / f"{part}.json"
            child = await stack.enter_async_context(
                running(
                    part, _serve, part, make_config(endpoints).model_dump_json(), str(announcement)
                )
            )
            endpoints[part] = (await child.announced(announcement)).address
            channels[part] = await stack.enter_async_context(open_channel(endpoints[part]))
        run = Run(
            make_config(endpoints),
            replay_pb2_grpc.ReplayBufferServiceStub(channels["replay"]),
            store_pb2_grpc.TrajectoryStoreServiceStub(channels["store"]),
        )
        stack.push_async_callback(run.close)
        await run.open(write_weights)
        yield run
