"""How much is killed: a little in every run of the tests, much when the environment says so."""

from __future__ import annotations

import os

import pytest

KILLS = int(os.environ.get("HEADRACE_CHAOS_KILLS", "7"))
"""In each random run."""
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "1"))
STEPS = max(20, 2 * KILLS)

only_in_a_long_run = pytest.mark.skipif(
    "HEADRACE_CHAOS_KILLS" not in os.environ, reason="takes its time; `make chaos` runs it"
)
