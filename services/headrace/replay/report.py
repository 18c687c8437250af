"""The ledger's answers to "where is the run?", shaped for the wire."""

from __future__ import annotations

from collections import Counter

from headrace.replay import feeding
from headrace.replay.audit import audit
from headrace.replay.leasing import reserved_bytes
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.replay.staleness import span
from headrace.replay.workers import Workers
from headrace.v1 import replay_pb2


def status(
    ledger: Ledger, settings: LedgerSettings, workers: Workers | None = None
) -> replay_pb2.GetReplayStatusResponse:
    """Say where the run is. `process` is left to the caller."""
    window = ledger.window(settings.window_size)
    spans = Counter(span(group.base, ledger.current_step) for group in ledger.groups.finished)
    return replay_pb2.GetReplayStatusResponse(
        lineage=ledger.lineage,
        counts=ledger.groups.to_counts(),
        committed_step=ledger.committed_step,
        total_steps=ledger.feed.total_steps,
        target=window.target,
        occupancy=window.occupancy,
        demand=feeding.demand(ledger, settings),
        cursor=ledger.cursor,
        circuit=ledger.circuit.cause,
        circuit_error=ledger.circuit.error,
        workers=_workers(ledger, workers) if workers else [],
        latest_weights=ledger.latest_weights,
        position=ledger.position,
        ended=bool(ledger.ended_by),
        finished_spans=spans,
        regenerated=ledger.regenerated,
        store_reserved_bytes=ledger.groups.held_bytes + reserved_bytes(ledger, settings),
        store_capacity_bytes=ledger.store_capacity,
        paused=ledger.paused,
        lineages=ledger.lineages,
        resume=ledger.resume,
        snapshot=ledger.snapshot,
        saved_step=ledger.saved_step,
        store_incarnation=ledger.store_incarnation,
        data_fingerprint=ledger.feed.fingerprint,
        trainer_incarnation=ledger.trainer_incarnation,
        fresh=ledger.is_fresh,
        given_up=ledger.given_up,
    )


def _workers(ledger: Ledger, workers: Workers) -> list[replay_pb2.WorkerSummary]:
    return [
        replay_pb2.WorkerSummary(
            worker_id=name,
            lease_count=ledger.groups.leases[name],
            weight_version=workers.heard[name].weight_version,
            failure_streak=ledger.circuit.streak(name),
            silent_s=workers.silent_s(name),
        )
        for name in sorted(workers.live())
    ]


def audited(ledger: Ledger, settings: LedgerSettings) -> replay_pb2.AuditResponse:
    """Check everything that must hold."""
    violations = audit(ledger, settings)
    return replay_pb2.AuditResponse(
        ok=not violations,
        counts=ledger.groups.to_counts(),
        violations=violations,
        position=ledger.position,
    )
