"""Bugs put back on purpose: a suite that lets one live is not finished.

Each mutant breaks one rule, and a random walk of all parties, judged from outside the ledger, has to
go red within a few seeds; or, where it takes a certain history, a test of that history has to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import mutants
import pytest
from ledger_scenes import (
    draft_past_the_threshold,
    draft_that_grows_too_old,
    failed_at_a_resume,
    stale_at_a_resume,
)
from ledger_walk import walked
from ledger_world import settings
from mutants import Patch
from replay_server import replay_server

from headrace.replay import compactor as compactor_module
from headrace.replay.compactor import CompactionSettings, Compactor
from headrace.replay.journal.file import FileJournal

SEEDS = range(25)

WALKED: tuple[tuple[str, Patch], ...] = (
    ("I1", mutants.lost_rows_are_forgotten_about),
    ("I1", mutants.a_new_trainer_leaves_what_the_old_one_had),
    ("I2", mutants.a_commit_counts_twice),
    ("I3", mutants.what_was_trained_later_stays_trained),
    ("I3", mutants.steps_are_not_counted_back),
    ("I3", mutants.a_sampled_batch_outlives_its_line),
    ("I3", mutants.trained_groups_are_let_go_at_once),
    ("I3", mutants.nothing_is_salvaged),
    ("I4", mutants.the_cursor_skips_a_row),
    ("I4", mutants.the_cursor_moves_back),
    ("I4", mutants.an_over_full_window_is_trimmed),
    ("I5", mutants.the_warm_up_adds_a_full_window),
    ("I5", mutants.a_refill_comes_twice),
    ("I5", mutants.leasing_knows_no_window),
    ("I5", mutants.prompts_are_fed_before_the_warm_up),
    ("I6", mutants.attempts_begin_again),
    ("I6", mutants.an_old_trainer_is_heard),
    ("I6", mutants.an_old_attempt_is_heard),
    ("I6", mutants.a_late_return_is_heard),
    ("I6", mutants.a_lease_outlives_its_line),
    ("I6", mutants.leases_are_given_while_resuming),
    ("I6", mutants.batches_are_given_while_resuming),
    ("I6", mutants.tokens_are_added_twice),
    ("I6", mutants.tokens_may_be_left_out),
    ("I6", mutants.drafts_outlive_a_failure),
    ("I6", mutants.drafts_are_as_long_as_responses),
    ("I6", mutants.drafts_that_can_be_used_are_dropped),
    ("I7", mutants.usable_groups_are_dropped_at_the_restore),
    ("I7", mutants.weights_too_old_are_leased_with),
    ("I7", mutants.bases_are_not_restamped),
    ("I8", mutants.rows_of_a_lost_store_are_believed_in),
    ("I8", mutants.a_life_of_the_store_that_is_over_is_heard),
    ("I9", mutants.a_failed_snapshot_covers),
    ("I9", mutants.a_step_is_cut_while_it_is_open),
    ("I9", mutants.a_run_is_cut_while_it_is_resumed),
    ("I10", mutants.compaction_forgets_time_lines),
    ("I10", mutants.compaction_forgets_the_resume),
    ("I10", mutants.compaction_forgets_the_snapshots),
    ("I10", mutants.compaction_forgets_the_weights),
    ("I10", mutants.compaction_forgets_drafts),
    ("I11", mutants.a_warm_up_never_comes_to_its_end),
    ("I12", mutants.the_newest_is_sampled_first),
    ("I13", mutants.an_error_is_a_row_of_zero_reward),
    ("I14", mutants.sessions_of_later_weights_are_kept),
    ("I14", mutants.weights_of_a_dead_line_are_accepted),
    ("I14", mutants.the_newest_weights_are_still_those_of_the_dead_line),
    ("I14", mutants.phases_do_not_wait),
    ("I14", mutants.tokens_of_a_dead_line_are_kept),
    ("I14", mutants.drafts_outlive_their_line),
    ("I14", mutants.a_new_line_begins_without_drafts),
)
"""By the invariant that it breaks first."""

SCENES: tuple[tuple[str, Patch, Callable[[], list[str]]], ...] = (
    ("I5", mutants.failed_groups_hold_slots, failed_at_a_resume),
    ("I7", mutants.stale_groups_hold_slots, stale_at_a_resume),
    ("I7", mutants.drafts_too_old_are_gone_on_with, draft_past_the_threshold),
    ("I7", mutants.a_group_forgets_how_old_its_drafts_are, draft_that_grows_too_old),
)
"""Those that take a certain history."""


def name(patch: Patch) -> str:
    return getattr(patch, "__name__", "?")


def test_without_a_mutant_every_walk_is_as_it_should_be() -> None:
    assert {seed: walked(seed) for seed in SEEDS} == {seed: [] for seed in SEEDS}


@pytest.mark.parametrize(
    ("breaks", "patch"), WALKED, ids=[f"{breaks}-{name(patch)}" for breaks, patch in WALKED]
)
def test_a_walk_goes_red_if(monkeypatch: pytest.MonkeyPatch, breaks: str, patch: Patch) -> None:
    patch(monkeypatch)
    assert any(walked(seed) for seed in SEEDS), f"{name(patch)} lives: nobody looks after {breaks}"


@pytest.mark.parametrize(
    ("breaks", "patch", "scene"), SCENES, ids=[f"{each[0]}-{name(each[1])}" for each in SCENES]
)
def test_its_scene_goes_red_if(
    monkeypatch: pytest.MonkeyPatch, breaks: str, patch: Patch, scene: Callable[[], list[str]]
) -> None:
    assert scene() == []
    patch(monkeypatch)
    assert scene(), f"{name(patch)} lives: nobody looks after {breaks}"


def test_all_invariants_have_a_mutant_that_is_found() -> None:
    broken = {breaks for breaks, _ in WALKED} | {each[0] for each in SCENES}
    assert broken == {f"I{number}" for number in range(1, 15)}


def test_compaction_over_a_cut_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is gone: the part that is written must not be of a later ledger in silence."""
    monkeypatch.setattr(compactor_module.Compactor, "is_due", True)

    async def cut_while_compacting() -> None:
        journal = FileJournal(tmp_path / "journal", fsync=False)
        async with replay_server(journal, settings(window_size=8, saves=True)) as replay:
            trainer = await replay.begin()
            await replay.train(trainer, 1, 1)
            await replay.begin_cut(trainer, 1)
            await replay.train(trainer, 2, 3)
            compactor = Compactor(replay.buffer, journal, CompactionSettings(1, 5, 0))
            assert compactor.is_due
            await compactor.compact()
            await replay.write_cut(f"file://{tmp_path}/step")

    with pytest.raises(Exception, match=r"was compacted up to|INTERNAL"):
        asyncio.run(cut_while_compacting())
