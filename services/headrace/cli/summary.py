"""What is said of a run when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from headrace.cli.display import checkpoint_in_words
from headrace.cli.view import View
from headrace.client.resumes import resume_in_words
from headrace.client.steps import REWARD, STALENESS, STALENESS_MAX, TOKENS, mean
from headrace.client.tables import Fact, facts, in_pairs
from headrace.client.words import counts_in_words, duration
from headrace.config.rundir import RunDirectory
from headrace.v1 import replay_pb2, resume_pb2

FIRST_AND_LAST: Final = 10
"""Steps that the first and the last reward are means over."""
SHOWN_WAITS: Final = 3
"""Waits that are shown per process, the longest ones."""


@dataclass(frozen=True)
class Summary:
    """A run that is over."""

    view: View
    """The last that was seen of it."""
    audit: replay_pb2.AuditResponse | None
    """The last audit; None if nobody could do it."""
    directory: RunDirectory
    """Where its files are."""
    tensorboard: bool
    """Whether there are TensorBoard logs."""
    resumed: Sequence[resume_pb2.ResumeState] = ()
    """How it was gone on with, each time."""

    def text(self) -> Text:
        """Lay it out."""
        view = self.view
        steps = f"{view.steps.last} of {view.total_steps or '?'}"
        pairs: list[Fact] = [
            ("steps", f"{steps} in {duration(view.now - view.begun)}"),
            ("reward", self._reward()),
            ("prompts", self._prompts()),
            ("balance", self._balance()),
            ("tokens", self._tokens()),
            ("staleness", self._staleness()),
        ]
        if view.replay is not None and view.replay.regenerated:
            pairs.append(("regenerated", in_pairs(view.replay.regenerated)))
        pairs += [("resumed", resume_in_words(each)) for each in self.resumed]
        if words := checkpoint_in_words(view):
            pairs.append(("checkpoint", words))
        pairs += [("waited", line) for line in self._waits()]
        pairs.append(("restarts", in_pairs(view.restarts) or "none"))
        pairs.append(("run directory", str(self.directory.path)))
        if self.tensorboard:
            pairs.append(("curves", f"tensorboard --logdir {self.directory.tensorboard}"))
        pairs.append(("questions", f"headrace audit --run {self.directory.path}"))
        return facts(pairs)

    def _reward(self) -> str:
        rewards = self.view.steps.series(REWARD)
        first, last = mean(rewards[:FIRST_AND_LAST]), mean(rewards[-FIRST_AND_LAST:])
        if first is None or last is None:
            return "none yet"
        over = min(FIRST_AND_LAST, len(rewards))
        return f"{first:.3f} → {last:.3f} (means over the first and last {over} steps)"

    def _prompts(self) -> str:
        if self.audit is not None:
            return counts_in_words(self.audit.counts)
        return counts_in_words(self.view.replay.counts) if self.view.replay else "not known"

    def _balance(self) -> Text:
        if self.audit is None:
            return Text("not checked: nobody could be asked", style="yellow")
        if self.audit.ok:
            return Text("holds: every prompt is accounted for", style="green")
        return Text("BROKEN: " + "; ".join(self.audit.violations), style="bold red")

    def _tokens(self) -> str:
        count, view = self.view.tokens, self.view
        sums = [f"{count.generated:,} sampled"]
        if count.wasted:
            sums.append(f"{count.wasted:,} of them wasted")
        trained = sum(view.steps.series(TOKENS))
        sums.append(f"{trained:,.0f} trained on (prompts included)")
        elapsed_s = view.now - view.begun
        if elapsed_s > 0:
            sums.append(f"{count.generated / elapsed_s:,.0f} sampled per second")
        return ", ".join(sums)

    def _staleness(self) -> str:
        usual = mean(self.view.steps.series(STALENESS))
        if usual is None:
            return "none yet"
        largest = max(self.view.steps.series(STALENESS_MAX), default=usual)
        return f"{usual:.2f} versions old on average, {largest:.0f} at most"

    def _waits(self) -> list[str]:
        lines = []
        for name, process in sorted(self.view.processes.items()):
            longest = sorted(process.waited_s.items(), key=lambda pair: -pair[1])[:SHOWN_WAITS]
            told = ", ".join(f"{what} {duration(s)}" for what, s in longest if s >= 1)
            if told:
                lines.append(f"{name} (of {duration(process.uptime_s)}): {told}")
        return lines
