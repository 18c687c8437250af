"""The ledger of a running replay buffer, asked over gRPC. Synchronous, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import grpc

from headrace.client.run import Run
from headrace.errors import UsageError
from headrace.rpc.channel import open_sync_channel
from headrace.rpc.status import error_from
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import replay_pb2_grpc

Response = TypeVar("Response")

TIMEOUT_S: Final = 10.0
"""How long an answer may take."""


def connect(target: str) -> Run:
    """Open a run by the address of its replay buffer, `host:port`.

    Connects with the first question.
    """
    return Run(WireLedger(target))


class WireLedger:
    """The ledger behind an address."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._stub = replay_pb2_grpc.ReplayBufferServiceStub(open_sync_channel(target))

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

    def _ask(self, method: Callable[..., Response], request: object) -> Response:
        try:
            return method(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            known = error_from(error)
            if known is not None:
                raise known from None
            raise UsageError(
                f"{self._target} does not answer as a replay buffer ({_words(error)}); "
                "is the run over, or the address another process's?"
            ) from None


def _words(error: grpc.RpcError) -> str:
    assert isinstance(error, grpc.Call)
    name: str = error.code().name
    return name.lower().replace("_", " ")
