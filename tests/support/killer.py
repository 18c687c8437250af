"""Kills processes of a run at moments that a seed chooses, and starts them again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from scene import Scene

EVERYBODY = {"replay": 5, "feeder": 4, "worker-0": 3, "worker-1": 3, "store": 1}
"""How often each is killed, relative to the others. The store takes long to come back."""
WITH_REDIS = EVERYBODY | {"redis": 5, "redis+replay": 2}
"""Names with a plus die together, in this order, and are started again in it."""
REDIS_ABOVE_ALL = {"redis": 8, "redis+replay": 1, "replay+redis": 1}


@dataclass(frozen=True, order=True)
class Kill:
    """One kill: when in the run, whom, and for how long it stays away."""

    step: int
    """Once this step is worked on, ..."""
    pause_s: float
    """... and so much later. Kills of one step follow each other into the recovery."""
    victim: str
    away_s: float


def plan(seed: str, count: int, steps: int, odds: Mapping[str, int]) -> list[Kill]:
    """Draw kills over the steps; at least one of each process if there are enough."""
    draw = Random(seed)
    victims = list(odds)[:count]
    victims += draw.choices(list(odds), list(odds.values()), k=count - len(victims))
    return sorted(
        Kill(
            step=draw.randint(1, steps - 1),
            pause_s=draw.expovariate(1 / 0.2),
            victim=victim,
            away_s=draw.choice([0.0, draw.uniform(0, 1.0)]),
        )
        for victim in victims
    )


async def carry_out(kills: list[Kill], scene: Scene) -> int:
    """Kill by plan, until the run is over; count."""
    done = 0
    for kill in kills:
        await scene.recorder.reached(kill.step)
        await asyncio.sleep(kill.pause_s)
        if scene.recorder.ended:
            break
        async with scene.away(*kill.victim.split("+")):
            step = scene.recorder.step
            print(f"step {step}: {kill.victim} killed, away for {kill.away_s:.2f} s")
            done += 1
            await asyncio.sleep(kill.away_s)
    return done
