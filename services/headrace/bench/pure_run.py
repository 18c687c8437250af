"""The ledger's rules alone, without wire, disk or other processes.

`rules_run` is the whole life of groups: fed, leased, finished, sampled, trained.
`sample_rule_s` is the trainer's question, asked of ledgers that hold little and much.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.bench.groups import (
    BATCH_SIZE,
    LINEAGE,
    PAYLOAD,
    STORE,
    WEIGHTS,
    WORKER,
    completed,
    new_prompts,
)
from headrace.replay import feeding, leasing, rows, sampling
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import feeder_pb2, journal_pb2

NO_PAYLOAD = feeder_pb2.PromptPayload()


class PureRun:
    """Plays the feeder, a worker, the store and the trainer against a ledger in memory."""

    def __init__(
        self, *, n: int, window_size: int, payload: feeder_pb2.PromptPayload = PAYLOAD
    ) -> None:
        """Open the feed, publish the first weights."""
        self._payload = payload
        self._settings = LedgerSettings(
            n=n, batch_size=BATCH_SIZE, window_size=window_size, threshold=None, strategy="none"
        )
        self._ledger = Ledger(
            journal_pb2.RunOpened(
                run_id="bench", lineage=LINEAGE, n=n, train_batch_size=BATCH_SIZE, basis="generated"
            )
        )
        feeding.open_feed(self._ledger, self._settings, row_count=10**9, fingerprint="bench")
        rows.register_store(self._ledger, incarnation=STORE, capacity_bytes=10**15)
        sampling.register_trainer(self._ledger, "trainer")
        sampling.publish_weights(self._ledger, WEIGHTS)

    def feed(self, count: int) -> None:
        """Register prompts, one event for all."""
        first = self._ledger.cursor
        feeding.register_prompts(
            self._ledger,
            self._settings,
            first_ordinal=first,
            prompts=new_prompts(first, count, self._payload),
        )
        self._ledger.take_events()

    def generate(self, count: int) -> None:
        """Lease prompts and complete all their sessions, one event each for all."""
        allowed = leasing.allowance(
            self._ledger, self._settings, worker_id=WORKER, version=0, store_held_bytes=0
        )
        groups = leasing.lease(
            self._ledger,
            self._settings,
            worker_id=WORKER,
            weights=WEIGHTS.id,
            count=min(count, allowed.count),
        )
        assert len(groups) == count, allowed.blocked_by
        items = [
            item
            for group in groups
            for item in completed(group.uid, group.attempt, range(self._ledger.n))
        ]
        leasing.complete_sessions(
            self._ledger, self._settings, worker_id=WORKER, store_incarnation=STORE, items=items
        )
        self._ledger.take_events()

    def sample(self) -> None:
        """Take the batch of the current step."""
        sample = sampling.sample(
            self._ledger, self._settings, step=self._ledger.current_step, part=0, part_count=1
        )
        assert len(sample.groups) == BATCH_SIZE, sample.blocked_by

    def commit(self) -> None:
        """Commit the current step."""
        sampling.commit_step(self._ledger, self._settings, self._ledger.current_step)
        self._ledger.take_events()

    def fill(self, live_count: int) -> None:
        """Feed so many groups and finish half of them."""
        for count in _chunks(live_count):
            self.feed(count)
        for count in _chunks(live_count // 2):
            self.generate(count)


def _chunks(count: int) -> list[int]:
    size = feeding.MAX_PROMPTS_PER_CALL
    return [min(size, count - begun) for begun in range(0, count, size)]


def rules_run(*, steps: int, n: int = 8) -> None:
    """Have so many steps of 64 groups: fed, leased, finished, sampled, trained."""
    run = PureRun(n=n, window_size=BATCH_SIZE)
    for _ in range(steps):
        run.feed(BATCH_SIZE)
        run.generate(BATCH_SIZE)
        run.sample()
        run.commit()


def sample_rule_s(live_counts: Sequence[int], *, samples: int) -> dict[int, list[float]]:
    """Time the sampling of 64 groups, in turn in ledgers that hold so many live groups.

    Returns:
        CPU seconds of each sample, by the number of live groups: other processes do not count.

    """
    runs = {count: PureRun(n=1, window_size=count, payload=NO_PAYLOAD) for count in live_counts}
    for count, run in runs.items():
        run.fill(count)
    seconds: dict[int, list[float]] = {count: [] for count in live_counts}
    for _ in range(samples):
        for count, run in runs.items():
            begun = time.thread_time()
            run.sample()
            seconds[count].append(time.thread_time() - begun)
            run.commit()
            run.feed(BATCH_SIZE)
            run.generate(BATCH_SIZE)
    return seconds
