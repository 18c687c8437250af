"""The workers' calls: leases, sessions, weights."""

from __future__ import annotations

from collections.abc import Hashable

from headrace.errors import InvalidFieldError
from headrace.replay import circuit, drafts, leasing
from headrace.replay.group import Group
from headrace.replay.service.base import Calls, Context, checked_wait
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb


def checked_worker(worker_id: str) -> str:
    """Accept a request's `worker_id`.

    Raises:
        InvalidFieldError: it is empty.

    """
    if not worker_id:
        raise InvalidFieldError("worker_id", "is required")
    return worker_id


class WorkerCalls(Calls):
    """LeasePrompts, RenewLeases, CompleteSessions, EndLeases, AwaitWeights."""

    async def LeasePrompts(
        self, request: pb.LeasePromptsRequest, context: Context
    ) -> pb.LeasePromptsResponse:
        worker_id = checked_worker(request.worker_id)
        if not 1 <= request.max_count <= leasing.MAX_LEASES_PER_CALL:
            raise InvalidFieldError("max_count", f"must be 1 to {leasing.MAX_LEASES_PER_CALL}")
        self._buffer.workers.hear(worker_id)
        if self._buffer.workers.goes_home(worker_id):
            return pb.LeasePromptsResponse(go_home=True)
        newest = self._ledger.latest_weights
        blocked_by = ""

        def look() -> pb.LeasePromptsResponse | None:
            nonlocal blocked_by
            if self._ledger.ended_by:
                return pb.LeasePromptsResponse(ended=True)
            leasing.check_weights(self._ledger, request.weights, request.weights_checksum)
            self._confirm(request)
            if self._ledger.is_resuming and self._ledger.latest_weights is not newest:
                # The worker is to come back with those: the resume waits for somebody who has them.
                return pb.LeasePromptsResponse(blocked_by="there are newer weights")
            allowed = self._allowance(request)
            blocked_by = allowed.blocked_by
            leased = leasing.lease(
                self._ledger,
                self._settings,
                worker_id=worker_id,
                weights=request.weights,
                count=min(allowed.count, request.max_count),
            )
            for group in leased:
                self._buffer.deadlines.extend(group)
            return pb.LeasePromptsResponse(leases=map(self._lease, leased)) if leased else None

        def alike() -> Hashable | None:
            if circuit.may_lease(self._ledger, worker_id) is not None:
                return None
            weights = request.weights
            since = (newest.id.lineage, newest.id.version) if newest else None
            return weights.lineage, weights.version, request.weights_checksum, since

        answer = await self._buffer.until(look, checked_wait(request.wait_s), alike)
        if answer is None:
            answer = pb.LeasePromptsResponse(blocked_by=blocked_by)
        if self._ledger.latest_weights:
            answer.latest_weights.CopyFrom(self._ledger.latest_weights)
        await self._buffer.settled()
        return answer

    def _confirm(self, request: pb.LeasePromptsRequest) -> None:
        """Note the weights; a resume may have waited for them."""
        weights = request.weights
        before = self._buffer.workers.confirmed() if self._ledger.is_resuming else None
        self._buffer.workers.confirm(request.worker_id, weights.lineage, weights.version)
        if before is not None and (weights.lineage, weights.version) not in before:
            self._buffer.wake()

    def _allowance(self, request: pb.LeasePromptsRequest) -> leasing.Allowance:
        return leasing.allowance(
            self._ledger,
            self._settings,
            worker_id=request.worker_id,
            version=request.weights.version,
            store_held_bytes=self._buffer.store_held_bytes,
        )

    def _lease(self, group: Group) -> prompt_pb2.Lease:
        return prompt_pb2.Lease(
            uid=group.uid,
            ordinal=group.ordinal,
            attempt=group.attempt,
            lineage=self._ledger.lineage,
            expires_in_s=self._buffer.deadlines.lease_s,
            payload=group.payload,
            missing_sessions=group.missing(self._ledger.n),
            drafts=group.drafts.values(),
            sampling=prompt_pb2.SamplingParams(
                temperature=self._settings.temperature,
                max_response_length=self._settings.max_response_length,
            ),
        )

    async def RenewLeases(
        self, request: pb.RenewLeasesRequest, context: Context
    ) -> pb.RenewLeasesResponse:
        worker_id = checked_worker(request.worker_id)
        self._buffer.workers.hear(worker_id)
        drafts.check(self._ledger, request.progress)

        def turn() -> pb.RenewLeasesResponse:
            statuses = [leasing.status_of(self._ledger, worker_id, ref) for ref in request.leases]
            for ref, status in zip(request.leases, statuses, strict=True):
                if status == leasing.HELD:
                    self._buffer.deadlines.extend(self._ledger.groups[ref.uid])
            kept = drafts.keep(
                self._ledger,
                self._settings,
                [
                    (each, leasing.holder(self._ledger, worker_id, each.lease))
                    for each in request.progress
                ],
                worker_id=worker_id,
            )
            return pb.RenewLeasesResponse(
                statuses=statuses,
                expires_in_s=self._buffer.deadlines.lease_s,
                latest_weights=self._ledger.latest_weights,
                go_home=self._buffer.workers.goes_home(worker_id),
                kept_counts=kept,
            )

        return await self._turn(turn)

    async def CompleteSessions(
        self, request: pb.CompleteSessionsRequest, context: Context
    ) -> pb.CompleteSessionsResponse:
        worker_id = checked_worker(request.worker_id)
        if len(request.sessions) > leasing.MAX_SESSIONS_PER_CALL:
            raise InvalidFieldError("sessions", f"at most {leasing.MAX_SESSIONS_PER_CALL}")
        self._buffer.workers.hear(worker_id)

        def turn() -> pb.CompleteSessionsResponse:
            statuses = leasing.complete_sessions(
                self._ledger,
                self._settings,
                worker_id=worker_id,
                store_incarnation=request.store_incarnation,
                items=request.sessions,
            )
            return pb.CompleteSessionsResponse(statuses=statuses)

        return await self._turn(turn)

    async def EndLeases(
        self, request: pb.EndLeasesRequest, context: Context
    ) -> pb.EndLeasesResponse:
        worker_id = checked_worker(request.worker_id)
        if len(request.leases) > leasing.MAX_SESSIONS_PER_CALL:
            raise InvalidFieldError("leases", f"at most {leasing.MAX_SESSIONS_PER_CALL}")
        self._buffer.workers.hear(worker_id)

        def turn() -> pb.EndLeasesResponse:
            statuses = leasing.end_leases(
                self._ledger,
                self._settings,
                worker_id=worker_id,
                leases=request.leases,
                live_workers=self._buffer.workers.live(),
            )
            return pb.EndLeasesResponse(statuses=statuses)

        return await self._turn(turn)

    async def AwaitWeights(
        self, request: pb.AwaitWeightsRequest, context: Context
    ) -> pb.AwaitWeightsResponse:
        has = request.newer_than if request.HasField("newer_than") else None

        def look() -> pb.AwaitWeightsResponse | None:
            latest = self._ledger.latest_weights
            if self._ledger.ended_by:
                return pb.AwaitWeightsResponse(ended=True)
            if latest is None or (has is not None and latest.id == has):
                return None
            return pb.AwaitWeightsResponse(weights=latest)

        answer = await self._buffer.until(look, checked_wait(request.wait_s))
        await self._buffer.settled()
        return answer or pb.AwaitWeightsResponse()
