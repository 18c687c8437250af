"""Short histories that a random walk seldom comes by, judged from outside."""

from __future__ import annotations

from judge_model import Model
from judge_rules import Rules
from ledger_drafts import piece, report
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
    return judged(world, warmup=warmup, threshold=threshold, max_failures=max_failures)


def old_draft(*, threshold: int, steps: int) -> World:
    """A group with a draft by version 0 waits for so many steps, while nobody leases."""
    world = World(settings(window_size=12, threshold=threshold), row_count=ROWS)
    world.sample()
    world.feed()
    *others, ref = world.lease()
    world.complete(others)
    report(world, ref, piece(world, ref.uid, 0, 0, (0, 5)))
    world.expire([ref])
    for _ in range(steps):
        world.sample()
        world.commit()
    return world


def draft_past_the_threshold() -> list[str]:
    """It is dropped when its group is leased at last."""
    world = old_draft(threshold=2, steps=2)
    world.feed()
    world.generate()
    return judged(world, warmup=3, threshold=2)


def draft_that_grows_too_old() -> list[str]:
    """It takes its group along when the step comes at which it cannot be used any more."""
    world = old_draft(threshold=3, steps=2)
    refs = world.lease(1)
    world.sample()
    world.commit()
    world.complete(refs)
    world.feed()
    world.generate()
    world.sample()
    return judged(world, warmup=3, threshold=3)


def judged(
    world: World, *, warmup: int = 1, threshold: int = 8, max_failures: int = 3
) -> list[str]:
    """Say what is wrong with what has happened."""
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
