"""Named points at which a process can be made to fail, to test what becomes of a run then.

They are off unless the environment names one:

    HEADRACE_FAIL=NAME[:NTH[:ACTION]][,…]

The NTH time (from 1; the default) that the point NAME is reached, the process does ACTION: `kill`
(SIGKILL to itself, the default), `raise` (an OSError, as a full disk gives), or `stop` (SIGSTOP).
Knows nothing of what happens at the points.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Mapping
from typing import Final

from headrace.errors import UsageError

VARIABLE: Final = "HEADRACE_FAIL"

FAILPOINTS: Final[Mapping[str, str]] = {
    # A snapshot, in the order in which its points are reached.
    "snapshot.begun": "checkpoint",  # deletions are held back, the ledger is not cut yet
    "snapshot.cut": "checkpoint",  # the ledger is cut, nothing is written
    "ledger_part.written": "replay",  # ledger.pb lies there, not reported
    "store_part.saved": "store",  # TransferQueue has written, nothing is copied to the storage
    "store_part.written": "store",  # all files lie there, not reported
    "trainer_part.copied": "trainer",  # its state is copied, nothing is written
    "trainer_part.written": "trainer",  # its files lie there, not reported
    "snapshot.parts_complete": "checkpoint",  # all parts are reported, there is no manifest
    "manifest.written": "checkpoint",  # manifest.json.tmp is synced, not renamed
    "manifest.renamed": "checkpoint",  # manifest.json is there, the folder is not synced
    "latest.written": "checkpoint",  # the new pointer is synced, not renamed
    "latest.renamed": "checkpoint",  # the pointer names the new checkpoint
    "snapshot.committed": "checkpoint",  # the ledger knows, nothing is removed
    "retention.removed_one": "checkpoint",  # one of the checkpoints to be removed is gone
    # A resume.
    "resume.planned": "checkpoint",  # the plan is made, nothing has begun
    "resume.begun": "checkpoint",  # the ledger knows of the resume
    "store.restoring": "store",  # all files are checked, the old rows are still in place
    "store.restored": "store",  # all rows are there, not answered
    "resume.store_done": "checkpoint",  # the rows are there
    "resume.rolling_back": "checkpoint",  # the ledger is not asked to go back yet
    "ledger.rolled_back": "replay",  # the new time line is in the journal, not answered
    "resume.ledger_done": "checkpoint",  # the new time line is open, nothing is moved aside
    "resume.moved_aside": "checkpoint",  # what the resume left behind is moved aside
    "trainer.loaded": "trainer",  # its state is loaded, nothing is published
    "resume.weights_done": "checkpoint",  # a worker has confirmed the weights
    "resume.reissued": "checkpoint",  # rows are checked, WARMUP has not begun
    "resume.warmed_up": "checkpoint",  # WARMUP has begun, the window may not be full yet
    "resume.open": "checkpoint",  # OPEN is journaled, the trainer does not know
    # A step.
    "trainer.sampled": "trainer",  # a batch is sampled, not read
    "trainer.updated": "trainer",  # the update is made, the step not committed
    "trainer.committed": "trainer",  # the step is committed, its weights are not published
    "trainer.published": "trainer",  # its weights are published, trajectories not deleted
}
"""Every point, in the order in which a snapshot, a resume and a step come to them, with the process
that reaches it."""

_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Fail here if the environment says so.

    Raises:
        OSError: `raise` was asked for.
        UsageError: the environment names a point or an action that there is not.

    """
    assert name in FAILPOINTS, name
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    _reached[name] += 1
    for entry in wanted.split(","):
        point, nth, action = _parsed(entry)
        if point == name and nth == _reached[name]:
            _fail(name, action)


def _parsed(entry: str) -> tuple[str, int, str]:
    point, _, rest = entry.strip().partition(":")
    nth, _, action = rest.partition(":")
    known = action in ("", "kill", "raise", "stop") and (nth or "1").isdecimal()
    if point not in FAILPOINTS or not known:
        raise UsageError(
            f"{VARIABLE}: {entry!r} is not NAME[:NTH[:kill|raise|stop]] with one of the names of "
            "headrace.failpoints"
        )
    return point, int(nth or 1), action or "kill"


def _fail(name: str, action: str) -> None:
    # Not through the log: nothing of this process may be needed for it.
    os.write(2, f"failpoint {name}\n".encode())
    if action == "raise":
        raise OSError(errno.ENOSPC, f"failpoint {name}")
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)
