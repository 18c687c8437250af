"""Dropping what cannot be used any more: the stale, the filtered, the surplus, the cancelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from headrace.errors import InvalidFieldError, PromptInUseError
from headrace.replay.group import DROPPED, FAILED, PENDING, RUNNING, Group
from headrace.replay.groups import state_name
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.replay.staleness import span
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2, replay_pb2

MAX_PROMPTS_PER_CALL = 4096


def drop_stale(
    ledger: Ledger,
    settings: LedgerSettings,
    step: int,
    reason: prompt_pb2.DropReason.ValueType = prompt_pb2.DROP_REASON_STALE,
) -> list[str]:
    """Drop every group past T at the step, in time proportional to what is dropped.

    A PENDING group under `basis: generated` loses its old sessions instead: the prompt itself
    has not aged.

    Raises:
        InvalidFieldError: a step before the current one, or no threshold.

    """
    if step < ledger.current_step:
        raise InvalidFieldError(
            "step", f"must not lie before the current one, {ledger.current_step}"
        )
    if settings.threshold is None:
        raise InvalidFieldError(
            "step", "sampler.max_off_policy_threshold is null: nothing is stale"
        )
    threshold = settings.threshold

    def stale(groups: Iterable[Group]) -> list[Group]:
        return list(takewhile(lambda group: span(group.base, step) > threshold, groups))

    aged = stale(ledger.groups.pending_aged)
    failed = [
        group for group in ledger.groups.failed.values() if span(group.base, step) > threshold
    ]
    doomed = [*stale(ledger.groups.finished), *stale(ledger.groups.running), *failed]
    if settings.basis == "fed":
        doomed += aged
    dropped = drop(
        ledger,
        reason,
        doomed,
        step=step,
        spans=[span(group.base, step) for group in doomed],
    )
    if aged and settings.basis != "fed":
        uids = [group.uid for group in aged]
        ledger.emit(journal.SessionsForgotten(uids=uids, step=step))
    return dropped


def drop(
    ledger: Ledger,
    reason: prompt_pb2.DropReason.ValueType,
    groups: Sequence[Group],
    *,
    step: int,
    spans: Sequence[int] = (),
) -> list[str]:
    """Drop these groups, if any, and name them."""
    uids = [group.uid for group in groups]
    if uids:
        ledger.emit(journal.GroupsDropped(reason=reason, uids=uids, step=step, spans=spans))
    return uids


def drop_named(ledger: Ledger, uids: Sequence[str]) -> list[str]:
    """Drop prompts that a user has given up, all or none; name those that were not dropped yet.

    A lease on one of them is lost, as its worker learns with its next call.

    Raises:
        InvalidFieldError: none is named, or too many.
        PromptUnknownError: one was never fed, or is forgotten.
        PromptInUseError: one is finished, sampled or trained.

    """
    if not 1 <= len(uids) <= MAX_PROMPTS_PER_CALL:
        raise InvalidFieldError("uids", f"must be 1 to {MAX_PROMPTS_PER_CALL}")
    groups = [ledger.groups.find(uid) for uid in dict.fromkeys(uids)]
    used = [group for group in groups if group.state not in (PENDING, RUNNING, FAILED, DROPPED)]
    if used:
        raise PromptInUseError(
            "; ".join(f"{group.uid} is {state_name(group.state)}" for group in used)
            + ": only what is pending, running or failed can be dropped, and nothing was"
        )
    doomed = [group for group in groups if group.state != DROPPED]
    return drop(ledger, prompt_pb2.DROP_REASON_CANCELLED, doomed, step=ledger.current_step)


def drop_filtered(ledger: Ledger, settings: LedgerSettings, finished: Sequence[Group]) -> None:
    """Drop finished groups whose sessions all have the same reward (DAPO, arXiv 2503.14476).

    A group of one session says nothing and is kept. When the step's budget is used up the
    circuit opens: a broken reward must not eat the data set.
    """
    if not settings.filter_groups:
        return
    flat = [
        group
        for group in finished
        if len(group.sessions) > 1 and len({r.reward for r in group.sessions.values()}) == 1
    ]
    drop(ledger, prompt_pb2.DROP_REASON_FILTERED, flat, step=ledger.current_step)
    if not flat:
        return
    if ledger.filtered_in_step >= settings.max_filtered_groups and not ledger.circuit.is_open:
        ledger.emit(
            journal.CircuitOpened(
                cause=replay_pb2.CIRCUIT_CAUSE_FILTER_BUDGET,
                error=f"{ledger.filtered_in_step} groups of step {ledger.current_step} had equal "
                "rewards (algorithm.filter_groups.max_filtered_groups)",
            )
        )
