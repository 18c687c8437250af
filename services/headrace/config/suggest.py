"""What somebody may have meant by a name that does not exist. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

CUTOFF = 0.6
"""Least likeness of two names (difflib's ratio) to suggest one for the other."""


def suggest(key: str, known: Sequence[str]) -> str | None:
    """Find the known dotted key that `key` most likely stands for.

    A key with the right name in the wrong section comes first (`trainer.lr` for
    `trainer.optim.lr`), then a misspelled name in the right section, then a
    misspelled section, then whatever looks alike as a whole.
    """
    parent, _, name = key.rpartition(".")
    same_name = [other for other in known if other.rpartition(".")[2] == name]
    if same_name:
        return max(same_name, key=lambda other: _likeness(key, other))
    siblings = {o.rpartition(".")[2]: o for o in known if o.rpartition(".")[0] == parent}
    if close := difflib.get_close_matches(name, list(siblings), n=1, cutoff=CUTOFF):
        return siblings[close[0]]
    close = difflib.get_close_matches(key, known, n=1, cutoff=CUTOFF)
    return close[0] if close else None


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
