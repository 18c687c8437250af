"""Failures: whose fault they are, and when everything stops until a probe succeeds.

- A prompt whose failures reach `max_failures` is FAILED. It is dropped as soon as some worker
  succeeds with something, for then the fault is the prompt's.
- A worker that failed `eject_after` different prompts in a row is ejected: prompts are not blamed
  for its failures, and it gets one probe lease at a time until it succeeds.
- When all live workers are ejected the circuit opens: feeding stops, nothing is dropped. The
  first success closes it, and what was FAILED is PENDING again.
- Probes go round. What a probe failed at `max_failures` times is FAILED, too, and when nothing is
  left to probe with, a fresh prompt is let in, at most `eject_after` of them: if all the others
  are prompts that nobody can do, it shows that the workers work. Once no fresh one may be let in,
  what was FAILED has its turn again in the place of what failed last.
- With the success of an ejected worker, or of a probe, the prompts that were failed at are blamed
  after all, once each: an outage costs a prompt one failure, and one that nobody can do is dropped
  after `max_failures` of them and one more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.replay.dropping import drop
from headrace.replay.group import PENDING, RUNNING, Group
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, replay_pb2

WORKERS_FAIL = replay_pb2.CIRCUIT_CAUSE_WORKERS_FAIL


def judge_failures(
    ledger: Ledger,
    settings: LedgerSettings,
    *,
    worker_id: str,
    live_workers: Collection[str],
    failed: Sequence[Group],
    error: str,
) -> None:
    """Decide what follows from failures that were just recorded."""
    circuit = ledger.circuit
    if circuit.streak(worker_id) >= settings.eject_after and worker_id not in circuit.ejected:
        ledger.emit(journal.WorkerEjected(worker_id=worker_id))
    if not circuit.is_open and {worker_id, *live_workers} <= circuit.ejected:
        ledger.emit(journal.CircuitOpened(cause=WORKERS_FAIL, error=error))
    probing = circuit.cause == WORKERS_FAIL
    used_up = [
        group.uid
        for group in failed
        if group.state == PENDING
        and (
            group.failures >= settings.max_failures
            or (probing and circuit.tries(group.uid) >= settings.max_failures)
        )
    ]
    lets_in = circuit.fed_count < settings.eject_after and not ledger.feed_is_over
    others = () if not probing or lets_in else tuple(ledger.groups.failed)
    if used_up and (others or lets_in or not probing):
        ledger.emit(journal.GroupsFailed(uids=used_up, retried_uids=others))


def judge_expiries(ledger: Ledger, settings: LedgerSettings, expired: Sequence[Group]) -> None:
    """Drop prompts whose leases ran out too often: they kill workers."""
    deadly = [group for group in expired if group.expiries >= settings.max_expiries]
    drop(ledger, prompt_pb2.DROP_REASON_FAILED, deadly, step=ledger.current_step)


def judge_success(ledger: Ledger, settings: LedgerSettings) -> None:
    """Close the circuit that failing workers opened; drop what failed too often meanwhile."""
    circuit = ledger.circuit
    closes = circuit.cause == WORKERS_FAIL
    if circuit.is_open and not closes:
        return
    failed = [
        group
        for group in ledger.groups.failed.values()
        if not closes or group.failures >= settings.max_failures
    ]
    drop(ledger, prompt_pb2.DROP_REASON_FAILED, failed, step=ledger.current_step)
    if closes:
        tried = {uid: None for streak in circuit.streaks.values() for uid in streak}
        ledger.emit(journal.CircuitClosed(by="probe", blamed_uids=tried))


def may_lease(ledger: Ledger, worker_id: str) -> int | None:
    """How many leases the worker may hold: None = no limit of the circuit's."""
    if ledger.circuit.cause == replay_pb2.CIRCUIT_CAUSE_FILTER_BUDGET:
        return 0
    if ledger.circuit.is_open or worker_id in ledger.circuit.ejected:
        return 1
    return None


def probes_wanted(ledger: Ledger) -> int:
    """How many prompts an open circuit needs, so that a probe can close it."""
    counts = ledger.groups.counts
    has_one = bool(counts[PENDING] + counts[RUNNING])
    return int(ledger.circuit.cause == WORKERS_FAIL and not has_one)
