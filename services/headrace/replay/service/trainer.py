"""The trainer's calls: register, publish, sample, return, commit."""

from __future__ import annotations

from headrace.replay import sampling
from headrace.replay.ending import at_end, ends_soon
from headrace.replay.group import Group
from headrace.replay.rows import refs_of
from headrace.replay.service.base import Calls, Context, checked_wait
from headrace.replay.staleness import span
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb


class TrainerCalls(Calls):
    """RegisterTrainer, PublishWeights, SampleBatch, ReturnGroups, CommitStep, EndRun."""

    async def RegisterTrainer(
        self, request: pb.RegisterTrainerRequest, context: Context
    ) -> pb.RegisterTrainerResponse:
        def turn() -> pb.RegisterTrainerResponse:
            sampling.register_trainer(self._ledger, request.trainer_id)
            self._buffer.peers.hear("trainer", request.address)
            return pb.RegisterTrainerResponse(
                incarnation=self._ledger.trainer_incarnation,
                lineage=self._ledger.lineage,
                committed_step=self._ledger.committed_step,
                total_steps=self._ledger.feed.total_steps,
                latest_weights=self._ledger.latest_weights,
                fresh=self._ledger.is_fresh,
            )

        return await self._turn(turn)

    async def PublishWeights(
        self, request: pb.PublishWeightsRequest, context: Context
    ) -> pb.PublishWeightsResponse:
        def turn() -> pb.PublishWeightsResponse:
            sampling.check_trainer(self._ledger, request.incarnation)
            oldest = sampling.publish_weights(self._ledger, request.weights)
            return pb.PublishWeightsResponse(oldest_needed_version=oldest)

        return await self._turn(turn)

    async def SampleBatch(
        self, request: pb.SampleBatchRequest, context: Context
    ) -> pb.SampleBatchResponse:
        blocked_by = ""

        def look() -> pb.SampleBatchResponse | None:
            nonlocal blocked_by
            sampling.check_trainer(self._ledger, request.incarnation)
            self._buffer.peers.hear("trainer", request.address)
            sample = sampling.sample(
                self._ledger,
                self._settings,
                step=request.step,
                part=request.part,
                part_count=request.part_count,
            )
            blocked_by = sample.blocked_by
            if sample.status == pb.SAMPLE_STATUS_WAITING:
                return None
            return pb.SampleBatchResponse(
                status=sample.status,
                groups=[self._sampled(group, request.step) for group in sample.groups],
            )

        answer = await self._buffer.until(look, checked_wait(request.wait_s))
        await self._buffer.settled()
        return answer or pb.SampleBatchResponse(
            status=pb.SAMPLE_STATUS_WAITING, blocked_by=blocked_by
        )

    def _sampled(self, group: Group, step: int) -> prompt_pb2.SampledGroup:
        records = [group.sessions[session] for session in sorted(group.sessions)]
        return prompt_pb2.SampledGroup(
            uid=group.uid,
            ordinal=group.ordinal,
            trajectories=[ref for record in records for ref in refs_of(group.uid, record)],
            span=span(group.base, step),
            min_version=min(record.min_version for record in records),
            max_version=max(record.max_version for record in records),
            size_bytes=group.held_bytes,
            attempt=group.attempt,
        )

    async def ReturnGroups(
        self, request: pb.ReturnGroupsRequest, context: Context
    ) -> pb.ReturnGroupsResponse:
        def turn() -> pb.ReturnGroupsResponse:
            sampling.check_trainer(self._ledger, request.incarnation)
            count = sampling.return_groups(
                self._ledger,
                step=request.step,
                part=request.part,
                uids=request.uids,
                attempts=request.attempts,
                error=request.error,
            )
            return pb.ReturnGroupsResponse(returned_count=count)

        return await self._turn(turn)

    async def CommitStep(
        self, request: pb.CommitStepRequest, context: Context
    ) -> pb.CommitStepResponse:
        def turn() -> pb.CommitStepResponse:
            sampling.check_trainer(self._ledger, request.incarnation)
            sampling.commit_step(self._ledger, self._settings, request.step)
            memo = self._ledger.last_commit
            return pb.CommitStepResponse(
                trained_count=memo.trained,
                stale_count=memo.stale,
                ended=bool(self._ledger.ended_by) or bool(at_end(self._ledger)),
                ends_soon=ends_soon(self._ledger),
            )

        return await self._turn(turn)

    async def EndRun(self, request: pb.EndRunRequest, context: Context) -> pb.EndRunResponse:
        def turn() -> pb.EndRunResponse:
            sampling.check_trainer(self._ledger, request.incarnation)
            return pb.EndRunResponse(surplus_count=sampling.finish(self._ledger))

        return await self._turn(turn)
