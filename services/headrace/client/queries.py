"""Questions about a run, answered as they come over the wire: for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from headrace.client.ledger import Ledger
from headrace.errors import UsageError
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb

T = TypeVar("T")

PAGE_SIZE: Final = 500
"""Prompts asked for at a time."""

STATES: Final = {
    name.removeprefix("PROMPT_STATE_").lower(): value
    for name, value in prompt_pb2.PromptState.items()
    if value
}
"""The states a prompt may be in, by name."""

REASONS: Final = {
    name.removeprefix("DROP_REASON_").lower(): value
    for name, value in prompt_pb2.DropReason.items()
    if value
}
"""The reasons a prompt may have been dropped for, by name."""


class Queries:
    """Asks a ledger. Nothing here changes it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def status(self) -> pb.GetReplayStatusResponse:
        """Say where the run is: step, groups by state, window, workers, weights."""
        return self._ledger.status()

    def where(self, uid: str) -> pb.LocatePromptResponse:
        """Give one prompt's place, and its history from the journal, oldest first.

        Raises:
            PromptUnknownError: no prompt of that uid was ever fed.

        """
        return self._ledger.locate(uid)

    def audit(self) -> pb.AuditResponse:
        """Check the balance rule and everything else that must hold."""
        return self._ledger.audit()

    def prompts(
        self, *, state: str | None = None, reason: str | None = None
    ) -> Iterator[prompt_pb2.PromptGroup]:
        """List prompts by ordinal, asking for more as they are read.

        Args:
            state: only these: `pending`, `running`, `finished`, `trained`, `dropped`, …
            reason: only those dropped for this reason: `stale`, `failed`, `too_long`, …

        Raises:
            UsageError: no such state or reason.

        """
        token = ""
        while True:
            page = self.page(state=state, reason=reason, token=token)
            yield from page.groups
            token = page.next_page_token
            if not token:
                return

    def page(
        self,
        *,
        state: str | None = None,
        reason: str | None = None,
        size: int = PAGE_SIZE,
        token: str = "",
    ) -> pb.ListPromptsResponse:
        """List one page of prompts; `next_page_token` leads to the next.

        Raises:
            UsageError: no such state or reason.
            InvalidFieldError: a bad token.

        """
        request = pb.ListPromptsRequest(page_size=size, page_token=token)
        if state is not None:
            request.state = _value(STATES, "state", state)
        if reason is not None:
            request.drop_reason = _value(REASONS, "reason", reason)
        return self._ledger.list_prompts(request)


def _value(values: Mapping[str, T], what: str, name: str) -> T:
    try:
        return values[name]
    except KeyError:
        raise UsageError(f"no {what} {name!r}; there are {', '.join(values)}") from None
