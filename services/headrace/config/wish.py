"""What `resume` asks for beyond going on: it is done once, and not at each restart.

    {wish}-{id}    the resume that does it
    {wish}+{id}    one that came after it was done

The wish is named in the resume's id, and so in the journal. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final

from headrace.config.checkpoint import ResumeConfig
from headrace.v1.resume_pb2 import ResumeState

AUTO: Final = "auto"
"""Nothing is asked for but to go on."""


def wish_of(resume: ResumeConfig) -> str:
    """Name what the configuration asks for."""
    if resume.mode == "auto" or (resume.mode == "disable" and "new_lineage" not in resume.allow):
        return AUTO
    text = f"{resume.mode} {resume.path} {resume.salvage}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_done_by(wish: str, resume_id: str) -> bool:
    """Whether this is a resume that does what is asked for."""
    return wish != AUTO and resume_id.startswith(f"{wish}-")


def is_fulfilled(wish: str, last: ResumeState) -> bool:
    """Whether what is asked for was done: by the last resume, or before that."""
    if wish == AUTO or last.resume_id.startswith(f"{wish}+"):
        return True
    return is_done_by(wish, last.resume_id) and bool(last.lineage)


def name_resume(wish: str, last: ResumeState, new_id: str) -> str:
    """Name the next resume.

    Args:
        wish: What is asked for.
        last: The resume before.
        new_id: An id never used before.

    """
    is_after = wish != AUTO and is_fulfilled(wish, last)
    return f"{wish}{'+' if is_after else '-'}{new_id}"
