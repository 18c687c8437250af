"""The metrics of a run that went back tell one story."""

from __future__ import annotations

import json
import math
from pathlib import Path

from headrace.trainer.recorder import Recorder, packed_lines, rewind, unpacked


def record(file: Path, *steps: int, value: float = 0.0) -> None:
    recorder = Recorder(file, None)
    for step in steps:
        recorder.write(step, {"reward": step + value})
    recorder.close()


def steps_in(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_steps_after_the_checkpoint_are_left_behind_and_none_is_there_twice(
    tmp_path: Path,
) -> None:
    file = tmp_path / "metrics.jsonl"
    record(file, 1, 2)
    packed = packed_lines(file, 2)
    record(file, 3, 4)

    assert rewind(file, unpacked(packed)) == [(1, {"reward": 1.0}), (2, {"reward": 2.0})]
    record(file, 3, value=0.5)

    assert steps_in(file) == [1, 2, 3]
    assert steps_in(tmp_path / "metrics.abandoned.jsonl") == [3, 4]


def test_another_machine_gets_the_lines_of_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    record(tmp_path / "metrics.jsonl", 1, 2, 3)
    elsewhere = tmp_path / "elsewhere" / "metrics.jsonl"
    rewind(elsewhere, unpacked(packed_lines(tmp_path / "metrics.jsonl", 2)))
    assert steps_in(elsewhere) == [1, 2]


def test_a_run_that_goes_back_to_its_beginning_has_no_lines(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    record(file, 1, 2)
    assert rewind(file, []) == []
    assert file.read_text() == ""
    assert rewind(file, []) == []
    assert steps_in(tmp_path / "metrics.abandoned.jsonl") == [1, 2]


def test_a_line_that_a_kill_cut_short_is_none(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    record(file, 1, 2)
    with file.open("a") as torn:
        torn.write('{"step": 3, "rew')
    packed = packed_lines(file, 3)
    assert [step for step, _ in rewind(file, unpacked(packed))] == [1, 2]
    assert steps_in(file) == [1, 2]


def test_a_first_line_that_a_kill_cut_short_is_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "rew')
    assert rewind(file, []) == []
    record(file, 1)
    assert steps_in(file) == [1]
    assert unpacked(packed_lines(file, 1))


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    record(file, 1, value=math.nan)
    [(_, metrics)] = rewind(file, unpacked(packed_lines(file, 1)))
    assert math.isnan(metrics["reward"])
