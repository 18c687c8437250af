"""Short histories that a random walk seldom comes by, judged from outside."""

from __future__ import annotations

from judge_model import Model
from judge_rules import Rules
from ledger_world import World, settings

ROWS = 40


def failed_at_a_resume() -> list[str]:
    """Two finished, one failed: the failed one is dropped and replaced by one."""
    world = World(settings(window_size=4, max_failures=1), row_count=ROWS)
    world.sample()
    world.feed()
    *good, bad = world.lease()
    world.complete(good)
    world.fail([bad])
    world.sample()
    world.commit()
    return resumed(world, max_failures=1)


def stale_at_a_resume() -> list[str]:
    """Four groups beyond T, and four fresh ones: the first are dropped before the window fills up."""
    world = World(settings(window_size=8, threshold=2), row_count=ROWS)
    world.sample()
    world.feed()
    world.generate(8)
    world.sample()
    world.commit()
    world.generate()
    world.settings = settings(window_size=8, threshold=1)
    return resumed(world, warmup=2, threshold=1)


def resumed(
    world: World, *, warmup: int = 1, threshold: int = 8, max_failures: int = 3
) -> list[str]:
    """Resume from a checkpoint taken now; say what is wrong."""
    world.save()
    world.resume(1)
    rules = Rules(
        n=2,
        batch=4,
        warmup=warmup,
        rows=ROWS,
        steps=ROWS // 4,
        uid=lambda ordinal: f"e0r{ordinal}",
        threshold=threshold,
        max_failures=max_failures,
    )
    model = Model(rules)
    model.follow(world.records())
    return model.found
