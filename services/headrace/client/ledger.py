"""What can be asked about a run's ledger, whoever answers."""

from __future__ import annotations

from typing import Protocol

from headrace.v1 import replay_pb2 as pb


class Ledger(Protocol):
    """A running replay buffer, or the journal of a run that is over."""

    def status(self) -> pb.GetReplayStatusResponse:
        """Say where the run is."""
        ...

    def locate(self, uid: str) -> pb.LocatePromptResponse:
        """Give one prompt's place and history.

        Raises:
            PromptUnknownError: no prompt of that uid was ever fed.

        """
        ...

    def audit(self) -> pb.AuditResponse:
        """Check everything that must hold."""
        ...

    def list_prompts(self, request: pb.ListPromptsRequest) -> pb.ListPromptsResponse:
        """List a page of prompts, by ordinal.

        Raises:
            InvalidFieldError: a bad page token.

        """
        ...
