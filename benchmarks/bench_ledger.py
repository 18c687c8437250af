"""The ledger's rules alone, without wire, disk or other processes.

`ledger_rate` is the whole life of groups: fed, leased, finished, sampled, trained.
`sample_rule_s` is the trainer's question, asked of ledgers that hold little and much.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.replay import feeding, leasing, rows, sampling
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import feeder_pb2, journal_pb2, prompt_pb2, replay_pb2

BATCH_SIZE = 64
TRANSITIONS_PER_GROUP = 5
"""Fed, leased, finished, sampled, trained."""
LINEAGE = "bench"
STORE = "store"
WORKER = "worker"
PAYLOAD = feeder_pb2.PromptPayload(
    token_ids=range(32), text="sort 4 1 3 2" * 8, answer="1 2 3 4", data_source="bench"
)
WEIGHTS = prompt_pb2.PublishedWeights(
    id=prompt_pb2.WeightsId(lineage=LINEAGE, version=0), uri="none", checksum="none"
)


def new_prompts(first_ordinal: int, count: int) -> list[replay_pb2.NewPrompt]:
    """Make prompts as a feeder would."""
    return [
        replay_pb2.NewPrompt(uid=f"b{first_ordinal + i}", payload=PAYLOAD) for i in range(count)
    ]


def completed(uid: str, attempt: int, sessions: Sequence[int]) -> list[replay_pb2.CompletedSession]:
    """Report sessions as a worker would."""
    lease = replay_pb2.LeaseRef(uid=uid, attempt=attempt)
    return [
        replay_pb2.CompletedSession(
            lease=lease,
            record=prompt_pb2.SessionRecord(
                session=session, trajectory_count=1, size_bytes=1024, reward=0.5
            ),
        )
        for session in sessions
    ]


class PureRun:
    """Plays the feeder, a worker, the store and the trainer against a ledger in memory."""

    def __init__(self, *, n: int, window_size: int) -> None:
        """Open the feed, publish the first weights."""
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
            prompts=new_prompts(first, count),
        )
        self._ledger.take_events()

    def generate(self, count: int) -> None:
        """Lease prompts and complete all their sessions, one event each for all."""
        allowed = leasing.allowance(
            self._ledger, self._settings, worker_id=WORKER, version=0, store_held_bytes=0
        )
        groups = leasing.lease(
            self._ledger, worker_id=WORKER, weights=WEIGHTS.id, count=min(count, allowed.count)
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


def ledger_rate(*, steps: int, n: int = 8) -> float:
    """Give the transitions per second of a run of so many steps of 64 groups."""
    run = PureRun(n=n, window_size=BATCH_SIZE)
    begun = time.perf_counter()
    for _ in range(steps):
        run.feed(BATCH_SIZE)
        run.generate(BATCH_SIZE)
        run.sample()
        run.commit()
    return TRANSITIONS_PER_GROUP * BATCH_SIZE * steps / (time.perf_counter() - begun)


def sample_rule_s(live_counts: Sequence[int], *, samples: int) -> dict[int, list[float]]:
    """Time the sampling of 64 groups, in turn in ledgers that hold so many live groups.

    Returns:
        Seconds of each sample, by the number of live groups.

    """
    runs = {count: PureRun(n=1, window_size=count) for count in live_counts}
    for count, run in runs.items():
        run.fill(count)
    seconds: dict[int, list[float]] = {count: [] for count in live_counts}
    for _ in range(samples):
        for count, run in runs.items():
            begun = time.perf_counter()
            run.sample()
            seconds[count].append(time.perf_counter() - begun)
            run.commit()
            run.feed(BATCH_SIZE)
            run.generate(BATCH_SIZE)
    return seconds
