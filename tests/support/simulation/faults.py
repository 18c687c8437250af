"""What goes wrong, and when: drawn by the seed, as long as faults are on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.world import World

EVERYBODY = ("replay", "store", "feeder", "trainer", "coordinator")


class FaultPlan:
    """Strikes at random ticks."""

    def __init__(self, world: World) -> None:
        self._world = world
        faults = world.scenario.faults
        self._kinds: list[tuple[float, Callable[[], None]]] = [
            (rate, strike)
            for rate, strike in (
                (faults.crash, self._crash),
                (faults.freeze, self._freeze),
                (faults.store_loss, self._lose_store),
                (faults.journal_loss, self._lose_journal),
                (faults.outage, self._outage),
                (faults.damage, self._damage),
            )
            if rate
        ]
        self._rate = sum(rate for rate, _ in self._kinds)

    def start(self) -> None:
        """Plan the first strike."""
        if self._rate:
            self._plan()

    def _plan(self) -> None:
        self._world.later(1 + int(self._world.rng.expovariate(self._rate)), self._strike)

    def _strike(self) -> None:
        world = self._world
        if not world.faults_on:
            return
        dice = world.rng.random() * self._rate
        for rate, strike in self._kinds:
            dice -= rate
            if dice < 0:
                strike()
                break
        self._plan()

    def _names(self) -> list[str]:
        return [*EVERYBODY, *(f"worker{i}" for i in range(self._world.scenario.worker_count))]

    def _crash(self) -> None:
        world, names = self._world, self._names()
        dice = world.rng.random()
        if dice < 0.8:
            victims = [world.rng.choice(names)]
        elif dice < 0.97:
            victims = world.rng.sample(names, 2)
        else:
            victims = names
        for victim in victims:
            world.kill(victim)
        if world.rng.random() < 0.3:  # and again, while it recovers
            again = world.rng.choice(victims)
            world.later(int(20 + 150 * world.rng.random()), lambda: world.kill(again))

    def _freeze(self) -> None:
        world = self._world
        name = world.rng.choice([n for n in self._names() if n not in ("store", "coordinator")])
        ticks = int(300 + 2500 * world.rng.random())
        world.freeze(
            name, ticks, replaced=name in ("trainer", "replay") or world.rng.random() < 0.5
        )

    def _lose_store(self) -> None:
        self._world.kill("store", loses_all=True)

    def _lose_journal(self) -> None:
        self._world.kill("replay", loses_all=True)

    def _outage(self) -> None:
        world = self._world
        world.engines_fail_until = world.tick + int(100 + 600 * world.rng.random())
        world.judge.counts["outages"] += 1

    def _damage(self) -> None:
        self._world.damage_checkpoint()
