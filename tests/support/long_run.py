"""How much is killed: a little in every run of the tests, much when the environment says so."""

from __future__ import annotations

import os

import pytest

KILLS = int(os.environ.get("HEADRACE_CHAOS_KILLS", "7"))
"""In each random run."""
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "1"))
STEPS = max(20, 2 * KILLS)


def is_long() -> bool:
    """Whether the environment says how much is killed."""
    return "HEADRACE_CHAOS_KILLS" in os.environ


only_in_a_long_run = pytest.mark.skipif(
    not is_long(), reason="takes its time; `make chaos` runs it"
)
