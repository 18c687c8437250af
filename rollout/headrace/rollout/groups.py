"""One leased group's life: generate what is missing, score, deliver, and how it ended.

    generating ──► scoring ──► delivering ──► DONE      all n sessions are recorded
         │            │            │
         ├────────────┴────────────┴────────► LOST      the lease is somebody else's
         ├──────────────────────────────────► RETURNED  handed back
         └──────────────────────────────────► FAILED    an error; what went well is recorded

Sessions go through the stages in the batches that the engine finishes them in. An error of the
engine or of the reward is never a reward of zero: the session stays missing. What an engine was
lost with is handed back: the prompt is not to blame. Knows nothing of the wire.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.rollout.delivery import DeliveryError, Made
from headrace.rollout.engines.base import Engine, EngineLostError, Response, Sample, SampleRequest
from headrace.rollout.rewards.base import RewardError
from headrace.rollout.rewards.functions import Score, Scoring
from headrace.rpc.calls import Stopped
from headrace.trajectory.key import TrajectoryKey
from headrace.v1 import prompt_pb2, replay_pb2, trajectory_pb2

_Result = TypeVar("_Result")

SCHEMA_VERSION = 1
"""Of the trajectories written here."""


class Outcome(enum.Enum):
    """How a group's life at this worker ended."""

    DONE = "done"
    LOST = "lost"
    RETURNED = "returned"
    FAILED = "failed"


@dataclass(frozen=True)
class Tools:
    """What a group needs to get done."""

    engine: Engine
    score: Callable[[Sequence[Scoring]], Awaitable[list[Score | RewardError]]]
    deliver: Callable[
        [replay_pb2.LeaseRef, Sequence[Made]], Awaitable[replay_pb2.LeaseStatus.ValueType]
    ]
    decode: Callable[[list[int]], str]
    """Response tokens to text, special tokens left out."""
    now: Callable[[], float]
    """Seconds of a monotonic clock."""
    max_generation_s: float
    """From the request to the engine on, times left out in which it begins nothing."""


@dataclass(eq=False)
class GroupLife:
    """Runs once."""

    lease: prompt_pb2.Lease
    weights: prompt_pb2.WeightsId
    """What the lease was asked for with."""
    tools: Tools
    errors: list[str] = field(default_factory=list)
    """One line each."""
    generated_token_count: int = 0
    """Tokens made here of the sessions that the engine finished."""
    recorded_token_count: int = 0
    """Those of the sessions that the ledger has."""
    recorded_session_count: int = 0
    _under_way: dict[asyncio.Future[Sample], SampleRequest] = field(default_factory=dict)
    """Sessions that are generated or were given up, not those that are done."""
    _begun_with: dict[int, int] = field(default_factory=dict)
    """By session: tokens that came with the lease."""
    _kept: dict[int, int] = field(default_factory=dict)
    """By session: tokens that the ledger knows of."""
    _reported: dict[int, int] = field(default_factory=dict)
    """By session: tokens that it was told of."""
    _handed_back: bool = False
    _lost: bool = False
    _done: bool = False
    _revocable: set[asyncio.Future[Any]] = field(default_factory=set)
    """Generation and scoring under way."""
    _delivering: set[asyncio.Future[Any]] = field(default_factory=set)

    @property
    def ref(self) -> replay_pb2.LeaseRef:
        """The lease's name."""
        return replay_pb2.LeaseRef(uid=self.lease.uid, attempt=self.lease.attempt)

    @property
    def continued_token_count(self) -> int:
        """Tokens that came with the lease."""
        return sum(self._begun_with.values())

    @property
    def kept_token_count(self) -> int:
        """Tokens made here, of sessions that are not done, that another worker goes on behind."""
        if self.errors:  # The ledger lets go of what fails.
            return 0
        sessions = (request.session for request in self._under_way.values())
        return sum(self._kept[session] - self._begun_with[session] for session in sessions)

    @property
    def unreported_token_count(self) -> int:
        """Tokens that the session with the most of them has grown by since it was reported.

        One of which the ledger did not keep all waits until it is asked for again.
        """
        return max(
            (
                len(request.response.token_ids) - self._reported[request.session]
                for request in self._under_way.values()
                if self._kept[request.session] == self._reported[request.session]
            ),
            default=0,
        )

    def news(self, *, most: int, resend: bool) -> list[prompt_pb2.Draft]:
        """Give what the ledger does not know of sessions under way, and count it as reported.

        The last token is held back: it may be the stop token, of a response that an engine is about
        to be done with, and behind that nobody may go on.

        Args:
            most: Tokens.
            resend: Whether what it did not keep is given again.

        """
        found = []
        for future, request in self._under_way.items():
            session, response = request.session, request.response
            begin, end = self._kept[session], len(response.token_ids) - 1
            is_over = future.done() and not future.cancelled()
            if is_over or begin >= end or (begin < self._reported[session] and not resend):
                continue
            end = min(end, begin + most)
            most -= end - begin
            self._reported[session] = end
            found.append(response.stretch(session, begin, end))
        return found

    def note_kept(self, session: int, count: int) -> None:
        """Take how many of a session's tokens the ledger knows of."""
        self._kept[session] = count

    @property
    def is_revoked(self) -> bool:
        """Whether nothing more is generated."""
        return self._handed_back or self._lost

    def hand_back(self) -> None:
        """Stop generating and scoring; what is being delivered goes on."""
        self._handed_back = True
        for work in list(self._revocable):
            work.cancel()

    def lose(self) -> None:
        """Drop all work: the lease is not ours any more."""
        self._lost = True
        for work in [*self._revocable, *self._delivering]:
            work.cancel()

    async def run(self) -> Outcome:
        """Live. Errors are collected, not raised."""
        if not self.is_revoked:
            async with asyncio.TaskGroup() as finishing:
                await self._generate(finishing)
        if self._lost:
            return Outcome.LOST
        if self._done:
            return Outcome.DONE
        if self.errors:
            return Outcome.FAILED
        # Also where the ledger wants sessions that this lease did not list.
        return Outcome.RETURNED

    async def _generate(self, finishing: asyncio.TaskGroup) -> None:
        """Have the missing sessions generated; start to finish them as they come."""
        requests = [self._request(session) for session in self.lease.missing_sessions]
        waiting = dict(zip(self.tools.engine.generate(requests), requests, strict=True))
        self._under_way = dict(waiting)
        self._revocable.update(waiting)
        deadline = self._clock() + self.tools.max_generation_s
        try:
            while waiting:
                left_s = max(0.0, deadline - self._clock())
                done, _ = await asyncio.wait(
                    waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and self._clock() < deadline:
                    continue
                if not done:
                    sessions = sorted(request.session for request in waiting.values())
                    self.errors.append(
                        f"sessions {sessions} not generated within "
                        f"{self.tools.max_generation_s:g} s"
                    )
                    return
                ended = [(waiting.pop(future), future) for future in done]
                self._revocable.difference_update(done)
                samples = self._samples(ended)
                if samples:
                    finishing.create_task(self._finish(samples))
        finally:
            for future in waiting:
                future.cancel()
            self._revocable.difference_update(waiting)

    def _clock(self) -> float:
        """Return a time that stands still while the engine begins nothing, as it takes weights."""
        return self.tools.now() - self.tools.engine.status().held_back_s

    def _request(self, session: int) -> SampleRequest:
        lease, response = self.lease, Response()
        for draft in lease.drafts:
            if draft.session == session:
                response = Response.of(draft)
        count = len(response.token_ids)
        self._begun_with[session] = self._kept[session] = self._reported[session] = count
        return SampleRequest(
            uid=lease.uid,
            session=session,
            attempt=lease.attempt,
            prompt_token_ids=lease.payload.token_ids,
            temperature=lease.sampling.temperature,
            max_response_length=lease.sampling.max_response_length,
            response=response,
        )

    def _samples(
        self, ended: Sequence[tuple[SampleRequest, asyncio.Future[Sample]]]
    ) -> list[tuple[int, Sample]]:
        """Sort out what failed; return the rest by session."""
        samples = []
        for request, future in ended:
            if future.cancelled():  # handed back, lost, or the engine is closing
                continue
            error = future.exception()
            if error is None:
                del self._under_way[future]
            if isinstance(error, EngineLostError):
                continue
            if error is not None:
                self.errors.append(f"session {request.session}: {one_line(error)}")
                continue
            begun_with = self._begun_with[request.session]
            self.generated_token_count += len(request.response.token_ids) - begun_with
            # The ledger knows the weights that made what it gave.
            made_here = [s for s in request.response.weight_spans if s.begin >= begun_with]
            if not all(map(self._is_of_the_line, made_here)):
                self.hand_back()
                continue
            samples.append((request.session, future.result()))
        return sorted(samples, key=lambda each: each[0])

    def _is_of_the_line(self, span: trajectory_pb2.WeightSpan) -> bool:
        """Whether the ledger may know the weights that the engine had.

        A lease may be granted on a new time line by a call that was made before, while the engine
        has taken later weights of the line that was left.
        """
        if (span.lineage, span.version) == (self.weights.lineage, self.weights.version):
            return True
        return span.lineage == self.lease.lineage

    async def _finish(self, samples: Sequence[tuple[int, Sample]]) -> None:
        """Score and deliver."""
        if self.is_revoked:
            return
        scorings = [self._scoring(sample) for _, sample in samples]
        scores = await _revocably(self.tools.score(scorings), self._revocable)
        if scores is None:
            return
        made = []
        for (session, sample), score in zip(samples, scores, strict=True):
            if isinstance(score, RewardError):
                self.errors.append(f"session {session}: {score}")
            else:
                made.append(self._made(session, sample, score))
        if made and not self._lost:
            await self._deliver(made)

    async def _deliver(self, made: Sequence[Made]) -> None:
        try:
            status = await _revocably(self.tools.deliver(self.ref, made), self._delivering)
        except DeliveryError as error:
            self.errors.append(str(error))
            return
        except Stopped:  # the worker goes home and nobody answers
            return
        if status is None:
            return
        if status == replay_pb2.LEASE_STATUS_LOST:
            self.lose()
            return
        self._done = self._done or status == replay_pb2.LEASE_STATUS_DONE
        self.recorded_session_count += len(made)
        self.recorded_token_count += sum(
            each.record.token_count - self._begun_with[each.record.session] for each in made
        )

    def _scoring(self, sample: Sample) -> Scoring:
        payload = self.lease.payload
        stopped = sample.finish_reason == trajectory_pb2.FINISH_REASON_STOP
        return Scoring(
            prompt=payload.text,
            response=self.tools.decode(sample.response.token_ids),
            answer=payload.answer,
            metadata_json=payload.metadata_json,
            finish_reason="stop" if stopped else "length",
            data_source=payload.data_source,
        )

    def _made(self, session: int, sample: Sample, score: Score) -> Made:
        lease, response = self.lease, sample.response
        count = len(response.token_ids)
        key = TrajectoryKey(lease.uid, session, 0, lease.lineage, lease.attempt)
        trajectory = trajectory_pb2.Trajectory(
            schema_version=SCHEMA_VERSION,
            key=str(key),
            prompt_token_ids=lease.payload.token_ids,
            response_token_ids=response.token_ids,
            logprobs=response.logprobs,
            loss_mask=[True] * count,
            reward=score.reward,
            reward_parts=score.parts,
            weight_spans=response.weight_spans,
            finish_reason=sample.finish_reason,
            temperature=lease.sampling.temperature,
        )
        versions = [span.version for span in response.weight_spans]
        record = prompt_pb2.SessionRecord(
            session=session,
            lineage=lease.lineage,
            attempt=lease.attempt,
            trajectory_count=1,
            size_bytes=trajectory.ByteSize(),
            token_count=count,
            reward=score.reward,
            min_version=min(versions),
            max_version=max(versions),
        )
        return Made(trajectory, record)


async def _revocably(
    work: Awaitable[_Result], revocable: set[asyncio.Future[Any]]
) -> _Result | None:
    """Return what `work` returns, or None once somebody cancelled it by the set."""
    task = asyncio.ensure_future(work)
    revocable.add(task)
    try:
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()
    finally:
        task.cancel()
        revocable.discard(task)


def one_line(error: BaseException) -> str:
    """Say what an error is, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
