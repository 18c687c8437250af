"""The window over time, counted from events alone, against the ledger that made them."""

from __future__ import annotations

import random
from collections.abc import Mapping

from ledger_world import World, settings

from headrace.client import window
from headrace.client.window import STATES, Moment, count
from headrace.replay import resuming, rows, sampling
from headrace.replay.events import to_ledger_event
from headrace.replay.group import SAMPLED
from headrace.replay.groups import state_name
from headrace.replay.leasing import holder
from headrace.v1 import feeder_pb2, journal_pb2, prompt_pb2, replay_pb2, resume_pb2

MOVING = {name.removeprefix("_on_") for name in vars(window._Tally) if name.startswith("_on_")}
"""Events that the client counts by."""


class Play:
    """All parties at random; the ledger's counts are written down beside its events."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = World(
            settings(max_failures=1, eject_after=2, threshold=self.draw.choice([None, 2])),
            row_count=400,
        )
        self.held: list[tuple[str, replay_pb2.LeaseRef]] = []
        self.store, self.wishes = 1, 0
        self.events: list[prompt_pb2.LedgerEvent] = []
        self.counts: dict[int, Mapping[str, int]] = {}
        self.steps: dict[int, int] = {}
        self.note()

    def note(self) -> None:
        ledger = self.world.ledger
        self.events += map(to_ledger_event, ledger.take_events())
        self.steps[ledger.position] = ledger.committed_step
        self.counts[ledger.position] = dict.fromkeys(STATES, 0) | {
            state_name(state): n for state, n in ledger.groups.counts.items()
        }

    def go(self, turns: int) -> None:
        moves = [
            self.feed,
            self.lease,
            self.lease,
            self.complete,
            self.complete,
            self.complete,
            self.train,
            self.train,
            self.train,
            self.end,
            self.end,
            self.rare,
        ]
        for _ in range(turns):
            self.draw.choice(moves)()
            self.note()

    def feed(self) -> None:
        self.world.feed()

    def lease(self) -> None:
        worker = self.draw.choice("abc")
        self.held += [(worker, ref) for ref in self.world.lease(3, worker)]

    def complete(self) -> None:
        for worker, ref in self.current()[:3]:
            sessions = self.draw.choice([[0], [1], None, None])
            self.world.complete([ref], worker=worker, sessions=sessions, store=f"s{self.store}")

    def end(self) -> None:
        for worker, ref in self.current()[:1]:
            how = self.draw.choice(["fail", "hand_back", "expire"])
            if how == "fail":
                self.world.fail([ref], worker=worker, live_workers=["a", "b", "c"])
            elif how == "hand_back":
                self.world.hand_back([ref], worker=worker)
            else:
                self.world.expire([ref])

    def train(self) -> None:
        if (
            self.world.sample().status == replay_pb2.SAMPLE_STATUS_READY
            and self.draw.random() < 0.8
        ):
            self.world.commit()

    def rare(self) -> None:
        ledger = self.world.ledger
        what = self.draw.choice(
            ["store", "trainer", "return", "rows", "circuit", "outage", "back", "back", "anew"]
        )
        if what == "store":
            self.store += 1
            rows.register_store(
                ledger,
                incarnation=f"s{self.store}",
                follows=ledger.store_incarnation,
                capacity_bytes=10**9,
            )
        elif what == "trainer":
            self.world.new_trainer()
        elif what == "return" and ledger.open_step and ledger.groups.counts[SAMPLED]:
            uids = list(ledger.groups.sampled)[:1]
            sampling.return_groups(
                ledger, step=ledger.open_step.step, part=0, uids=uids, error="gone"
            )
        elif what == "rows":
            self.wishes += 1
            ledger.emit(
                journal_pb2.RowsRegistered(
                    request_id=f"r{self.wishes}",
                    call=self.wishes,
                    prompts=[
                        replay_pb2.NewPrompt(
                            uid=f"x{self.wishes}r0", payload=feeder_pb2.PromptPayload(text="p")
                        )
                    ],
                )
            )
        elif what == "outage":
            for worker in "aabbcc":
                refs = self.world.lease(1, worker)
                self.world.fail(refs, worker=worker, live_workers=["a", "b", "c"])
        elif what == "circuit" and ledger.circuit.is_open:
            ledger.emit(journal_pb2.CircuitClosed(by="rpc"))
        elif what == "back":
            self.go_back(
                self.draw.randint(max(0, ledger.committed_step - 3), ledger.committed_step)
            )
        elif what == "anew" and self.draw.random() < 0.3:
            self.go_back(0, anew=True)

    def go_back(self, step: int, *, anew: bool = False) -> None:
        """Go on from a step, perhaps with another store, or begin again."""
        world = self.world
        world.new_trainer()
        world.begin_resume(step)
        for phase in (resume_pb2.RESUME_PHASE_STORE, resume_pb2.RESUME_PHASE_LEDGER):
            assert world.advance(phase) == ""
        if anew:
            resuming.start_over(world.ledger, world.resume_id)
            self.note()
        self.store += self.draw.random() < 0.3
        world.roll_back(store=f"s{self.store}")
        self.note()
        assert world.advance(resuming.WEIGHTS) == ""
        world.publish(step)
        assert world.advance(resuming.REISSUE) == ""
        made = [group for group in world.ledger.groups.live() if 0 in group.sessions]
        world.report_lost([(group.uid, 0) for group in made[:2]])
        self.note()
        assert world.advance(resuming.WARMUP) == ""
        world.feed()
        assert world.advance(resuming.OPEN) == ""

    def current(self) -> list[tuple[str, replay_pb2.LeaseRef]]:
        self.held = [(w, ref) for w, ref in self.held if holder(self.world.ledger, w, ref)]
        self.draw.shuffle(self.held)
        return list(self.held)

    def counted(self, after: int = 0, n: int = 0) -> list[Moment]:
        return count(
            self.events[after:],
            self.counts[self.world.ledger.position],
            step=self.world.ledger.committed_step,
            n=n,
        )


def test_the_counts_after_every_event_are_the_ledgers() -> None:
    seen, trained = set(), 0
    for seed in range(20):
        play = Play(seed)
        play.go(300)
        moments = play.counted()

        assert [m.position for m in moments] == list(range(1, len(play.events) + 1))
        for moment in moments:
            if moment.position in play.counts:
                assert moment.counts == play.counts[moment.position], (seed, moment.position)
                assert moment.step == play.steps[moment.position], (seed, moment.position)
        trained += moments[-1].step
        seen |= {event.name for event in play.events}
    # All that move prompts, or the play is too tame.
    assert seen >= MOVING
    assert trained


def test_where_the_beginning_is_gone_the_rest_is_counted_from_its_end() -> None:
    play = Play(1)
    for _ in range(30):
        play.world.step()
        play.note()
    whole, cut = play.counted(), len(play.events) // 2

    rest = play.counted(cut, n=play.world.settings.n)

    assert [m.position for m in rest] == [m.position for m in whole[cut:]]
    assert [m.step for m in rest] == [m.step for m in whole[cut:]]
    # By the next step all that was half done at the cut is over.
    settled = next(m.position for m in rest if m.step > rest[0].step) - cut
    assert rest[settled:] == whole[cut + settled :]


def test_what_a_restored_ledger_brings_is_counted_from_its_end() -> None:
    before = World(settings(window_size=8))
    before.train(2)
    base = before.save()
    play = Play(1)
    play.feed()
    play.note()
    fed = play.world.ledger.position
    play.world.new_trainer()
    play.world.begin_resume(2)
    play.world.to_weights(restore=base)
    for act in (lambda: None, play.world.warm_up, lambda: play.world.train(3)):
        act()
        play.note()

    moments = {moment.position: moment for moment in play.counted()}

    for position, counts in play.counts.items():
        assert (moments[position].counts, moments[position].step) == (
            counts,
            play.steps[position],
        )
    assert moments[fed].counts["pending"] == 12


def test_no_events_are_no_moments() -> None:
    assert count([], {}, step=0) == []
