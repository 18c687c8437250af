from __future__ import annotations

import gc
from pathlib import Path

import probed
import pytest
from prometheus_client import REGISTRY
from vllm_world import EOS, MARKS, MODELS, gap, make_model, request, running, sampled

from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP

pytestmark = MARKS


@pytest.mark.parametrize("name", MODELS)
async def test_vllm_computes_what_transformers_does_with_each_version_of_the_weights(
    name: str, tmp_path: Path
) -> None:
    async with running() as engine:
        for version in range(3):
            model = make_model(name, seed=version)
            await engine.load(probed.publish(tmp_path, model, version))
            requests = [request(session) for session in range(24)]

            samples = await sampled(engine, requests)

            for asked, sample in zip(requests, samples, strict=True):
                response = sample.response
                assert response is asked.response
                assert [span.version for span in response.weight_spans] == [version]
                stopped = response.token_ids[-1] == EOS
                assert stopped or len(response.token_ids) == 24
                assert sample.finish_reason == (
                    FINISH_REASON_STOP if stopped else FINISH_REASON_LENGTH
                )
                assert gap(model, asked) < 1e-4
            assert engine.status().probe_gap < 1e-5
        assert engine.status().generated_token_count > 3 * 24


async def test_vllm_costs_a_worker_neither_rounds_of_its_collector_nor_figures_for_nobody(
    tmp_path: Path,
) -> None:
    async with running() as engine:
        await engine.load(probed.publish(tmp_path, make_model("qwen3-tied", seed=0), 0))

        assert gc.get_freeze_count() > 10 * len(gc.get_objects())
        assert not [each.name for each in REGISTRY.collect() if each.name.startswith("vllm")]
