"""What the durable events say: an outsider's own fold of them, written from the protos' comments.

Shares no code with the ledger. Each event is checked against the state before it; what is not
allowed there is told, by the invariant of docs/faults.md that it breaks:

    I1  every prompt is in exactly one place        I8   finished groups have all their sessions
    I2  a prompt is fed and trained on once         I9   a cut is of one step, while nothing is torn
    I3  steps in order, of one time line            I11  a run ends for a reason
    I4  nothing is skipped at the end               I12  the feed's and the batches' order
    I5  the window, and nothing while resuming      I13  failures are counted, not guessed
    I6  leases, attempts and incarnations           I14  weights are of the living time line
    I7  no group past the threshold
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.v1 import journal_pb2
from headrace.verify.feed_events import FeedEvents
from headrace.verify.lease_events import LeaseEvents
from headrace.verify.resume_events import ResumeEvents
from headrace.verify.step_events import StepEvents


class Model(FeedEvents, LeaseEvents, StepEvents, ResumeEvents):
    """Follows a run, and tells what its events must not be."""

    def apply(self, record: journal_pb2.JournalRecord) -> None:
        """Take in a durable event."""
        self.check(record.position == self.position + 1, "I10: a hole in the journal")
        self.position = record.position
        name = record.WhichOneof("event")
        assert name
        handler = _HANDLERS.get(name)
        if handler is None:
            self.say(f"an event of an unknown kind, {name} (position {self.position})")
            return
        handler(self, getattr(record, name))


_HANDLERS: Mapping[str, Callable[[Model, Any], None]] = {
    name.removeprefix("_on_"): getattr(Model, name)
    for name in dir(Model)
    if name.startswith("_on_")
}
