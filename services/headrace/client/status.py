"""Where a run is, as a value: text in a terminal, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from headrace.client import html
from headrace.client.peers import Roll
from headrace.client.resumes import resume_in_words, saved_in_words, timeline_in_words
from headrace.client.tables import status_table
from headrace.client.words import (
    LIVE_STATES,
    circuit_name,
    counts_in_words,
    duration,
    mean_span,
    size,
)
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import status_pb2

SHOWN_WAITS: Final = 6
"""Waits that are shown, the longest ones."""
BRIEF_S: Final = 1.0
"""Shorter waits are the normal course of things and not shown."""


@dataclass(frozen=True)
class Status:
    """Where a run is."""

    answer: pb.GetReplayStatusResponse
    """All that the replay buffer, or the journal, said."""
    roll: Roll = field(default_factory=Roll)
    """What the other processes said of themselves."""
    where: str = ""
    """The run directory, if it is known."""

    @property
    def name(self) -> str:
        """The run's id."""
        return self.answer.process.run_id or self.where.rpartition("/")[2] or "run"

    @property
    def step(self) -> int:
        """The last committed step; 0 before the first."""
        return self.answer.committed_step

    @property
    def total_steps(self) -> int:
        """Steps in the whole run; 0 while not known."""
        return self.answer.total_steps

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        return self.answer.saved_step

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.answer.paused

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.answer.ended

    @property
    def offline(self) -> bool:
        """Whether the journal said so, as there is no replay buffer."""
        return not self.answer.process.process

    @property
    def counts(self) -> dict[str, int]:
        """Prompts by state; `dropped` is the sum over all reasons."""
        counts = self.answer.counts
        states = {state: int(getattr(counts, state)) for state in (*LIVE_STATES, "trained")}
        return {**states, "dropped": sum(counts.dropped.values())}

    @property
    def dropped(self) -> dict[str, int]:
        """Dropped prompts by reason."""
        return dict(self.answer.counts.dropped)

    @property
    def staleness(self) -> float | None:
        """Mean span of the finished groups at the current step, 1 = on-policy; None without any."""
        return mean_span(self.answer.finished_spans.items())

    @property
    def circuit(self) -> str:
        """Why the circuit is open; empty if it is closed."""
        if not self.answer.circuit:
            return ""
        return f"{circuit_name(self.answer.circuit)}: {self.answer.circuit_error}"

    @property
    def waits(self) -> list[tuple[str, status_pb2.Wait]]:
        """What every process that answered waits for, the longest first."""
        processes = [self.answer.process, *self.roll.present.values()]
        found = [(process.process, wait) for process in processes for wait in process.waits]
        return sorted(found, key=lambda pair: -pair[1].elapsed_s)

    def __str__(self) -> str:
        processes = [self.answer.process, *self.roll.present.values()]
        return status_table(self.name, self.answer, processes).plain

    __repr__ = __str__

    def _repr_html_(self) -> str:
        beside = f"step {self.step} of {self.total_steps or '?'}"
        for told, words in (
            (self.ended, "over"),
            (self.paused, "paused"),
            (self.offline, "not running, read from its journal"),
        ):
            beside += f" · {words}" if told else ""
        live = {name: count for name, count in self.counts.items() if name in LIVE_STATES}
        shown = {name: n for name, n in live.items() if n or name != "failed"}
        parts = [
            html.title(self.name, beside),
            html.progress(self.step, self.total_steps),
            html.bar(shown, self.answer.target + live["sampled"]),
            html.facts(self._facts()),
        ]
        if self.answer.workers:
            header = ("worker", "groups", "weights", "failures in a row", "heard of")
            parts.append(html.table(header, self._workers()))
        waits = [(name, w) for name, w in self.waits if w.elapsed_s > BRIEF_S or w.stalled]
        if waits:
            header = ("process", "waits for", "owner", "since", "ends when")
            parts.append(html.table(header, map(_wait, waits[:SHOWN_WAITS])))
        return "".join(parts)

    def _facts(self) -> Iterator[tuple[str, object]]:
        answer = self.answer
        yield "prompts", counts_in_words(answer.counts)
        yield "window", f"{answer.occupancy} of {answer.target} wanted"
        if self.staleness is not None:
            yield "staleness", f"span of finished groups {self.staleness:.2f} (1 = on-policy)"
        if answer.HasField("latest_weights"):
            yield "weights", f"version {answer.latest_weights.id.version}"
        yield "time line", timeline_in_words(answer)
        yield "checkpoint", saved_in_words(answer)
        if answer.HasField("resume"):
            yield "resume", resume_in_words(answer.resume)
        if answer.store_capacity_bytes:
            used, capacity = answer.store_reserved_bytes, answer.store_capacity_bytes
            yield "store", f"{size(used)} of {size(capacity)}"
        if answer.regenerated:
            pairs = sorted(answer.regenerated.items(), key=lambda pair: -pair[1])
            yield "regenerated", ", ".join(f"{cause} {count}" for cause, count in pairs)
        if self.circuit:
            yield "circuit", html.alarm(f"open: {self.circuit}")
        else:
            yield "circuit", "closed"
        if self.roll.silent:
            yield "no answer", html.alarm(", ".join(self.roll.silent))

    def _workers(self) -> Iterator[tuple[object, ...]]:
        for worker in self.answer.workers:
            streak = worker.failure_streak
            yield (
                worker.worker_id,
                worker.lease_count,
                worker.weight_version,
                html.alarm(streak) if streak else streak,
                f"{duration(worker.silent_s)} ago",
            )


def _wait(named: tuple[str, status_pb2.Wait]) -> tuple[object, ...]:
    name, wait = named
    since = duration(wait.elapsed_s)
    stalled = html.alarm(f"{since} STALLED") if wait.stalled else since
    return name, wait.name, wait.owner, stalled, wait.ends_when
