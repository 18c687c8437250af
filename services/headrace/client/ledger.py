"""What can be asked about a run's ledger, whoever answers, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.v1 import prompt_pb2
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

    def events(
        self, after: int = 0, *, until: int | None = None, for_s: float | None = None
    ) -> Iterator[prompt_pb2.LedgerEvent]:
        """Give what happened after a journal position, in order, and what happens then.

        Args:
            after: The position; 0 = as far back as the journal goes.
            until: End with this position.
            for_s: End after so many seconds.

        It ends, too, when the run is over and everything was given.

        """
        ...


class LiveLedger(Ledger, Protocol):
    """A running replay buffer."""

    def pause(self) -> None:
        """Stop feeding and leasing."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def drop_stale(self, step: int) -> list[str]:
        """Drop what is too old for a step (0 = the current one); name it."""
        ...

    def close_circuit(self) -> bool:
        """Close an open circuit; say whether it was open."""
        ...

    def drop(self, uids: Sequence[str]) -> list[str]:
        """Drop prompts, all or none; name those that were not dropped before.

        Raises:
            PromptUnknownError: one was never fed, or is forgotten.
            PromptInUseError: one is finished, sampled or trained.

        """
        ...
