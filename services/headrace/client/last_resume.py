"""The last resume of a run, as a value: text in a terminal, a table in a notebook."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import grpc

from headrace.client import html
from headrace.client.asking import ask
from headrace.client.resumes import PHASES, WAITS, is_open, kept_count, origin, resume_in_words
from headrace.client.tables import facts
from headrace.client.words import counts_in_words, duration
from headrace.errors import UsageError
from headrace.v1 import checkpoint_pb2, checkpoint_pb2_grpc, prompt_pb2, resume_pb2


@dataclass(frozen=True)
class LastResume:
    """How a run went on from a checkpoint."""

    state: resume_pb2.ResumeState
    """All that the ledger knows of it."""
    times: Mapping[str, float] = field(default_factory=dict)
    """When each phase began, Unix seconds, by its name; as far as it is known."""

    @property
    def step(self) -> int:
        """The step it went back to; 0 = the beginning."""
        return self.state.step

    @property
    def lineage(self) -> str:
        """The time line that it opened; empty before."""
        return self.state.lineage

    @property
    def done(self) -> bool:
        """Whether the run goes on."""
        return is_open(self.state)

    @property
    def kept(self) -> int:
        """Groups that need not be generated again."""
        return kept_count(self.state)

    @property
    def reissued(self) -> int:
        """Groups that are generated again, wholly or in part."""
        return self.state.reissued_count

    @property
    def phases(self) -> dict[str, float]:
        """Seconds that each phase took, in order; those that are over."""
        begun = [(name, self.times[name]) for name in self._names()]
        return {name: ends - begins for (name, begins), (_, ends) in itertools.pairwise(begun)}

    def _names(self) -> list[str]:
        return [name for name in PHASES.values() if name in self.times]

    def _facts(self) -> Iterator[tuple[str, str]]:
        state = self.state
        yield "went back to", origin(state.step)
        yield "began", self._began()
        yield "time line", f"{state.lineage or '-'}, which left {state.parent or '-'}"
        yield "ledger", "from the checkpoint: the journal was lost" if state.restored else "kept"
        yield "taken over", counts_in_words(state.counts)
        yield "kept", f"{self.kept} groups"
        yield (
            "reissued",
            f"{state.reissued_count} groups, {state.sessions_kept_count} sessions kept",
        )
        yield "trained on again", f"{state.untrained_count} groups"
        yield "dropped as stale", f"{state.dropped_count} groups"
        yield "fed", f"{state.topped_up_count} prompts"

    def _began(self) -> str:
        names = self._names()
        if not names:
            return "-"
        at = datetime.fromtimestamp(self.times[names[0]], UTC)
        return f"{at:%Y-%m-%d %H:%M:%S} UTC"

    def _phase_words(self) -> Iterator[tuple[str, str, str]]:
        doing = {PHASES[phase]: words for phase, words in WAITS.items()}
        for name, seconds in self.phases.items():
            yield name, duration(seconds), doing.get(name, "")

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {seconds}" for name, seconds, _ in self._phase_words())
        table = facts([*self._facts(), ("phases", phases or "-")])
        return f"{resume_in_words(self.state)}\n{table.plain}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [html.title(resume_in_words(self.state)), html.facts(self._facts())]
        phases = list(self._phase_words())
        if phases:
            parts.append(html.table(("phase", "took", "what it does"), phases))
        return "".join(parts)


def times_from_coordinator(channel: grpc.Channel, resume_id: str) -> dict[str, float]:
    """Ask the coordinator when the phases began; nothing if it does not answer, or not know."""
    stub = checkpoint_pb2_grpc.CheckpointCoordinatorServiceStub(channel)
    request = checkpoint_pb2.GetCoordinatorStatusRequest()
    try:
        known = ask(stub.GetCoordinatorStatus, request, who="the checkpoint coordinator").resume
    except UsageError:
        return {}
    return dict(known.phase_times) if known.resume_id == resume_id else {}


def times_from_events(events: Iterable[prompt_pb2.LedgerEvent], resume_id: str) -> dict[str, float]:
    """Read from the journal when the phases began."""
    times: dict[str, float] = {}
    for event in events:
        if event.name not in ("resume_begun", "resume_advanced"):
            continue
        detail = json.loads(event.detail_json)
        if detail.get("resume_id") == resume_id:
            phase = str(detail.get("phase", "RESUME_PHASE_PLAN"))
            name = phase.removeprefix("RESUME_PHASE_").lower()
            times.setdefault(name, event.unix_time_s)
    return times
