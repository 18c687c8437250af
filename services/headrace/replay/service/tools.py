"""The tools' calls: look, and the few levers a user has."""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.errors import InvalidFieldError
from headrace.replay import dropping, feeding, history, report
from headrace.replay.service.base import Calls, Context
from headrace.v1 import journal_pb2
from headrace.v1 import replay_pb2 as pb


class ToolCalls(Calls):
    """DropStale … WatchEvents."""

    async def DropStale(
        self, request: pb.DropStaleRequest, context: Context
    ) -> pb.DropStaleResponse:
        step = request.step or self._ledger.current_step
        dropped = await self._turn(lambda: dropping.drop_stale(self._ledger, self._settings, step))
        return pb.DropStaleResponse(uids=dropped)

    async def FeedPrompts(
        self, request: pb.FeedPromptsRequest, context: Context
    ) -> pb.FeedPromptsResponse:
        outstanding = await self._turn(
            lambda: feeding.add_credit(
                self._ledger, count=request.count, request_id=request.request_id, kind="feed"
            )
        )
        return pb.FeedPromptsResponse(outstanding_count=outstanding)

    async def Refill(self, request: pb.RefillRequest, context: Context) -> pb.RefillResponse:
        outstanding = await self._turn(
            lambda: feeding.add_credit(
                self._ledger, count=request.count, request_id=request.request_id, kind="refill"
            )
        )
        return pb.RefillResponse(outstanding_count=outstanding)

    async def PauseRun(self, request: pb.PauseRunRequest, context: Context) -> pb.PauseRunResponse:
        def turn() -> pb.PauseRunResponse:
            was_paused = self._ledger.paused
            if not was_paused:
                self._ledger.emit(journal_pb2.RunPaused())
            return pb.PauseRunResponse(was_paused=was_paused)

        return await self._turn(turn)

    async def ResumeRun(
        self, request: pb.ResumeRunRequest, context: Context
    ) -> pb.ResumeRunResponse:
        def turn() -> pb.ResumeRunResponse:
            was_paused = self._ledger.paused
            if was_paused:
                self._ledger.emit(journal_pb2.RunResumed())
            return pb.ResumeRunResponse(was_paused=was_paused)

        return await self._turn(turn)

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: Context
    ) -> pb.DrainWorkerResponse:
        self._buffer.workers.send_home(request.worker_id)
        return pb.DrainWorkerResponse(lease_count=self._ledger.groups.leases[request.worker_id])

    async def CloseCircuit(
        self, request: pb.CloseCircuitRequest, context: Context
    ) -> pb.CloseCircuitResponse:
        def turn() -> pb.CloseCircuitResponse:
            was_open = self._ledger.circuit.is_open
            if was_open:
                self._ledger.emit(journal_pb2.CircuitClosed(by="rpc"))
            return pb.CloseCircuitResponse(was_open=was_open)

        return await self._turn(turn)

    async def DropPrompts(
        self, request: pb.DropPromptsRequest, context: Context
    ) -> pb.DropPromptsResponse:
        dropped = await self._turn(lambda: dropping.drop_named(self._ledger, request.uids))
        return pb.DropPromptsResponse(uids=dropped)

    async def LocatePrompt(
        self, request: pb.LocatePromptRequest, context: Context
    ) -> pb.LocatePromptResponse:
        await self._buffer.settled()
        return await self._history.locate(self._ledger, request.uid)

    async def Audit(self, request: pb.AuditRequest, context: Context) -> pb.AuditResponse:
        answer = report.audited(self._ledger, self._settings)
        await self._buffer.settled()
        return answer

    async def ListPrompts(
        self, request: pb.ListPromptsRequest, context: Context
    ) -> pb.ListPromptsResponse:
        answer = history.list_prompts(self._ledger.groups, request)
        await self._buffer.settled()
        return answer

    async def GetReplayStatus(
        self, request: pb.GetReplayStatusRequest, context: Context
    ) -> pb.GetReplayStatusResponse:
        answer = report.status(self._ledger, self._settings, self._buffer.workers)
        answer.process.CopyFrom(self._process_status())
        answer.first_position = self._journal.first_position
        answer.addresses.update(self._buffer.peers.addresses)
        answer.run_dir = self._buffer.peers.run_dir
        await self._buffer.settled()
        return answer

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        oldest = self._journal.first_position - 1
        if request.after_position and not oldest <= request.after_position <= self._ledger.position:
            raise InvalidFieldError(
                "after_position", f"must be 0, or {oldest} to {self._ledger.position}"
            )
        async for message in self._history.watch(self._buffer.durable, request.after_position):
            yield message
