"""The manifest, facts, time lines and retention: what a checkpoint says, and what is kept of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_files import L0, L1, directory_at, flip_a_byte, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from plan_world import config

from headrace.checkpoint.directory import examine
from headrace.checkpoint.facts import compare, facts_of
from headrace.checkpoint.lines import is_on_line
from headrace.checkpoint.manifest import parse
from headrace.checkpoint.retention import (
    kept,
    remove_abandoned,
    remove_failed,
    remove_given_up,
    retained,
)
from headrace.checkpoint.storage import DamagedError
from headrace.config.checkpoint import Allowance
from headrace.v1.resume_pb2 import Lineage


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = directory_at(tmp_path / "storage")
    written = write_checkpoint(directory, 7, tmp_path / "scratch", lineages=[L0, L1])

    found = directory.look(7, read=True)

    assert found.problems == ()
    assert found.manifest == written
    assert written.lineage == "l1"
    assert written.size_bytes == len(b"ledger of 7store of 7trainer of 7")


def test_a_checkpoint_that_was_moved_as_a_whole_is_read_where_it_lies(tmp_path: Path) -> None:
    directory = directory_at(tmp_path / "storage")
    write_checkpoint(directory, 7, tmp_path / "scratch")
    (tmp_path / "storage").rename(tmp_path / "elsewhere")

    found = examine(str(tmp_path / "elsewhere" / "global_step_7"), read=True)

    assert found.problems == ()
    assert found.manifest is not None
    assert found.manifest.part("trainer").uri == (tmp_path / "elsewhere/global_step_7").as_uri()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b'{"schema_version": 1, "run_id"', "is torn, or no JSON"),
        (b"[1, 2]", "is no manifest of a checkpoint"),
        (b"[" * 100_000, "is torn, or no JSON"),
        (b'{"schema_version": 99}', "schema version 99 is not 1"),
        (b'{"schema_version": 1, "files": {}}', "is no manifest of a checkpoint"),
    ],
)
def test_what_is_no_manifest_says_what_it_is(data: bytes, what: str) -> None:
    with pytest.raises(DamagedError, match=what):
        parse(data, source="manifest.json", uri="file:///x")


def test_a_manifest_without_a_part_is_none(tmp_path: Path) -> None:
    manifest = write_checkpoint(directory_at(tmp_path / "storage"), 1, tmp_path / "scratch")
    without = replace(manifest, parts=manifest.parts[:2])

    with pytest.raises(DamagedError, match="names no trainer part"):
        parse(without.to_bytes(), source="manifest.json", uri="file:///x")


@given(st.data())
def test_a_manifest_that_is_cut_off_anywhere_is_damaged(data: st.DataObject) -> None:
    whole = json.dumps({"schema_version": 1, "parts": [], "lineages": []}).encode()
    end = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(DamagedError):
        parse(whole[:end], source="manifest.json", uri="file:///x")


@pytest.mark.parametrize(
    "file", ["ledger.pb", "transfer_queue/data", "trainer/data", "manifest.json"]
)
@pytest.mark.parametrize("what", ["flipped", "missing", "empty"])
def test_damage_anywhere_is_named_by_its_file(tmp_path: Path, file: str, what: str) -> None:
    directory = directory_at(tmp_path / "storage")
    write_checkpoint(directory, 3, tmp_path / "scratch")
    path = tmp_path / "storage" / "global_step_3" / file
    if what == "flipped":
        flip_a_byte(path)
    elif what == "missing":
        path.unlink()
    else:
        path.write_bytes(b"")

    found = directory.look(3, read=True)

    [problem] = found.problems
    assert file in problem
    assert found.unfinished == (file == "manifest.json" and what == "missing")


def test_a_byte_flipped_anywhere_in_a_manifest_is_found_or_changes_nothing(tmp_path: Path) -> None:
    written = write_checkpoint(directory_at(tmp_path / "storage"), 3, tmp_path / "scratch")
    whole = written.to_bytes()
    uri = written.parts[0].uri
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 4
        try:
            read = parse(bytes(flipped), source="manifest.json", uri=uri)
        except DamagedError:
            continue
        assert read == written, f"byte {position}"


def test_a_manifest_of_another_step_is_no_good(tmp_path: Path) -> None:
    directory = directory_at(tmp_path / "storage")
    write_checkpoint(directory, 3, tmp_path / "scratch")
    (tmp_path / "storage" / "global_step_3").rename(tmp_path / "storage" / "global_step_4")

    assert "is that of step 3" in directory.look(4).problems[0]


def test_facts_are_the_same_for_what_may_change_and_differ_for_what_may_not() -> None:
    before = facts_of(config(), "t1")

    free = config(
        trainer={"num_warmup_batches": 3, "save_freq": 7},
        rollout={"workers": 5, "max_groups_in_flight": 3},
        sampler={"max_off_policy_threshold": 4},
        store={"storage_units": 3},
        ledger={"lease_s": 1},
    )
    assert compare(before, facts_of(free, "t1"), ()) == ([], [])

    other = config(trainer={"optim": {"lr": 0.5}}, rollout={"n": 2, "temperature": 0.7})
    refusals, notes = compare(before, facts_of(other, "t2"), ())
    assert notes == []
    assert [refusal.split(" ")[0] for refusal in refusals] == [
        "rollout.n",
        "rollout.temperature",
        "tokenizer",
        "trainer.optim.lr",
    ]
    assert "rollout.n is 2, and 8 in the checkpoint: that cannot change" in refusals[0]
    assert "rollout.temperature is 0.7, and 1.0 in the checkpoint: that" in refusals[1]
    assert refusals[3] == (
        "trainer.optim.lr is 0.5, and 1e-06 in the checkpoint: set it back, or accept it with "
        "resume.allow=[configuration]"
    )


def test_a_checkpoint_of_before_temperatures_were_facts_is_gone_on_from() -> None:
    before = facts_of(config(), "t1")
    del before["rollout.temperature"]
    assert compare(before, facts_of(config(rollout={"temperature": 0.7}), "t1"), ()) == ([], [])


def test_how_fast_the_trainer_is_may_change_and_the_end_of_its_rate_is_what_was_meant() -> None:
    before = facts_of(config(), "t1")
    assert before["trainer.optim.lr_min_ratio"] == "1.0"  # as older checkpoints have it
    faster = config(trainer={"micro_batch_size": 2})
    checkpointed = faster.model.model_copy(update={"enable_gradient_checkpointing": True})
    now = facts_of(faster.model_copy(update={"model": checkpointed}), "t1")
    assert compare(before, now, ()) == ([], [])


def test_an_allowance_covers_its_own_differences_and_no_others() -> None:
    before = {"data.train_batch_size": "4", "reward.kind": '"exact_match"', "rollout.n": "8"}
    now = {"data.train_batch_size": "8", "reward.kind": '"positional"', "rollout.n": "4"}

    allowed: list[Allowance] = ["configuration"]
    refusals, notes = compare(before, now, allowed)

    assert [line.split(" ")[0] for line in refusals] == ["data.train_batch_size", "rollout.n"]
    assert notes == [
        'reward.kind is "positional", and "exact_match" in the checkpoint: accepted by resume.allow'
    ]


def test_a_tool_that_does_not_load_the_tokenizer_cannot_miss_it() -> None:
    assert compare({"tokenizer": "t1"}, {}, ()) == ([], [])


def test_a_step_is_of_a_line_s_past_up_to_the_fork() -> None:
    chain = [L0, L1, Lineage(id="l2", parent="l1", fork_step=3)]

    assert [step for step in range(1, 9) if is_on_line("l0", step, [L0])] == list(range(1, 9))
    assert [step for step in range(1, 9) if is_on_line("l0", step, [L0, L1])] == [1, 2, 3, 4, 5]
    assert [step for step in range(1, 9) if is_on_line("l0", step, chain)] == [1, 2, 3]
    assert [step for step in range(1, 9) if is_on_line("l1", step, chain)] == [1, 2, 3]
    assert is_on_line("l2", 100, chain)
    assert not is_on_line("other", 1, chain)


@given(
    complete=st.sets(st.integers(1, 50), min_size=1),
    others=st.sets(st.integers(1, 50)),
    keep=st.integers(1, 6),
)
def test_what_is_removed_is_covered_by_newer_complete_ones(
    complete: set[int], others: set[int], keep: int
) -> None:
    oldest, removed = retained(complete, complete | others, keep=keep)

    left = complete - set(removed)
    assert len(left) == min(keep, len(complete))
    assert oldest == min(left)
    assert all(step < oldest for step in removed)
    assert max(complete) in left


def test_a_damaged_checkpoint_does_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    directory = directory_at(tmp_path / "storage")
    for step in (1, 2, 3, 4):
        write_checkpoint(directory, step, tmp_path / "scratch")
    (tmp_path / "storage" / "global_step_3" / "trainer" / "data").unlink()

    assert kept(directory, 4, keep=2) == (2, [1])


def test_a_failed_snapshot_takes_its_files_and_its_name_along(tmp_path: Path) -> None:
    directory = directory_at(tmp_path / "storage")
    for step in (2, 4):
        write_checkpoint(directory, step, tmp_path / "scratch")
        directory.point_to(step)

    remove_failed(directory, 4, "another snapshot")
    assert directory.latest() == 4
    remove_failed(directory, 4, "snapshot-4")

    assert directory.storage.names() == ["global_step_2", "latest_checkpointed_iteration.txt"]
    assert directory.latest() == 2


def test_only_what_has_no_manifest_is_taken_for_the_rest_of_a_snapshot(tmp_path: Path) -> None:
    directory = directory_at(tmp_path / "storage")
    write_checkpoint(directory, 1, tmp_path / "scratch")
    for step in (2, 3):
        write_checkpoint(directory, step, tmp_path / "scratch", has_manifest=False)
    write_checkpoint(directory, 4, tmp_path / "scratch")
    (tmp_path / "storage" / "global_step_4" / "manifest.json").write_bytes(b"")

    assert remove_given_up(directory, {1: "a", 2: "b", 4: "c", 9: "d"}) == [2]
    assert directory.storage.list_steps() == [4, 3, 1]


@pytest.mark.parametrize(
    ("keep", "left"), [(None, [2, 3, 6, 7]), (2, [3, 6, 7]), (1, [3, 7]), (0, [3])]
)
def test_the_newest_checkpoints_that_were_left_behind_are_kept_and_those_of_the_line(
    tmp_path: Path, keep: int | None, left: list[int]
) -> None:
    directory = directory_at(tmp_path / "storage")
    for step, line in ((2, "old"), (3, "l0"), (6, "l0"), (7, "old")):  # l1 forked after step 5
        lineages = [Lineage(id=line)]
        write_checkpoint(directory, step, tmp_path / "scratch", lineages=lineages)
        directory.move_aside(directory.look(step), line)
    write_checkpoint(directory, 8, tmp_path / "scratch", has_manifest=False)
    directory.move_aside(directory.look(8), "torn")
    write_checkpoint(directory, 6, tmp_path / "scratch", lineages=[L0, L1])

    removed = remove_abandoned(directory, 6, keep=keep)

    there = [found.step for found in directory.find_abandoned()]
    assert sorted(there) == (left if keep is not None else [*left, 8])
    assert len(removed) == 5 - len(there)
    assert directory.storage.list_steps() == [6]
    if keep == 0:
        assert directory.storage.names("abandoned") == ["l0"], "no empty directories"
