"""The replay buffer's state as metrics, read from the ledger at each scrape.

Cheap whatever the ledger holds: counts only, no group is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from headrace.replay import feeding
from headrace.replay.audit import balance_violations
from headrace.replay.buffer import ReplayBuffer
from headrace.replay.group import DROPPED, STATES
from headrace.replay.groups import reason_name, state_name
from headrace.replay.journal.base import Journal
from headrace.replay.leasing import reserved_bytes
from headrace.rpc.mirror import counter, counters, gauge, gauges
from headrace.v1 import prompt_pb2, replay_pb2

REASONS = [value for value in prompt_pb2.DropReason.values() if value]
CAUSES = [value for value in replay_pb2.CircuitCause.values() if value]


class StateMetrics:
    """Reads one replay buffer and its journal. Used on the event loop."""

    def __init__(self, buffer: ReplayBuffer, journal: Journal) -> None:
        self._buffer = buffer
        self._journal = journal

    def read(self) -> Iterator[Metric]:
        """Give all there is."""
        yield from self._prompts()
        yield from self._run()
        yield from self._store()
        yield from self._positions()

    def _prompts(self) -> Iterator[Metric]:
        ledger, settings = self._buffer.ledger, self._buffer.settings
        table = ledger.groups
        prompts = GaugeMetricFamily(
            "headrace_replay_prompts",
            "Prompts by state, the dropped ones by reason.",
            labels=["state", "reason"],
        )
        for state in STATES:
            if state != DROPPED:
                prompts.add_metric([state_name(state), ""], table.counts[state])
        for reason in REASONS:
            prompts.add_metric(["dropped", reason_name(reason)], table.dropped[reason])
        yield prompts
        yield counter("headrace_replay_fed", "Prompts registered.", table.fed_count)
        window = ledger.window(settings.window_size)
        yield gauge("headrace_replay_target", "Groups that should be live.", window.target)
        yield gauge("headrace_replay_occupancy", "Groups that are live.", window.occupancy)
        demand = feeding.demand(ledger, settings)
        yield gauge("headrace_replay_demand", "Prompts wanted from the feeder now.", demand)
        yield counters(
            "headrace_replay_regenerated",
            "Times a group had to be leased again.",
            "cause",
            {
                cause: ledger.regenerated[cause]
                for cause in ("expired", "returned", "failed", "store_lost")
            },
        )
        yield gauge(
            "headrace_replay_draft_tokens",
            "Tokens of responses under way that are kept.",
            table.draft_token_count,
        )
        ok = not balance_violations(ledger)
        yield gauge("headrace_replay_balance_ok", "Whether every prompt is accounted for.", ok)

    def _run(self) -> Iterator[Metric]:
        ledger = self._buffer.ledger
        yield gauge("headrace_replay_step", "The last committed step.", ledger.committed_step)
        yield gauge("headrace_replay_steps", "Steps in the run.", ledger.feed.total_steps)
        latest = ledger.latest_weights
        version = latest.id.version if latest is not None else -1
        yield gauge("headrace_replay_weight_version", "The newest weights announced.", version)
        workers = len(self._buffer.workers.live())
        yield gauge("headrace_replay_workers", "Workers heard of lately.", workers)
        causes = {_cause_name(cause): ledger.circuit.cause == cause for cause in CAUSES}
        yield gauges("headrace_replay_circuit_open", "Whether it is open.", "cause", causes)
        yield gauge("headrace_replay_paused", "Whether the run is paused.", ledger.paused)
        yield gauge("headrace_replay_ended", "Whether the run is over.", bool(ledger.ended_by))

    def _store(self) -> Iterator[Metric]:
        ledger = self._buffer.ledger
        reserved = ledger.groups.held_bytes + reserved_bytes(ledger, self._buffer.settings)
        yield gauge(
            "headrace_replay_store_reserved_bytes",
            "Bytes that the store holds for live groups or that leases may still need.",
            reserved,
        )
        yield gauge(
            "headrace_replay_store_capacity_bytes",
            "Bytes that the store can hold.",
            ledger.store_capacity,
        )

    def _positions(self) -> Iterator[Metric]:
        durable = self._buffer.committer.position
        base = self._journal.base
        yield gauge("headrace_journal_position", "The last durable event.", durable)
        yield gauge(
            "headrace_journal_pending_events",
            "Events not durable yet.",
            self._buffer.ledger.position - durable,
        )
        yield gauge(
            "headrace_journal_base_position",
            "The last compacted event; a restart reads only later ones.",
            base.position if base is not None else 0,
        )
        first = self._journal.first_position
        yield gauge("headrace_journal_first_position", "The first event still there.", first)


def _cause_name(cause: int) -> str:
    """`workers_fail`, `filter_budget`."""
    name = replay_pb2.CircuitCause.Name(replay_pb2.CircuitCause.ValueType(cause))
    return name.removeprefix("CIRCUIT_CAUSE_").lower()
