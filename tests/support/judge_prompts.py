"""Where every prompt is, counted as they go: a long run has too many to look at all, each time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from judge_rules import Prompt


class Prompts:
    """All prompts of a ledger, by uid and by state."""

    def __init__(self) -> None:
        self._all: dict[str, Prompt] = {}
        self._of: defaultdict[str, dict[str, Prompt]] = defaultdict(dict)
        self._counts: Counter[str] = Counter()

    def __contains__(self, uid: str) -> bool:
        return uid in self._all

    def __getitem__(self, uid: str) -> Prompt:
        return self._all[uid]

    def __len__(self) -> int:
        return len(self._all)

    def values(self) -> Iterable[Prompt]:
        return self._all.values()

    def add(self, prompt: Prompt) -> None:
        """Take one in; it takes the place of another with its uid."""
        if prompt.uid in self:
            self._leave(self[prompt.uid])
        self._all[prompt.uid] = prompt
        self._enter(prompt)

    def move(self, prompt: Prompt, to: str, reason: str = "") -> None:
        """Take one to another state, for a reason if it is dropped."""
        self._leave(prompt)
        prompt.state, prompt.reason = to, reason
        self._enter(prompt)

    def of(self, *states: str) -> list[Prompt]:
        """List those that are in one of these states."""
        return [prompt for state in states for prompt in self._of[state].values()]

    def count(self, *states: str) -> int:
        """Count those that are in one of these states."""
        return sum(len(self._of[state]) for state in states)

    @property
    def counts(self) -> Counter[str]:
        """How many there are by state, and `dropped:reason`; nothing that there is none of."""
        return +self._counts

    def _enter(self, prompt: Prompt) -> None:
        self._of[prompt.state][prompt.uid] = prompt
        self._counts[_name(prompt)] += 1

    def _leave(self, prompt: Prompt) -> None:
        del self._of[prompt.state][prompt.uid]
        self._counts[_name(prompt)] -= 1


def _name(prompt: Prompt) -> str:
    return prompt.state + (f":{prompt.reason}" if prompt.reason else "")
