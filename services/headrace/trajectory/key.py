"""The key of one trajectory.

Knows how a key is spelled; nothing of the store or of what lies under it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_NUMBER = r"0|[1-9][0-9]*"
_SPELLING = re.compile(
    rf"(?P<uid>[A-Za-z0-9.-]+)_(?P<session>{_NUMBER})_(?P<index>{_NUMBER})"
    rf"_(?P<lineage>[A-Za-z0-9.-]+)a(?P<attempt>{_NUMBER})"
)


def spell(uid: str, session: int, index: int, lineage: str, attempt: int) -> str:
    """Spell a key without making one, where there are thousands; the fields are `TrajectoryKey`'s."""
    return f"{uid}_{session}_{index}_{lineage}a{attempt}"


@dataclass(frozen=True, slots=True, order=True)
class TrajectoryKey:
    """Names one trajectory; spelled `{uid}_{session}_{index}_{lineage}a{attempt}`.

    Lineage and attempt make a key one that is never used twice: whoever generates the session
    again does so under a new lease, which has another attempt or another lineage.
    """

    uid: str
    """The prompt group; no underscore."""
    session: int
    """Which of the group's n sessions, from 0."""
    index: int
    """Which trajectory of the session, from 0; agent loops have several."""
    lineage: str
    """The time line of the lease."""
    attempt: int
    """The fencing token of the lease."""

    def __str__(self) -> str:
        return spell(self.uid, self.session, self.index, self.lineage, self.attempt)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a key.

        Every key has one spelling: `str(parse(text)) == text`.

        Raises:
            ValueError: `text` is not a key.

        """
        found = _SPELLING.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is not {{uid}}_{{session}}_{{index}}_{{lineage}}a{{attempt}}"
            )
        return cls(
            uid=found["uid"],
            session=int(found["session"]),
            index=int(found["index"]),
            lineage=found["lineage"],
            attempt=int(found["attempt"]),
        )
