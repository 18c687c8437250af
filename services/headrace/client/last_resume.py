"""The last resume of a run, as a value: text in a terminal, a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.client import html
from headrace.client.resumes import PHASES, WAITS, is_open, kept_count, origin, resume_in_words
from headrace.client.tables import facts
from headrace.client.words import counts_in_words, duration
from headrace.v1 import resume_pb2


@dataclass(frozen=True)
class LastResume:
    """How a run went on from a checkpoint."""

    state: resume_pb2.ResumeState
    """All that the ledger knows of it."""

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
        begun = [(name, self.state.phase_times[name]) for name in self._names()]
        following = [*begun[1:], ("", 0.0)]
        pairs = zip(begun, following, strict=True)
        return {name: ends - begins for (name, begins), (after, ends) in pairs if after}

    def _names(self) -> list[str]:
        return [name for name in PHASES.values() if name in self.state.phase_times]

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
        at = datetime.fromtimestamp(self.state.phase_times[names[0]], UTC)
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
