"""The ledger of a running replay buffer, asked over gRPC. Synchronous, for notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import grpc

from headrace.client.asking import ask, is_outage, refusal
from headrace.client.queries import Queries
from headrace.rpc.channel import open_sync_channel
from headrace.rpc.security import Security
from headrace.v1 import prompt_pb2, replay_pb2_grpc
from headrace.v1 import replay_pb2 as pb

Response = TypeVar("Response")

STREAM_S: Final = 3600.0
"""After this long a stream of events is opened again."""
PAUSE_S: Final = 0.2
"""Pause before a stream that broke is opened again."""


def ask_replay(target: str, security: Security | None = None) -> Queries:
    """Ask the replay buffer at an address. Connects with the first question."""
    return Queries(WireLedger(target, security))


class WireLedger:
    """The ledger behind an address.

    Args:
        target: `host:port`.
        security: What calls carry.
        patience_s: How long the replay buffer may be away before a call gives up. It listens
            where it did when it is started again.

    """

    def __init__(
        self, target: str, security: Security | None = None, *, patience_s: float = 0.0
    ) -> None:
        self.target = target
        self._who = f"{target}, the replay buffer,"
        self._patience_s = patience_s
        self._stub = replay_pb2_grpc.ReplayBufferServiceStub(open_sync_channel(target, security))

    def status(self) -> pb.GetReplayStatusResponse:
        """Say where the run is."""
        return self._ask(self._stub.GetReplayStatus, pb.GetReplayStatusRequest())

    def locate(self, uid: str) -> pb.LocatePromptResponse:
        """Give one prompt's place and history."""
        return self._ask(self._stub.LocatePrompt, pb.LocatePromptRequest(uid=uid))

    def audit(self) -> pb.AuditResponse:
        """Check everything that must hold."""
        return self._ask(self._stub.Audit, pb.AuditRequest())

    def list_prompts(self, request: pb.ListPromptsRequest) -> pb.ListPromptsResponse:
        """List a page of prompts."""
        return self._ask(self._stub.ListPrompts, request)

    def pause(self) -> None:
        """Stop feeding and leasing."""
        self._ask(self._stub.PauseRun, pb.PauseRunRequest())

    def resume(self) -> None:
        """Go on."""
        self._ask(self._stub.ResumeRun, pb.ResumeRunRequest())

    def drain_worker(self, worker_id: str) -> int:
        """Have a worker told to go home; give the groups that it holds.

        Raises:
            WorkerUnknownError: no such worker was heard of lately.

        """
        request = pb.DrainWorkerRequest(worker_id=worker_id)
        return self._ask(self._stub.DrainWorker, request).lease_count

    def drop_stale(self, step: int) -> list[str]:
        """Drop what is too old for a step; name it."""
        return list(self._ask(self._stub.DropStale, pb.DropStaleRequest(step=step)).uids)

    def close_circuit(self) -> bool:
        """Close an open circuit; say whether it was open."""
        return self._ask(self._stub.CloseCircuit, pb.CloseCircuitRequest()).was_open

    def drop(self, uids: Sequence[str]) -> list[str]:
        """Drop prompts; name those that were not dropped before."""
        return list(self._ask(self._stub.DropPrompts, pb.DropPromptsRequest(uids=uids)).uids)

    def events(
        self, after: int = 0, *, until: int | None = None, for_s: float | None = None
    ) -> Iterator[prompt_pb2.LedgerEvent]:
        """Give events, across restarts of the replay buffer, each once. See `Ledger`."""
        ends = time.monotonic() + for_s if for_s is not None else None
        while True:
            now = self.status()  # waits for the replay buffer as long as patience lasts
            last = now.position if now.ended else until
            if last is not None and after >= last:
                return
            timeout_s = STREAM_S if ends is None else max(0.0, ends - time.monotonic())
            try:
                for event in self._stream(after, timeout_s):
                    after = event.position
                    yield event
                    if event.name == "run_ended" or (last is not None and after >= last):
                        break
            except grpc.RpcError as failed:
                if ends is not None and time.monotonic() >= ends:
                    return
                if not is_outage(failed):
                    raise refusal(failed, self._who) from None
                time.sleep(PAUSE_S)

    def _stream(self, after: int, timeout_s: float) -> Iterator[prompt_pb2.LedgerEvent]:
        call = self._stub.WatchEvents(
            pb.WatchEventsRequest(after_position=after), timeout=timeout_s
        )
        try:
            for answer in call:
                yield from answer.events
        finally:
            call.cancel()

    def _ask(self, method: Callable[..., Response], request: object) -> Response:
        return ask(method, request, who=self._who, patience_s=self._patience_s)
