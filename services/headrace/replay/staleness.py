"""How old a group is, and when it is too old. Pure arithmetic."""

from __future__ import annotations

from headrace.replay.settings import LedgerSettings


def span(base: int, step: int) -> int:
    """Steps from the base to the step, both counted: 1 = on-policy, 0 = no base yet."""
    return step - base + 1 if base else 0


def is_stale(base: int, step: int, settings: LedgerSettings) -> bool:
    """Whether a group of this base can no longer be used at the step: span > T under `drop`."""
    return (
        settings.strategy == "drop"
        and settings.threshold is not None
        and span(base, step) > settings.threshold
    )


def oldest_usable_base(step: int, settings: LedgerSettings) -> int:
    """The smallest base that is not stale at the step; 0 where nothing ever is."""
    if settings.strategy != "drop" or settings.threshold is None:
        return 0
    return step - settings.threshold + 1


def oldest_usable_version(step: int, settings: LedgerSettings) -> int:
    """The oldest weights that may still generate for the step (the weight gate).

    Weights v give base v + 1. `sync` wants exactly the weights of the step before.
    """
    if settings.sync:
        return step - 1
    return max(0, oldest_usable_base(step, settings) - 1)


def blocks_sampling(oldest_running_base: int, step: int, settings: LedgerSettings) -> bool:
    """Whether, under `wait`, a running group has reached T and is waited for."""
    return (
        settings.strategy == "wait"
        and settings.threshold is not None
        and oldest_running_base > 0
        and span(oldest_running_base, step) >= settings.threshold
    )
