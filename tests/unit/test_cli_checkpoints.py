"""`headrace checkpoints`, `checkpoints verify`, `resume --plan` and `snapshot` where nothing runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from checkpoint_files import L0, L1, flip_a_byte, write_checkpoint
from typer.testing import CliRunner, Result

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.storage import Storage
from headrace.cli.main import app


def headrace(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a configuration, and no journal."""
    directory = tmp_path / "run"
    directory.mkdir()
    config = {
        "run": {"run_dir": str(tmp_path / "where-it-was"), "run_id": "r"},
        "data": {
            "source": {"kind": "jsonl", "path": "rows.jsonl"},
            "train_batch_size": 4,
            "max_prompt_length": 8,
            "max_response_length": 8,
        },
        "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "0123456789>", "eos": "#"}},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return directory


@pytest.fixture
def checkpoints(run: Path) -> CheckpointDirectory:
    return CheckpointDirectory(Storage(str(run / "checkpoints")))


def write(checkpoints: CheckpointDirectory, tmp_path: Path, *steps: int) -> None:
    for step in steps:
        write_checkpoint(checkpoints, step, tmp_path / "scratch", lineages=[L0, L1])
        checkpoints.point_to(step)


def file_of(run: Path, step: int, name: str) -> Path:
    return run / "checkpoints" / f"global_step_{step}" / name


def test_checkpoints_are_listed_with_what_is_wrong(
    run: Path, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    write(checkpoints, tmp_path, 2, 4, 6, 8)
    file_of(run, 4, "trainer/data").unlink()
    checkpoints.move_aside(checkpoints.look(8), "l7")
    checkpoints.point_to(6)

    result = headrace("checkpoints", "--run", str(run))

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["6", "4", "2", "8"]
    assert lines[1].endswith("valid, latest")
    assert lines[2].endswith("DAMAGED")
    assert lines[3].endswith("valid")
    assert lines[4].endswith("valid, abandoned")
    assert "l1" in lines[1]
    assert "12 finished" in lines[1]
    assert lines[5].startswith("step 4: file://")
    assert lines[5].endswith("trainer/data is missing")

    by_url = headrace("checkpoints", "--storage", (run / "checkpoints").as_uri())
    assert by_url.output == result.output
    as_json = json.loads(headrace("checkpoints", "--run", str(run), "--json").output)
    assert as_json["checkpoints"][0]["is_latest"] is True


def test_a_run_without_checkpoints_says_so(run: Path) -> None:
    assert headrace("checkpoints", "--run", str(run)).output == "no checkpoints\n"


@pytest.mark.parametrize("by_url", [False, True])
def test_every_damaged_file_is_named_and_the_exit_code_says_it(
    run: Path, checkpoints: CheckpointDirectory, tmp_path: Path, by_url: bool
) -> None:
    write(checkpoints, tmp_path, 2, 4)
    place = run / "checkpoints"
    where = place.as_uri() if by_url else str(place)

    whole = headrace("checkpoints", "verify", where)
    assert whole.exit_code == 0
    assert [line.partition(":")[0] for line in whole.output.splitlines()] == ["valid", "valid"]

    flip_a_byte(file_of(run, 4, "ledger.pb"))
    file_of(run, 4, "transfer_queue/data").write_bytes(b"")
    damaged = headrace("checkpoints", "verify", where)
    assert damaged.exit_code == 1
    assert "ledger.pb: SHA-256 is" in damaged.stderr
    assert "transfer_queue/data: 0 bytes, 10 are expected" in damaged.stderr
    assert "valid: " in damaged.stdout

    assert headrace("checkpoints", "verify", f"{where}/global_step_2").exit_code == 0
    assert headrace("checkpoints", "verify", f"{where}/global_step_4").exit_code == 1


def test_a_place_where_nothing_lies_is_a_mistake(tmp_path: Path) -> None:
    result = headrace("checkpoints", "verify", str(tmp_path / "nowhere"))

    assert result.exit_code == 2
    assert "there is nothing at" in result.stderr


def test_checking_needs_no_torch_and_no_service(
    run: Path, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    write(checkpoints, tmp_path, 2)
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from headrace.cli.main import app\n"
        "done = CliRunner().invoke(app, ['checkpoints', 'verify', sys.argv[1]])\n"
        "assert done.exit_code == 0, done.output\n"
        "print(*sorted({'torch', 'transfer_queue', 'transformers'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(run / "checkpoints")], capture_output=True, text=True
    )

    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_a_plan_is_made_without_any_process(
    run: Path, checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    nothing = headrace("resume", "--plan", "--run", str(run))
    assert nothing.exit_code == 0, nothing.output
    assert "begin: there is nothing to go on from" in nothing.output

    write(checkpoints, tmp_path, 2, 4)
    facts = {"rollout.n": "8"}
    write_checkpoint(checkpoints, 2, tmp_path / "scratch", lineages=[L0, L1], facts=facts)
    flip_a_byte(file_of(run, 4, "ledger.pb"))
    differs = headrace("resume", "--plan", "--run", str(run))
    assert differs.exit_code == 2
    assert "data.train_batch_size is 4, and not set in the checkpoint" in differs.stderr

    file_of(run, 2, "manifest.json").write_bytes(b"")
    refused = headrace("resume", "--plan", "--run", str(run))
    assert refused.exit_code == 3
    assert "global_step_2/manifest.json is empty" in refused.stderr
    assert "global_step_4/ledger.pb: SHA-256" in refused.stderr


def test_only_a_live_run_can_be_saved(run: Path) -> None:
    result = headrace("snapshot", "--run", str(run))

    assert result.exit_code == 2
    assert result.stderr == f"error: {run}: the trainer is not running\n"
