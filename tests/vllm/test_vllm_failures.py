"""Whatever goes wrong in vLLM is an error or a lease handed back; never a short response."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import probed
import psutil
import pytest
from vllm_world import EOS, MARKS, gap, grown, make_model, request, running, sampled, spans

from headrace.rollout.engines.base import EngineError, EngineLostError, Response
from headrace.rollout.engines.probe import ProbeError
from headrace.rpc.waits import Waits
from headrace.trainer.publisher import save_model
from headrace.v1 import prompt_pb2
from headrace.v1.trajectory_pb2 import WeightSpan

pytestmark = MARKS
NAME = "gpt2-untied"


async def gone(processes: list[psutil.Process]) -> None:
    """Wait until all of them are."""
    async with asyncio.timeout(60):
        while any(map(psutil.Process.is_running, processes)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_vllm_that_is_killed_or_hangs_is_noticed_and_the_next_load_starts_another(
    tmp_path: Path,
) -> None:
    model = make_model(NAME, 0, endless=True)
    weights = probed.publish(tmp_path, model, 0)
    lost: list[int] = []
    async with running() as engine:
        engine.when_lost(lambda: lost.append(1))
        for place, blow in ((0, signal.SIGKILL), (1, signal.SIGKILL), (0, signal.SIGSTOP)):
            await engine.load(weights)
            requests = [request(session, limit=500) for session in range(6)]
            futures = engine.generate(requests)
            await grown(requests, 5)
            core, worker = processes = list(engine._life._processes)
            assert worker.ppid() == core.pid
            lost.clear()
            if blow == signal.SIGSTOP:
                engine._keeper._silence_s = 30  # not before: a start may take longer

            processes[place].send_signal(blow)

            async with asyncio.timeout(60 + 30 * (blow == signal.SIGSTOP)):
                ends = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(end) for end in ends] == [EngineLostError] * 6
            assert lost == [1]
            assert engine.status().room is None
            with pytest.raises(EngineLostError, match="before it began"):
                await engine.generate([request(0)])[0]
            await gone(processes)
        await engine.load(weights)
        again = request(0, limit=20)
        await sampled(engine, [again])
        made = engine.status()

    assert gap(model, again) < 1e-4
    assert made.generated_token_count == made.aborted_token_count + 20


async def test_a_vllm_that_dies_while_it_takes_weights_is_lost_at_once(tmp_path: Path) -> None:
    weights = [probed.publish(tmp_path, make_model(NAME, 0), version) for version in range(2)]
    waits = Waits(stall_after_s=600)
    async with running(silence_s=600, waits=waits) as engine:
        await engine.load(weights[0])
        core, *_ = processes = list(engine._life._processes)
        core.suspend()  # so that it cannot answer before it dies
        loading = asyncio.create_task(engine.load(weights[1]))
        async with asyncio.timeout(60):
            while "vLLM to take weights" not in {wait.name for wait in waits.snapshot()}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        core.kill()

        async with asyncio.timeout(60):
            with pytest.raises(EngineLostError):
                await loading
        await gone(processes)


async def test_weights_that_vllm_computes_something_else_with_are_refused_and_so_is_all_work(
    tmp_path: Path,
) -> None:
    models = [make_model(NAME, seed, endless=True) for seed in range(2)]
    right = [probed.publish(tmp_path, model, version) for version, model in enumerate(models)]
    wrong = probed.publish(
        tmp_path, models[1], 2, spoil=lambda directory: save_model(models[0], directory)
    )
    async with running(partial=True) as engine:
        await engine.load(right[0])
        requests = [request(session, limit=500) for session in range(4)]
        futures = engine.generate(requests)
        await grown(requests, 5)
        processes = list(engine._life._processes)

        with pytest.raises(ProbeError, match="version 2 are refused") as refused:
            await engine.load(wrong)

        assert refused.value.weights_lost
        assert engine.status().probe_gap == refused.value.mean > 0.1
        ends = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineLostError] * 4
        # Nothing that the wrong weights made was ever shown.
        assert [[v for v, _, _ in spans(asked)] for asked in requests] == [[0]] * 4
        await gone(processes)
        # Damaged ones are seen before vLLM is touched.
        damaged = prompt_pb2.PublishedWeights()
        damaged.CopyFrom(right[1])
        damaged.checksum = "0" * 64
        await engine.load(right[1])
        with pytest.raises(EngineError, match="was published") as kept:
            await engine.load(damaged)
        assert not kept.value.weights_lost
        again = request(0, limit=20)
        await sampled(engine, [again])

    assert [span.version for span in again.response.weight_spans] == [1]
    assert gap(models[1], again) < 1e-4


async def test_a_request_that_vllm_refuses_or_cuts_short_fails_alone(tmp_path: Path) -> None:
    model = make_model(NAME, 0, endless=True)
    async with running(max_model_len=40) as engine:
        await engine.load(probed.publish(tmp_path, model, 0))
        good, unknown, long, cut = engine.generate(
            [
                request(0, limit=20),
                request(1, prompt=[99_999]),
                request(2, prompt=[5] * 60),
                request(3, limit=60),
            ]
        )
        with pytest.raises(EngineError, match="token 99999 of the prompt is none of"):
            await unknown
        with pytest.raises(EngineError, match="maximum model length of 40"):
            await long
        with pytest.raises(EngineError, match="ended a response after 39 of 60 tokens: length"):
            await cut
        assert len((await good).response.token_ids) == 20


async def test_a_start_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    weights = probed.publish(tmp_path, make_model(NAME, 0), 0)
    async with running() as engine:
        from headrace.rollout.engines.vllm_life import _cores

        loading = asyncio.create_task(engine.load(weights))
        async with asyncio.timeout(120):
            while not (processes := _cores()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        loading.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait([loading])

        assert loading.cancelled()
        await gone(processes)
        assert _cores() == []


async def test_a_vllm_that_does_not_come_to_its_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.rollout.engines import vllm_life

    monkeypatch.setattr(vllm_life, "_END_S", 0.5)
    goes_on = threading.Event()
    async with running() as engine:
        await engine.load(probed.publish(tmp_path, make_model(NAME, 0), 0))
        llm, processes = engine._life._llm, list(engine._life._processes)
        shutdown = llm.shutdown
        monkeypatch.setattr(llm, "shutdown", lambda _: goes_on.wait())

        try:
            async with asyncio.timeout(30):
                await engine.close()
            await gone(processes)
        finally:
            goes_on.set()
            shutdown(0)
            llm.engine_core.resources.ctx.destroy(linger=0)


OWNER = """
import asyncio, json, sys, time
sys.path.insert(0, {support!r})
from vllm_world import running
from headrace.v1 import prompt_pb2
from headrace.v1.trajectory_pb2 import WeightSpan

async def main():
    async with running() as engine:
        await engine.load(prompt_pb2.PublishedWeights.FromString(bytes.fromhex({weights!r})))
        print(json.dumps([process.pid for process in engine._life._processes]), flush=True)
        await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_vllm_goes_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    weights = probed.publish(tmp_path, make_model(NAME, 0), 0)
    script = tmp_path / "owner.py"
    script.write_text(
        OWNER.format(
            support=str(Path(probed.__file__).parent), weights=weights.SerializeToString().hex()
        )
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    async with asyncio.timeout(300):
        pids = json.loads(await owner.stdout.readline())
    processes = [psutil.Process(pid) for pid in pids]
    assert len(processes) == 2

    owner.kill()

    await owner.wait()
    await gone(processes)


class Scripted:
    """What there is of a `Life` for a sequence."""

    is_dead = False
    silent_s = 0.0
    vocab_size = 12

    def __init__(self, *pieces: Any) -> None:
        self._pieces = pieces

    async def sample(self, prompt: Any, **_: Any) -> AsyncIterator[Any]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def close(self) -> None:
        """Do nothing."""


def _piece(*tokens: int, end: str | None, labels: Any = None, logprob: float = -1.0) -> Any:
    from headrace.rollout.engines.vllm_life import Piece

    return Piece(tokens, [logprob] * len(tokens), end, labels or [("/0", len(tokens))])


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (list, "vLLM gave nothing"),
        (lambda: [_piece(5, end=None)], "after 1 of 4 tokens: None"),
        (lambda: [_piece(5, 6, end="stop")], "after 2 of 4 tokens: stop"),
        (lambda: [_piece(5, 6, end="length")], "after 2 of 4 tokens: length"),
        (lambda: [_piece(5, 6, end="abort")], "after 2 of 4 tokens: abort"),
        (lambda: [_piece(5, EOS, end="stop", logprob=float("nan"))], "not a number"),
        (lambda: [_piece(5, EOS, end="stop", labels=[("/0", 1)])], "of 1 tokens which weights"),
        (lambda: [_piece(5, end=None), ValueError("no\nway")], "ValueError: no way"),
    ],
)
async def test_what_is_not_a_whole_response_is_an_error(
    pieces: Callable[[], list[Any]], said: str
) -> None:
    async with running() as engine:
        engine._keeper.life = Scripted(*pieces())
        engine._agreed.set()
        future = engine.generate([request(0, limit=4)])[0]
        with pytest.raises(EngineError) as failed:
            await future

    assert said in str(failed.value)
    assert not isinstance(failed.value, EngineLostError)


async def test_vllms_own_account_says_which_weights_made_a_response_behind_what_it_had() -> None:
    before = Response([7, 8], [-1.0, -1.0], [WeightSpan(lineage="a", version=3, begin=0, end=2)])
    async with running() as engine:
        engine._keeper.life = Scripted(
            _piece(5, 6, end=None), _piece(5, EOS, end="stop", labels=[("a/3", 1), ("a/4", 3)])
        )
        engine._agreed.set()
        asked = request(0, limit=10, response=before)
        await sampled(engine, [asked])

    assert asked.response.token_ids == [7, 8, 5, 6, 5, EOS]
    assert spans(asked) == [(3, 0, 3), (4, 3, 6)]
    assert {span.lineage for span in asked.response.weight_spans} == {"a"}
