"""One run of one seed: who is there, who is started again, and when it is over."""

from __future__ import annotations

from typing import Any

from simulation.coordinator import Coordinator
from simulation.engine import Engine, Party, ViolationError
from simulation.faults import FaultPlan
from simulation.feeder import Feeder
from simulation.journal import MemoryJournal
from simulation.judge import Judge
from simulation.replay import Replay, bound
from simulation.scenario import Scenario
from simulation.storage import TORN, Storage
from simulation.store import Disk, Store
from simulation.trainer import Trainer
from simulation.user import User
from simulation.worker import Worker

COMPARE_EVERY_TICKS = 400
MOST_ZOMBIES = 4
"""Workers that come back beside those that took their place; more only make a crowd."""


class World(Engine):
    """Everything of one run."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.journal = MemoryJournal()
        self.storage = Storage()
        self.disk = Disk()
        self.feeder_is_done = False
        self.is_done = False
        self.engines_fail_until = 0
        self._zombies = 0
        rows, epochs = scenario.row_count, scenario.rules.epochs
        self._order = []
        for _ in range(epochs):
            order = list(range(rows))
            self.rng.shuffle(order)
            self._order.append(order)
        self._uids = [f"e{epoch}r{row}" for epoch, order in enumerate(self._order) for row in order]
        self.judge = Judge(self)
        self._bring_up("store", Store)
        self._bring_up("replay", Replay)
        self._bring_up("coordinator", Coordinator)
        self._bring_up("feeder", Feeder)
        self._bring_up("trainer", Trainer)
        for number in range(scenario.worker_count):
            self._bring_up_worker(f"worker{number}")
        self._bring_up("user", User)
        FaultPlan(self).start()
        self.later(scenario.fault_ticks, self._heal)
        self.later(COMPARE_EVERY_TICKS, self._compare)

    # -- the data set

    @property
    def row_count(self) -> int:
        """Rows of all epochs."""
        return len(self._uids)

    def uid(self, ordinal: int) -> str:
        """Name the row at an ordinal."""
        return self._uids[ordinal]

    def row(self, ordinal: int) -> int:
        """Give the row at an ordinal."""
        rows = self.scenario.row_count
        return self._order[ordinal // rows][ordinal % rows]

    # -- lives

    def _bring_up(self, name: str, kind: Any) -> None:
        self._enter(name, kind(self))

    def _bring_up_worker(self, name: str) -> None:
        self._enter(name, Worker(self, name))

    def _enter(self, name: str, party: Party) -> None:
        self.parties[name] = party
        party.start()

    def kill(self, name: str, *, loses_all: bool = False) -> None:
        """Kill somebody who is there; the supervisor starts it again."""
        party = self.parties[name]
        if not party.is_up or (name == "trainer" and self.is_done):
            return
        if self.trace:
            self.trace(f"{self.tick} † {name}#{party.number}{' with all it had' * loses_all}")
        self.judge.counts[f"killed_{name.rstrip('0123456789')}"] += 1
        party.die()
        if loses_all and name == "store":
            self.disk = Disk()
            self.judge.counts["lost_stores"] += 1
        if loses_all and name == "replay" and not self.is_done:  # then nobody would restore it
            self.journal = MemoryJournal()
            self.judge.journal_lost()
            self.judge.counts["lost_journals"] += 1
        self.later(int(5 + 200 * self.rng.random()), lambda: self._start_again(party))

    def _start_again(self, party: Party) -> None:
        name = party.name
        if self.parties[name] is not party:
            return
        if name.startswith("worker"):
            self._bring_up_worker(name)
        else:
            self._bring_up(name, type(party))

    def freeze(self, name: str, ticks: int, *, replaced: bool) -> None:
        """Stop somebody for a while; perhaps another one takes its place meanwhile."""
        party = self.parties[name]
        if not party.is_up or (name == "trainer" and self.is_done):
            return
        if self.trace:
            self.trace(f"{self.tick} ‖ {name}#{party.number} for {ticks}, replaced: {replaced}")
        self.judge.counts[f"frozen_{name.rstrip('0123456789')}"] += 1
        party.frozen_until = self.tick + ticks
        if replaced and name.startswith("worker"):
            self._zombies += 1
            replaced = self._zombies <= MOST_ZOMBIES
        if replaced:
            self._start_again(party)

    def trainer_left(self, trainer: Party) -> None:
        """A trainer was fenced; another one is there, or is to be."""
        trainer.die()
        if self.parties["trainer"] is trainer:
            self.later(50, lambda: self._start_again(trainer))

    def trainer_is_done(self, trainer: Party) -> None:
        """The run is trained to its end."""
        if self.parties["trainer"] is trainer:
            self.is_done = True

    def _heal(self) -> None:
        self.faults_on = False
        self.engines_fail_until = 0
        for party in self.parties.values():
            party.frozen_until = 0

    # -- checkpoints

    def write_fails(self) -> bool:
        """Whether the disk is full just now."""
        rate = self.scenario.faults.write_fails
        return self.faults_on and rate > 0 and self.rng.random() < rate

    def reads_badly(self) -> bool:
        """Whether the rows of a group cannot be read just now."""
        rate = self.scenario.faults.unreadable
        return self.faults_on and rate > 0 and self.rng.random() < rate

    def tear(self, uri: str, part: str) -> None:
        """Begin to write a part: until it is whole it is torn."""
        self.storage.write(uri, part, TORN)

    def damage_checkpoint(self) -> None:
        """Hurt the newest checkpoint, if there is another one to go back to.

        Not while a resume or a snapshot is under way: one whose checkpoint was read and then hurt
        is refused.
        """
        coordinator = self.parties["coordinator"]
        if not isinstance(coordinator, Coordinator) or coordinator.is_busy:
            return
        found = [self.storage.look(step) for step in sorted(self.storage.directories)]
        kept = [one for one in found if one.manifest][-self.scenario.keep_checkpoints :]
        whole = [one.step for one in kept if not one.problems]
        if len(whole) > 1:
            part = self.rng.choice(["ledger", "store", "trainer"])
            self.storage.directories[whole[-1]].parts[part] = TORN
            self.judge.counts["damaged"] += 1

    # -- judging

    def _compare(self) -> None:
        replay = self.parties["replay"]
        if replay.is_up and isinstance(replay, Replay):
            self.judge.compare_ledger(replay)
        self.judge.check_rows()
        self.later(COMPARE_EVERY_TICKS, self._compare)

    def run_to_the_end(self) -> None:
        """Run until the trainer is done and the feeder has accounted for every row.

        Raises:
            ViolationError: something does not hold.

        """
        healed_at = 0
        with bound(self):
            while not (self.is_done and self.feeder_is_done and not self._is_open):
                self.step()
                if not self.faults_on:
                    healed_at = healed_at or self.transitions
                    if self.transitions - healed_at > self.scenario.heal_limit:
                        raise ViolationError("I11: faults are over, and the run comes to no end")
        self.judge.ended()

    @property
    def _is_open(self) -> bool:
        """Whether something is not durable, or not accounted for, yet."""
        replay = self.parties["replay"]
        if not isinstance(replay, Replay) or not replay.is_up or replay.committer.queued_count:
            return True
        return (
            not self.judge.model.ended or self.judge.model.cursor < self.judge.model.ordinal_count
        )
