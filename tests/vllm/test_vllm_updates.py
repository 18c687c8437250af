"""New weights for a vLLM that is sampling: what they wait for, and which tokens they make."""

from __future__ import annotations

import asyncio
from pathlib import Path

import probed
from vllm_world import MARKS, gap, grown, make_model, request, running, sampled, spans

from headrace.rpc.waits import Waits

pytestmark = MARKS
NAME = "gpt2-untied"


async def test_sequences_are_finished_by_the_weights_they_began_with_and_later_ones_wait(
    tmp_path: Path,
) -> None:
    waits = Waits(stall_after_s=600)
    models = [make_model(NAME, seed, endless=True) for seed in range(2)]
    first, second = (probed.publish(tmp_path, model, seed) for seed, model in enumerate(models))
    prompt = [5, 6, 7, 8] * 12
    async with running(waits=waits) as engine:
        await engine.load(first)
        early = [request(session, limit=450, prompt=prompt) for session in range(8)]
        generating = engine.generate(early)
        await grown(early, 20)

        loading = asyncio.create_task(engine.load(second))
        async with asyncio.timeout(60):
            while engine.status().room:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        late = [request(session, limit=20, prompt=prompt) for session in range(8, 12)]
        generating += engine.generate(late)
        begun_while_waiting = [len(asked.response.token_ids) for asked in late]
        waiting = {wait.name: wait.ends_when for wait in waits.snapshot()}
        async with asyncio.timeout(120):
            await loading
            samples = await asyncio.gather(*generating)

        assert waiting == {"sequences to end": "those that version 0 began are done"}
        assert begun_while_waiting == [0] * 4
        assert [spans(asked) for asked in early] == [[(0, 0, 450)]] * 8
        assert [spans(asked) for asked in late] == [[(1, 0, 20)]] * 4
        assert max(gap(models[0], asked) for asked in early) < 1e-4
        assert max(gap(models[1], asked) for asked in late) < 1e-4
        status = engine.status()
        assert len(samples) == 12
        assert (status.generated_token_count, status.aborted_token_count) == (8 * 450 + 4 * 20, 0)
        assert status.held_back_s > 0
        assert status.room > 0
        assert waits.snapshot() == []
        # The sessions of a group share the prompt's first block of 32 tokens.
        assert status.load.prefix_query_token_count >= 12 * len(prompt)
        assert status.load.prefix_hit_token_count >= 7 * 32


async def test_sequences_go_on_with_new_weights_and_each_token_is_of_those_that_made_it(
    tmp_path: Path,
) -> None:
    models = [make_model(NAME, seed, endless=True) for seed in range(4)]
    weights = [probed.publish(tmp_path, model, seed) for seed, model in enumerate(models)]
    async with running(partial=True) as engine:
        await engine.load(weights[0])
        requests = [request(session, limit=500) for session in range(8)]
        futures = engine.generate(requests)
        for version in (1, 2):
            await grown(requests, 30 * version)
            await engine.load(weights[version])
        await grown(requests, 90)
        futures[7].cancel()
        await asyncio.wait(futures[7:])
        cut = requests[7]
        # What was cancelled goes on as another request, behind what there is of it.
        await engine.load(weights[3])
        rest = request(7, limit=500, response=cut.response)
        count = len(cut.response.token_ids)
        await sampled(engine, [rest])
        async with asyncio.timeout(120):
            await asyncio.gather(*futures[:7])
        status = engine.status()

    assert futures[7].cancelled()
    assert status.aborted_token_count == count
    for asked in [*requests[:7], rest]:
        found = spans(asked)
        assert [version for version, _, _ in found] == [0, 1, 2, 3]
        assert found[0][1] == 0
        assert found[-1][2] == 500
        for version, begin, end in found:
            assert gap(models[version], asked, begin=begin, end=end) < 1e-4
            # The others do not say the same, so that the check means something.
            other = models[(version + 1) % 4]
            assert gap(other, asked, begin=begin, end=end) > 1e-2
