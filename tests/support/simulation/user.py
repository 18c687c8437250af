"""A user: looks at the run now and then, and ends a wait that says that only a user can end it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import WireError
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb
from simulation.engine import Party, Work

if TYPE_CHECKING:
    from simulation.world import World

LOOK_EVERY_TICKS = 3000


class User(Party):
    """Knows which rows nobody can do; never dies."""

    name = "user"
    world: World

    def start(self) -> None:
        self.spawn(self._look_after_it())

    def _look_after_it(self) -> Work:
        was_open = False
        while True:
            yield ("sleep", LOOK_EVERY_TICKS)
            status = yield from self.ask("replay", "GetReplayStatus", pb.GetReplayStatusRequest())
            feed_is_over = status.cursor >= self.world.row_count
            is_open = feed_is_over and status.circuit != pb.CIRCUIT_CAUSE_UNSPECIFIED
            if is_open and was_open:
                with suppress(WireError):  # it is as it is no more
                    yield from self._help(status)
            was_open = is_open

    def _help(self, status: pb.GetReplayStatusResponse) -> Work:
        listed = yield from self.ask("replay", "ListPrompts", pb.ListPromptsRequest(page_size=1000))
        bad = [group.uid for group in listed.groups if self._is_hopeless(group)]
        judge = self.world.judge
        if bad:
            judge.given_up.update(bad)
            yield from self.ask("replay", "DropPrompts", pb.DropPromptsRequest(uids=bad))
            judge.counts["prompts_given_up"] += len(bad)
        elif not status.counts.pending + status.counts.running:  # nothing is left to probe with
            yield from self.ask("replay", "CloseCircuit", pb.CloseCircuitRequest())
            judge.counts["circuits_closed_by_hand"] += 1

    def _is_hopeless(self, group: prompt_pb2.PromptGroup) -> bool:
        in_hand = (
            prompt_pb2.PROMPT_STATE_PENDING,
            prompt_pb2.PROMPT_STATE_RUNNING,
            prompt_pb2.PROMPT_STATE_FAILED,
        )
        return group.state in in_hand and self.world.row(group.ordinal) in (
            self.world.scenario.bad_rows
        )
