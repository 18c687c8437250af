"""The judge's own idea of responses under way: which tokens each has, and who may go on with it.

draft   tokens twice, left out, of a dead line, of nobody's lease, or not gone on with
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from judge_rules import PENDING, RUNNING, Made, Prompt, Rules

from headrace.v1 import journal_pb2, prompt_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from judge_prompts import Prompts


class Drafts:
    """Follows reports, as a part of `judge_model.Model`."""

    rules: Rules
    lineage: str
    prompts: Prompts
    published: dict[tuple[str, int], str]

    if TYPE_CHECKING:

        def say(self, kind: str, what: str) -> None: ...
        def lives(self, lineage: str, version: int) -> bool: ...
        def base(self, prompt: Prompt) -> int: ...
        @property
        def step(self) -> int: ...
        def _find(self, uid: str) -> Prompt: ...
        def _check_lease(self, uid: str, attempt: int, worker: str) -> None: ...

    def _tokens_reported(self, event: journal_pb2.TokensReported) -> None:
        for progress in event.progress:
            uid = progress.lease.uid
            self._check_lease(uid, progress.lease.attempt, event.worker_id)
            if progress.lineage != self.lineage:
                self.say("draft", f"{uid} was reported for {progress.lineage}")
            for draft in progress.drafts:
                self._grow(self._find(uid), draft)

    def _grow(self, prompt: Prompt, draft: prompt_pb2.Draft) -> None:
        what = f"session {draft.session} of {prompt.uid}"
        known = prompt.drafts.setdefault(draft.session, [])
        if draft.session in prompt.sessions or not 0 <= draft.session < self.rules.n:
            self.say("draft", f"{what} is not under way")
        if draft.offset != len(known):
            self.say("draft", f"{what} has {len(known)} tokens, and goes on at {draft.offset}")
        made = list(tokens_of(draft))
        if not made or len(made) != len(draft.token_ids):
            self.say("draft", f"{what}: {len(draft.token_ids)} tokens, weights of {len(made)}")
        for line, version in {(each.lineage, each.version) for each in made}:
            if (line, version) not in self.published or not self.lives(line, version):
                self.say("draft", f"{what} by {line} v{version}")
        for place, each in enumerate(made, len(known)):
            if self.rules.token and each.token != self.rules.token(
                prompt.uid, draft.session, place
            ):
                self.say("draft", f"{what} has a token at {place} that belongs elsewhere")
        known += made
        if len(known) >= self.rules.most_tokens:
            self.say("draft", f"{what} has {len(known)} tokens of {self.rules.most_tokens}")
        if self.rules.basis != "fed" and oldest(known) < prompt.lease_oldest:
            self.say("draft", f"{what} is older than the lease, v{prompt.lease_oldest}")

    def _drafts_dropped(self, event: journal_pb2.DraftsDropped) -> None:
        for uid, session in zip(event.uids, event.sessions, strict=True):
            prompt = self._find(uid)
            draft = prompt.drafts.pop(session, [])
            if not draft or prompt.state != PENDING:
                self.say("draft", f"{uid} has no session {session} to give up")
            elif event.reason == "stale" and not self._is_past(draft):
                self.say("draft", f"session {session} of {uid} is given up, and could be used")

    def _is_past(self, draft: list[Made]) -> bool:
        if self.rules.sync:
            return oldest(draft) < self.step - 1
        dated = self.rules.strategy == "drop" and self.rules.threshold is not None
        return dated and self.step - oldest(draft) > (self.rules.threshold or 0)

    def check_gone_on_with(self, prompt: Prompt, record: prompt_pb2.SessionRecord) -> None:
        """Have a recorded session be one that holds what there was of it."""
        draft = prompt.drafts.pop(record.session, [])
        prompt.begun[record.session] = tuple(each.token for each in draft)
        if draft and (record.token_count < len(draft) or record.min_version > oldest(draft)):
            self.say("draft", f"session {record.session} of {prompt.uid} was begun anew")

    def check_none_is_past(self, prompt: Prompt) -> None:
        """Have a group be leased with drafts that can be used at this step alone."""
        for session, draft in prompt.drafts.items():
            if self._is_past(draft):
                self.say("draft", f"session {session} of {prompt.uid} is gone on with, too old")

    def cut_drafts(self, fork: int, *, kept: bool) -> None:
        """Leave what weights of the line that goes on have made."""
        if kept != self.rules.salvage:
            self.say("draft", f"drafts are {'' if kept else 'not '}kept")
        for prompt in self.prompts.values():
            cut = {
                session: list(takewhile(lambda each: each.version <= fork, draft))
                for session, draft in prompt.drafts.items()
            }
            prompt.drafts = {session: draft for session, draft in cut.items() if draft and kept}


def tokens_of(draft: prompt_pb2.Draft) -> Iterable[Made]:
    for span in draft.weight_spans:
        for place in range(span.begin, span.end):
            token = draft.token_ids[place - draft.offset]
            yield Made(span.lineage, span.version, token)


def oldest(draft: list[Made]) -> int:
    return min(each.version for each in draft)


def oldest_of(prompt: Prompt) -> list[int]:
    """The oldest weights of each of its drafts, while it is worked on."""
    return [oldest(draft) for draft in prompt.drafts.values()] if prompt.state == RUNNING else []
