"""What the circuit's events change: failures, ejections, opening and closing, and who is blamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.replay.group import FAILED, LIVE, PENDING, RUNNING
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import replay_pb2

if TYPE_CHECKING:
    from headrace.replay.ledger import Ledger


def _on_circuit_opened(ledger: Ledger, event: journal.CircuitOpened) -> None:
    ledger.circuit.cause = event.cause
    ledger.circuit.error = event.error
    ledger.circuit.fed_count = 0


def _on_groups_failed(ledger: Ledger, event: journal.GroupsFailed) -> None:
    for uids, state in ((event.uids, FAILED), (event.retried_uids, PENDING)):
        for uid in uids:
            with ledger.groups.changing(ledger.groups[uid]) as group:
                group.state = state
                ledger.touch(group)


def _on_worker_ejected(ledger: Ledger, event: journal.WorkerEjected) -> None:
    ledger.circuit.ejected.add(event.worker_id)
    for uid, count in ledger.circuit.streaks.get(event.worker_id, Counter()).items():
        blamed = ledger.groups.get(uid)  # None: it settled long ago and was forgotten
        if blamed and blamed.state in LIVE and blamed.failures:
            with ledger.groups.changing(blamed) as group:
                group.failures = max(0, group.failures - count)
                ledger.touch(group)


def _on_circuit_closed(ledger: Ledger, event: journal.CircuitClosed) -> None:
    ledger.circuit.cause = replay_pb2.CIRCUIT_CAUSE_UNSPECIFIED
    ledger.circuit.error = ""
    ledger.circuit.streaks.clear()
    ledger.circuit.ejected.clear()
    ledger.filtered_in_step = 0
    for live in ledger.groups.live():
        forgiven = event.by == "rpc" and live.failures
        if not forgiven and live.state != FAILED:
            continue
        with ledger.groups.changing(live) as group:
            if forgiven:
                group.failures = 0
            if group.state == FAILED:
                group.state = PENDING
            ledger.touch(group)
    blame(ledger, event.blamed_uids)


def blame(ledger: Ledger, uids: Iterable[str]) -> None:
    """Count a failure against each prompt that can still be tried."""
    for uid in uids:
        blamed = ledger.groups.get(uid)
        if blamed and blamed.state in (PENDING, RUNNING, FAILED):
            with ledger.groups.changing(blamed) as group:
                group.failures += 1
                ledger.touch(group)


HANDLERS: Mapping[str, Callable[[Ledger, Any], None]] = {
    "circuit_opened": _on_circuit_opened,
    "circuit_closed": _on_circuit_closed,
    "groups_failed": _on_groups_failed,
    "worker_ejected": _on_worker_ejected,
}
"""By the event's name."""
