"""Which resume there is: one, for the newest trainer that has asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from headrace.checkpoint.changes import Changes
from headrace.checkpoint.peers import Peers
from headrace.checkpoint.resume import PHASE_OPEN, Resume
from headrace.errors import NotReadyError, ResumeLostError, TrainerFencedError
from headrace.v1 import replay_pb2, resume_pb2

NewResume = Callable[[int, Mapping[str, str]], Resume]
"""Makes the resume of a trainer, from its incarnation and facts."""
AT_ONCE: Final = resume_pb2.RESUME_PHASE_UNSPECIFIED


class Resumes:
    """Drives one resume at a time.

    Args:
        new: Makes it.
        peers: The replay buffer knows which trainer is the newest.
        changes: Woken when it has come further.

    """

    def __init__(self, new: NewResume, peers: Peers, *, changes: Changes) -> None:
        self._new = new
        self._peers = peers
        self._changes = changes
        self._turn = asyncio.Lock()
        self._current: Resume | None = None
        self._work: asyncio.Task[None] | None = None
        self._before: resume_pb2.ResumeState | None = None

    @property
    def state(self) -> resume_pb2.ResumeState | None:
        """The resume under way, or the last one that is known."""
        current = self._current
        return current.state if current is not None and current.state is not None else self._before

    def remember(self, status: replay_pb2.GetReplayStatusResponse) -> None:
        """Learn of the last resume from the ledger."""
        if status.resume.phase:
            self._before = status.resume

    async def resume(
        self,
        incarnation: int,
        facts: Mapping[str, str],
        until: resume_pb2.ResumePhase.ValueType,
        wait_s: float,
    ) -> Resume:
        """Begin or go on with the resume of a trainer; wait until it is in a phase.

        Raises:
            WireError: it is refused, a newer trainer has come, or the storage cannot be reached.

        """
        resume, work = await self._of(incarnation, facts)

        def look() -> Resume | None:
            there = resume.has_nothing_to_do or resume.phase >= until
            return resume if there or work.done() else None

        await self._changes.until(look, wait_s)
        if work.done():
            self._raise_for(resume, work)
        return resume

    async def close(self) -> None:
        """End the work here, and leave the resume to the next coordinator."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    async def _of(
        self, incarnation: int, facts: Mapping[str, str]
    ) -> tuple[Resume, asyncio.Task[None]]:
        async with self._turn:
            status = await self._peers.status()
            if incarnation != status.trainer_incarnation:
                raise TrainerFencedError(
                    f"trainer {incarnation} was succeeded by {status.trainer_incarnation}"
                )
            current, work = self._current, self._work
            if current is not None and work is not None:
                if current.incarnation == incarnation and not _is_over(current, work, status):
                    return current, work
                self._before = self.state
                await self.close()
            resume = self._new(incarnation, facts)
            work = asyncio.create_task(resume.drive())
            work.add_done_callback(lambda _: self._changes.wake())
            self._current, self._work = resume, work
            return resume, work

    def _raise_for(self, resume: Resume, work: asyncio.Task[None]) -> None:
        if work.cancelled():
            raise TrainerFencedError(f"trainer {resume.incarnation} was succeeded by another")
        error = work.exception()
        if error is None:
            assert resume.has_nothing_to_do or resume.phase == PHASE_OPEN
            return
        if isinstance(error, ResumeLostError):
            # Who asks again is told what became of it: a newer trainer, or another resume.
            raise NotReadyError(str(error)) from error
        if isinstance(error, OSError):
            raise NotReadyError(f"the storage cannot be used: {error}") from error
        raise error


def _is_over(
    resume: Resume, work: asyncio.Task[None], status: replay_pb2.GetReplayStatusResponse
) -> bool:
    """Whether a resume has failed, or is not what the ledger knows: its journal may be lost."""
    if not work.done():
        return False
    if work.cancelled() or work.exception() is not None or resume.state is None:
        return True
    return resume.state.resume_id != status.resume.resume_id
