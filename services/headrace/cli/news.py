"""What is said once when it happens: a resume that came to its end, a snapshot that failed.

Knows the view only.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.cli.view import View
from headrace.client.resumes import is_open, resume_in_words
from headrace.v1 import resume_pb2


class News:
    """Says what is new in a view.

    Args:
        say: Takes a line for people.
        known_resume: A resume of before, which is no news.

    Attributes:
        resumed: The resumes that were said, oldest first.

    """

    def __init__(self, say: Callable[[str], None], *, known_resume: str = "") -> None:
        self.resumed: list[resume_pb2.ResumeState] = []
        self._say = say
        self._known_resume = known_resume
        self._failure = ""

    def tell(self, view: View) -> None:
        """Say what has happened since the last call."""
        if view.replay is not None and view.replay.HasField("resume"):
            self._tell_resume(view.replay.resume)
        failure = view.snapshot_error
        if failure and failure != self._failure:
            step = view.saved_step
            before = f"that of step {step} stays the newest" if step else "there is none yet"
            self._say(f"warning: no checkpoint was made: {failure}; {before}")
        self._failure = failure

    def _tell_resume(self, resume: resume_pb2.ResumeState) -> None:
        if is_open(resume) and resume.resume_id != self._known_resume:
            self._known_resume = resume.resume_id
            self.resumed.append(resume)
            self._say(resume_in_words(resume))
