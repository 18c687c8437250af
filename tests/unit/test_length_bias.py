"""Kills do not choose which answers are trained on: lengths come as often as without them.

A long answer is hit by a kill more often than a short one. Begun anew it is another answer, of any
length, so that those that come through are too short. Gone on with it is as long as it would have
been, but for the few tokens since its last report.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from kolmogorov import distance
from ledger_drafts import report
from ledger_world import World, settings

from headrace.config.rollout import ScriptedEngine as ScriptedConfig
from headrace.replay import leasing
from headrace.replay.group import FINISHED
from headrace.rollout.engines.base import Response, SampleRequest
from headrace.rollout.engines.scripted import script
from headrace.v1 import prompt_pb2, replay_pb2

ANSWERS = 2000
LONGEST = 100
MEAN_LIFE = 60
"""Of a worker, in tokens: an answer is killed about once on average."""
EVERY = 4
"""Tokens between two reports."""
CRITICAL = 1.95 * math.sqrt(2 / ANSWERS)
"""Of the two-sample Kolmogorov-Smirnov statistic, at the level 0.001."""


def lengths(seed: int, *, kills: bool, every: int | None = None) -> list[int]:
    """Run until all answers are there; give their lengths."""
    config = ScriptedConfig(kind="scripted", seed=seed, token_latency_s=1.0, mean_latency_s=0)
    lives = random.Random(seed)
    world = World(
        settings(n=1, window_size=ANSWERS, max_response_length=LONGEST, max_expiries=10**6),
        row_count=2 * ANSWERS,
    )
    world.feed(ANSWERS)
    while refs := world.lease(1):
        [ref] = refs
        draft = world.ledger.groups[ref.uid].drafts.get(0)
        response = Response.of(draft) if draft else Response()
        made = go_on(config, ref, response)
        life = int(lives.expovariate(1 / MEAN_LIFE)) if kills else LONGEST
        if life >= len(made):
            response.extend(made, [-1.0] * len(made), world.weights_of(0))
            complete(world, ref, len(response.token_ids))
            continue
        begun_with = len(response.token_ids)
        response.extend(made[:life], [-1.0] * life, world.weights_of(0))
        if every is not None and life >= every:
            report(world, ref, response.stretch(0, begun_with, begun_with + life // every * every))
        world.expire([ref])
    groups = [group for group in world.ledger.groups if group.state == FINISHED]
    assert len(groups) == ANSWERS
    world.fine()
    return [group.sessions[0].token_count for group in groups]


def go_on(config: ScriptedConfig, ref: replay_pb2.LeaseRef, response: Response) -> list[int]:
    """Give the tokens that the engine would add to a response, whole."""
    request = SampleRequest(ref.uid, 0, ref.attempt, [3], 1.0, LONGEST, replace(response))
    return script(config, request, vocab_size=8, eos_id=2).token_ids


def complete(world: World, ref: replay_pb2.LeaseRef, count: int) -> None:
    record = prompt_pb2.SessionRecord(trajectory_count=1, size_bytes=1, token_count=count)
    leasing.complete_sessions(
        world.ledger,
        world.settings,
        worker_id="w",
        store_incarnation=world.ledger.store_incarnation,
        items=[replay_pb2.CompletedSession(lease=ref, record=record)],
    )


@pytest.fixture(scope="module")
def undisturbed() -> list[int]:
    return lengths(1, kills=False)


def test_without_the_journal_of_tokens_kills_make_answers_shorter(undisturbed: list[int]) -> None:
    killed = lengths(2, kills=True)

    assert distance(killed, undisturbed) > 3 * CRITICAL
    assert sum(killed) < 0.8 * sum(undisturbed)


def test_with_it_answers_are_as_long_as_without_kills(undisturbed: list[int]) -> None:
    killed = lengths(2, kills=True, every=EVERY)

    assert distance(killed, undisturbed) < CRITICAL
    assert sum(killed) == pytest.approx(sum(undisturbed), rel=0.04)


def test_two_runs_without_kills_are_alike(undisturbed: list[int]) -> None:
    assert distance(lengths(3, kills=False), undisturbed) < CRITICAL
