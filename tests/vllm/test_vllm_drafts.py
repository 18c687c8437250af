"""Long answers that vLLM has begun when its worker is killed: another vLLM goes on behind them.

Real processes; the trainer is the test itself, with another model for each version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import probed
import pytest
from going_on import Following, GoneOnWith
from scene import Scene, scene, small_config
from vllm_world import MARKS, MODELS, POSITIONS, TEMPERATURE, gap, make_model

from headrace.config.model import AlphabetTokenizer
from headrace.rollout.engines.base import Response, SampleRequest
from headrace.v1 import journal_pb2
from headrace.v1.trajectory_pb2 import Trajectory

LONG = 1600
STEPS = 3
BATCH = 4
NAME = "gpt2-untied"
TOKENIZER = AlphabetTokenizer(alphabet="0123456789>", eos=";")
START_S = 600.0
"""How long a vLLM may take to start, with others beside it."""

pytestmark = MARKS


def model_of(version: int) -> Any:
    return make_model(NAME, version, endless=True, tokenizer=TOKENIZER)


def config_of(directory: Path) -> dict[str, Any]:
    config = small_config(
        directory,
        data={"max_response_length": LONG},
        model=MODELS[NAME],
        rollout={
            "temperature": TEMPERATURE,
            "partial_rollout": True,
            "journal_tokens_every": 10,
        },
        trainer={"total_training_steps": STEPS},
        ledger={"lease_s": 5.0},
    )
    config["rollout"]["engine"] = {
        "kind": "vllm", "threads": 1, "kv_cache_memory_bytes": 2**26, "max_model_len": POSITIONS,
    }  # fmt: skip
    return config


async def test_another_vllm_goes_on_behind_what_a_killed_worker_has_reported(
    tmp_path: Path,
) -> None:
    async with scene(
        tmp_path,
        config_of(tmp_path),
        save=lambda directory, version: probed.save(model_of(version), directory),
    ) as play:
        training = asyncio.create_task(play.recorder.run())
        killed = await in_the_middle(play, training)
        play.cluster.lose(killed.rsplit("-", 2)[0])  # whichever vLLM was there first
        await asyncio.wait_for(training, START_S)
        assert await play.findings(fed=BATCH * STEPS) == []
        records = play.journal()
        trained = trained_by(play)

    gone_on = [
        each
        for each in Following().follow(records).ended
        if begun_by(killed, each, records) and each.prefix
    ]
    known = reported(records)
    assert gone_on, "nothing was under way"
    assert max(len(each.prefix) for each in gone_on) > LONG // 4
    for each in gone_on:
        record = each.record
        made = trained[f"{each.uid}_{each.session}_0_{record.lineage}a{record.attempt}"]
        length = len(each.prefix)
        assert made.response_token_ids[:length] == each.prefix
        assert made.logprobs[:length] == known[each.uid, each.session][:length]
        assert versions_of(made)[:length] == each.versions
        assert len(made.response_token_ids) == LONG
        assert_true(made)


async def in_the_middle(play: Scene, training: asyncio.Task[None]) -> str:
    """Wait until a worker has just reported an answer that is far from both of its ends."""
    seen = 0
    while not training.done():
        records = play.journal()
        for record in records[seen:]:
            event = record.tokens_reported
            offsets = [draft.offset for each in event.progress for draft in each.drafts]
            if any(LONG // 4 < offset < LONG // 2 for offset in offsets):
                return event.worker_id
        seen = len(records)
        await asyncio.sleep(0.05)
    pytest.fail("the run was over before anybody was seen in the middle of an answer")


def begun_by(
    worker: str, gone_on: GoneOnWith, records: Sequence[journal_pb2.JournalRecord]
) -> bool:
    """Whether a worker has reported tokens of a response."""
    return any(
        progress.lease.uid == gone_on.uid
        and gone_on.session in {draft.session for draft in progress.drafts}
        for record in records
        if record.tokens_reported.worker_id == worker
        for progress in record.tokens_reported.progress
    )


def reported(records: Sequence[journal_pb2.JournalRecord]) -> dict[tuple[str, int], list[float]]:
    """Collect the log-probabilities of responses under way, by prompt and session."""
    found: dict[tuple[str, int], list[float]] = {}
    for record in records:
        for progress in record.tokens_reported.progress:
            for draft in progress.drafts:
                known = found.setdefault((progress.lease.uid, draft.session), [])
                known[draft.offset :] = draft.logprobs
    return found


def trained_by(play: Scene) -> dict[str, Trajectory]:
    """Collect what the trainer has read, by its key."""
    reads = [entry for entry in play.recorder.history if entry.call == "GetTrajectories"]
    return {each.key: each for entry in reads for each in entry.answer or ()}


def versions_of(made: Trajectory) -> list[int]:
    """Name the version of each token."""
    return [span.version for span in made.weight_spans for _ in range(span.begin, span.end)]


def assert_true(made: Trajectory) -> None:
    """Have transformers say the same of each token, with the weights that made it."""
    asked = SampleRequest(
        uid=made.key, session=0, attempt=0, prompt_token_ids=made.prompt_token_ids,
        temperature=made.temperature, max_response_length=LONG,
        response=Response(list(made.response_token_ids), list(made.logprobs)),
    )  # fmt: skip
    for span in made.weight_spans:
        assert gap(model_of(span.version), asked, begin=span.begin, end=span.end) < 1e-4
