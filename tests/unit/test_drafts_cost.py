"""What the journal of tokens costs; `pytest -s tests/unit/test_drafts_cost.py` prints it."""

from __future__ import annotations

import random
import time

from ledger_world import World, settings

from headrace.replay import drafts, leasing
from headrace.rollout.engines.base import Response
from headrace.v1 import journal_pb2, replay_pb2

GROUPS, N, EVERY, REPORTS = 64, 8, 64, 4
VOCABULARY = 150_000


def test_a_token_costs_a_few_bytes_and_microseconds() -> None:
    """512 sequences under way report every 64 tokens, all in one call."""
    world = World(settings(n=N, window_size=GROUPS, max_response_length=10**6))
    world.feed()
    refs = world.lease()
    draw = random.Random(0)
    responses = [[Response() for _ in range(N)] for _ in refs]
    world.ledger.take_events()
    journal_bytes, cpu_s = 0, 0.0
    for number in range(REPORTS):
        for response in (each for of_group in responses for each in of_group):
            tokens = [draw.randrange(VOCABULARY) for _ in range(EVERY)]
            response.extend(tokens, [-draw.random() for _ in tokens], world.weights_of(0))
        begun = time.process_time()
        request = replay_pb2.RenewLeasesRequest(
            progress=[
                replay_pb2.LeaseProgress(
                    lease=ref,
                    lineage=world.ledger.lineage,
                    drafts=[
                        each.stretch(session, number * EVERY, (number + 1) * EVERY)
                        for session, each in enumerate(of_group)
                    ],
                )
                for ref, of_group in zip(refs, responses, strict=True)
            ]
        )
        received = replay_pb2.RenewLeasesRequest.FromString(request.SerializeToString())
        drafts.check(world.ledger, received.progress)
        held = [(each, leasing.holder(world.ledger, "w", each.lease)) for each in received.progress]
        counts = drafts.keep(world.ledger, world.settings, held, worker_id="w")
        [record] = world.ledger.take_events()
        written = record.SerializeToString()
        cpu_s += time.process_time() - begun
        journal_bytes += len(written)
        assert counts == [(number + 1) * EVERY] * (GROUPS * N)
        journal_pb2.JournalRecord.FromString(written)
    tokens_k = GROUPS * N * EVERY * REPORTS / 1000
    print(
        f"\nper 1,000 tokens, reported {EVERY} at a time: {journal_bytes / tokens_k:.0f} bytes in the "
        f"journal, {1000 * cpu_s / tokens_k:.2f} ms of CPU in worker and replay buffer together"
    )
    assert journal_bytes / tokens_k < 9000
    assert cpu_s / tokens_k < 0.05
