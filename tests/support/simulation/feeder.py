"""A feeder: what `headrace.feeder.demand` does, without reading."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.errors import FeedGapError, FeedNotOpenError
from headrace.v1 import feeder_pb2, prompt_pb2
from headrace.v1 import replay_pb2 as pb
from simulation.engine import PAUSE, TICK_S, Party, Work

if TYPE_CHECKING:
    from simulation.world import World

POLL_TICKS = 200


class Feeder(Party):
    """One life of the process."""

    name = "feeder"
    world: World

    def start(self) -> None:
        self._ahead: deque[pb.NewPrompt] = deque()
        self._cursor = 0
        self._is_astray = False
        self._total = 0
        self.spawn(self._main())

    def _main(self) -> Work:
        yield from self._open()
        while True:
            request = pb.AwaitDemandRequest(wait_s=POLL_TICKS * TICK_S)
            try:
                wanted = yield from self.ask("replay", "AwaitDemand", request, POLL_TICKS)
                self._move_to(wanted.cursor)
                if wanted.ended:
                    if not wanted.surplus_count:
                        self.world.feeder_is_done = True
                        yield ("sleep", POLL_TICKS)
                        continue
                    last = self._cursor + wanted.surplus_count
                    surplus = [
                        pb.NewPrompt(
                            uid=self.world.uid(ordinal), drop_reason=prompt_pb2.DROP_REASON_SURPLUS
                        )
                        for ordinal in range(self._cursor, last)
                    ]
                    yield from self._register(surplus)
                    continue
                self.world.feeder_is_done = False
                if self._is_astray:
                    yield from self._open()
                yield from self._read_ahead(wanted.demand)
                yield from self._register(self._first(wanted.demand))
            except FeedGapError:
                pass
            except FeedNotOpenError:
                yield from self._open()

    def _open(self) -> Work:
        request = pb.OpenFeedRequest(
            row_count=self.world.scenario.row_count, fingerprint="the data set"
        )
        opened = yield from self.ask("replay", "OpenFeed", request)
        self._total = opened.ordinal_count
        self._cursor = opened.cursor
        self._ahead.clear()
        self._is_astray = False

    def _read_ahead(self, usable_count: int) -> Work:
        usable = sum(not prompt.drop_reason for prompt in self._ahead)
        while usable < usable_count:
            first = self._cursor + len(self._ahead)
            last = min(first + self.world.scenario.chunk, self._total)
            if first >= last:
                return
            yield PAUSE
            for ordinal in range(first, last):
                prompt = self._prompt(ordinal)
                self._ahead.append(prompt)
                usable += not prompt.drop_reason

    def _prompt(self, ordinal: int) -> pb.NewPrompt:
        uid, row = self.world.uid(ordinal), self.world.row(ordinal)
        if row in self.world.scenario.long_rows:
            return pb.NewPrompt(uid=uid, drop_reason=prompt_pb2.DROP_REASON_TOO_LONG)
        return pb.NewPrompt(uid=uid, payload=feeder_pb2.PromptPayload(text=f"row {row}"))

    def _first(self, demand: int) -> list[pb.NewPrompt]:
        taken = []
        for prompt in self._ahead:
            if demand <= 0:
                break
            demand -= not prompt.drop_reason
            taken.append(prompt)
        return taken

    def _register(self, prompts: list[pb.NewPrompt]) -> Work:
        if prompts:
            request = pb.RegisterPromptsRequest(first_ordinal=self._cursor, prompts=prompts)
            registered = yield from self.ask("replay", "RegisterPrompts", request)
            self._move_to(registered.cursor)

    def _move_to(self, cursor: int) -> None:
        step = cursor - self._cursor
        if 0 <= step <= len(self._ahead):
            for _ in range(step):
                self._ahead.popleft()
        else:
            self._ahead.clear()
            self._is_astray = True
        self._cursor = cursor
