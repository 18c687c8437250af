"""What happens in the replay buffer, counted and timed as it happens.

Knows the events by name, not the rules that made them. State is mirrored in `state_metrics.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from headrace.replay.events import name_of
from headrace.replay.ledger import Ledger
from headrace.replay.staleness import span
from headrace.v1 import journal_pb2

SPAN_BUCKETS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
"""Steps; 1 = on-policy."""
APPEND_BUCKETS_S: Final = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""An append without fsync takes fractions of a millisecond, one on a slow disk tenths of a second."""
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Events in an append."""
COMPACTION_BUCKETS_S: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""A compaction reads the journal once."""


class EventMetrics:
    """Counters and histograms of one replay buffer.

    Args:
        registry: Where they are registered.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._spans = Histogram(
            "headrace_replay_sampled_span",
            "Span of groups when they were sampled: steps since their base, 1 = on-policy.",
            registry=registry,
            buckets=SPAN_BUCKETS,
        )
        self._events = Counter(
            "headrace_journal_events", "Events of the ledger.", ["event"], registry=registry
        )
        self._journaled = Counter(
            "headrace_replay_tokens_journaled",
            "Tokens of responses under way that workers have reported.",
            registry=registry,
        )
        self._continued = Counter(
            "headrace_replay_tokens_continued",
            "Those given with a lease: they are gone on with, not made again.",
            registry=registry,
        )
        self._drafts_dropped = Counter(
            "headrace_replay_drafts_dropped",
            "Responses under way that were begun anew.",
            ["reason"],
            registry=registry,
        )
        self._append_s = Histogram(
            "headrace_journal_append_seconds",
            "Time of an append until it is durable.",
            registry=registry,
            buckets=APPEND_BUCKETS_S,
        )
        self._batch = Histogram(
            "headrace_journal_batch_events",
            "Events written by one append.",
            registry=registry,
            buckets=BATCH_BUCKETS,
        )
        self._compaction_s = Histogram(
            "headrace_journal_compaction_seconds",
            "Time of a compaction that succeeded.",
            registry=registry,
            buckets=COMPACTION_BUCKETS_S,
        )
        self._compactions_failed = Counter(
            "headrace_journal_compactions_failed",
            "Compactions that failed; the journal is whole without them.",
            registry=registry,
        )

    def happened(self, ledger: Ledger, records: Sequence[journal_pb2.JournalRecord]) -> None:
        """Take events that the ledger has just applied."""
        for record in records:
            name = name_of(record)
            self._events.labels(name).inc()
            if name == "batch_sampled":
                sampled = record.batch_sampled
                for uid in sampled.uids:
                    self._spans.observe(span(ledger.groups[uid].base, sampled.step))
            elif name == "prompts_leased":
                leased = [ledger.groups[lease.uid] for lease in record.prompts_leased.leases]
                self._continued.inc(sum(group.draft_token_count for group in leased))
            elif name == "tokens_reported":
                progress = record.tokens_reported.progress
                drafts = [draft for each in progress for draft in each.drafts]
                self._journaled.inc(sum(len(draft.token_ids) for draft in drafts))
            elif name == "drafts_dropped":
                dropped = record.drafts_dropped
                self._drafts_dropped.labels(dropped.reason).inc(len(dropped.uids))

    def appended(self, event_count: int, seconds: float) -> None:
        """Take an append that is durable."""
        self._batch.observe(event_count)
        self._append_s.observe(seconds)

    def compacted(self, seconds: float) -> None:
        """Take a compaction."""
        self._compaction_s.observe(seconds)

    def compaction_failed(self) -> None:
        """Take a compaction that did not succeed."""
        self._compactions_failed.inc()
