"""Numbers and states as people read them. Pure text, no colours, no tables."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.v1 import prompt_pb2, replay_pb2, status_pb2

LIVE_STATES = ("pending", "running", "finished", "failed", "sampled")
"""The states of prompts that are not settled, in their order."""


def state_name(state: prompt_pb2.PromptState.ValueType) -> str:
    """Give a state's name in lower case."""
    return prompt_pb2.PromptState.Name(state).removeprefix("PROMPT_STATE_").lower()


def reason_name(reason: prompt_pb2.DropReason.ValueType) -> str:
    """Give a reason's name in lower case; empty for a prompt that was not dropped."""
    name = prompt_pb2.DropReason.Name(reason).removeprefix("DROP_REASON_").lower()
    return name if reason else ""


def circuit_name(cause: replay_pb2.CircuitCause.ValueType) -> str:
    """Say why the circuit is open."""
    name = replay_pb2.CircuitCause.Name(cause).removeprefix("CIRCUIT_CAUSE_").lower()
    return name.replace("_", " ")


def circuit_in_words(status: replay_pb2.GetReplayStatusResponse) -> str:
    """`open (workers fail): CUDA out of memory`."""
    return f"open ({circuit_name(status.circuit)}): {status.circuit_error}"


def weights_name(version: int) -> str:
    """`v3`, or a dash while there are none."""
    return f"v{version}" if version >= 0 else "-"


def duration(seconds: float) -> str:
    """`0.42 s`, `12 s`, `3:05`, `1:02:30`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(byte_count: float) -> str:
    """`512 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if byte_count < 1024 or unit == "GiB":
            return f"{byte_count:.0f} B" if unit == "B" else f"{byte_count:.1f} {unit}"
        byte_count /= 1024
    raise AssertionError


def counts_in_words(counts: prompt_pb2.StateCounts) -> str:
    """`fed 100 = 12 pending + 3 running + 80 trained + 5 dropped (5 stale)`."""
    parts = [f"{getattr(counts, s)} {s}" for s in (*LIVE_STATES, "trained") if getattr(counts, s)]
    if dropped := dropped_in_words(counts):
        parts.append(dropped)
    return f"fed {counts.fed} = {' + '.join(parts) or '0'}"


def dropped_in_words(counts: prompt_pb2.StateCounts) -> str:
    """`7 dropped (5 stale, 2 surplus)`; empty if nothing was."""
    reasons = {reason: count for reason, count in sorted(counts.dropped.items()) if count}
    if not reasons:
        return ""
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{sum(reasons.values())} dropped ({listed})"


def window_in_words(status: replay_pb2.GetReplayStatusResponse) -> str:
    """`pending 3 · running 20 · finished 9 of 32 wanted; sampled 32`."""
    counts = status.counts
    shown = [f"{state} {getattr(counts, state)}" for state in ("pending", "running", "finished")]
    beside = [f"; {s} {getattr(counts, s)}" for s in ("failed", "sampled") if getattr(counts, s)]
    return f"{' · '.join(shown)} of {status.target} wanted{''.join(beside)}"


def wait_in_words(process: str, wait: status_pb2.Wait) -> str:
    """`trainer waits for a batch (owner replay) for 12 s`."""
    ends = f"; ends when {wait.ends_when}" if wait.ends_when else ""
    return f"{process}: {wait.name} (owner {wait.owner}) for {duration(wait.elapsed_s)}{ends}"


def mean_span(spans: Iterable[tuple[int, int]]) -> float | None:
    """Give the mean of a histogram of (span, groups); None if it is empty."""
    pairs = list(spans)
    groups = sum(count for _, count in pairs)
    return sum(span * count for span, count in pairs) / groups if groups else None
