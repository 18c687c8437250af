"""What is said of a run when it is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """A run that is over, or was stopped: all of it, and what this start has done of it."""

    view: View
    """The last that was seen of it."""
    audit: replay_pb2.AuditResponse | None
    """The last audit; None if nobody could do it."""
    directory: RunDirectory
    """Where its files are."""
    tensorboard: bool
    """Whether there are TensorBoard logs."""
    began_before: bool = False
    """Whether this start went on with the run."""
    resumed: Sequence[resume_pb2.ResumeState] = ()
    """How it was gone on with, each time."""

    @property
    def own_steps(self) -> int:
        """Steps of this start that are still there at its end."""
        if not self.began_before:
            return self.view.steps.last
        return max(0, self.view.steps.last - self.resumed[0].step) if self.resumed else 0

    def text(self) -> Text:
        """Lay it out: in one block, or, where the run had begun before, all of it and this start."""
        all_of_it, this_start = [*self._of_the_run()], [*self._of_this_start()]
        if not self.began_before:
            return facts([*all_of_it, *this_start, *self._places()])
        blocks = [("the whole run", all_of_it), ("this start", this_start)]
        parts = [Text.assemble((title, "bold"), "\n", facts(block)) for title, block in blocks]
        return Text("\n\n").join([*parts, facts([*self._places()])])

    def _of_the_run(self) -> Iterator[Fact]:
        view = self.view
        yield "steps", f"{view.steps.last} of {view.total_steps or '?'}"
        yield "reward", self._reward()
        yield "prompts", self._prompts()
        yield "balance", self._balance()
        yield "trained on", f"{sum(view.steps.series(TOKENS)):,.0f} tokens (prompts included)"
        yield "staleness", self._staleness()
        if view.replay is not None and view.replay.regenerated:
            yield "regenerated", in_pairs(view.replay.regenerated)
        if words := checkpoint_in_words(view):
            yield "checkpoint", words

    def _of_this_start(self) -> Iterator[Fact]:
        view = self.view
        steps = f"{self.own_steps} step{'' if self.own_steps == 1 else 's'}"
        yield "time", f"{duration(view.now - view.begun)} for {steps}"
        yield "sampled", self._sampled()
        for each in self.resumed:
            yield "resumed", resume_in_words(each)
        for line in self._waits():
            yield "waited", line
        for words in view.restarts_in_words or ["none"]:
            yield "restarts", words

    def _places(self) -> Iterator[Fact]:
        yield "run directory", str(self.directory.path)
        if self.tensorboard:
            yield "curves", f"tensorboard --logdir {self.directory.tensorboard}"
        yield "questions", f"headrace audit --run {self.directory.path}"

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

    def _sampled(self) -> str:
        count, view = self.view.tokens, self.view
        words = f"{count.generated:,} tokens"
        if count.wasted:
            words += f", {count.wasted:,} of them wasted"
        elapsed_s = view.now - view.begun
        return words + (f", {count.generated / elapsed_s:,.0f} per second" if elapsed_s > 0 else "")

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
