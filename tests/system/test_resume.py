"""`headrace run` that goes on: after Ctrl-C, after a crash of anything, and when it is finished."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from launched import Launched, headrace, launched
from scene import small_config

from headrace.client import connect
from headrace.errors import UsageError

HOLDS = "holds: every prompt is accounted for"
MODEL = {"options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16}}
END_S = 180.0

pytestmark = pytest.mark.timeout(400)


def saved_config(directory: Path, *, steps: int, save_freq: int = 2, **sections: Any) -> Any:
    """Scripted responses, a tiny model that is really trained on them, and checkpoints."""
    training = {
        "total_training_steps": steps,
        "save_freq": save_freq,
        "threads": 1,
        "optim": {"lr": 1e-3},
        "tensorboard": False,
    }
    engine = {"engine": {"mean_latency_s": 0.1}}
    return small_config(directory, model=MODEL, rollout=engine, trainer=training, **sections)


def status(run: Launched) -> dict[str, Any]:
    """Ask the run's replay buffer, or its journal."""
    told = headrace(run.directory, "status", "--run", str(run.run), "--json")
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def checkpoints(run: Launched) -> list[int]:
    """Name the checkpoints that are complete."""
    manifests = (run.run / "checkpoints").glob("global_step_*/manifest.json")
    return sorted(int(file.parent.name.rpartition("_")[2]) for file in manifests)


def interrupt(run: Launched) -> str:
    os.kill(run.process.pid, signal.SIGINT)
    code, output = run.ended(END_S)
    assert code == 130, output
    assert run.left() == []
    return output


def test_ctrl_c_and_the_same_command_go_on_until_it_is_finished(tmp_path: Path) -> None:
    config = saved_config(tmp_path, steps=24)
    with launched(tmp_path, config) as run:
        run.until(lambda: run.steps >= 3)
        output = interrupt(run)
        step = int(status(run)["committed_step"])
    assert "the trainer saves its step first" in output
    assert checkpoints(run)[-1] == step, "what was committed is saved"

    with launched(tmp_path, config) as run:
        code, output = run.ended(END_S)
        assert code == 0, output
        assert run.left() == []
    assert f"going on with {run.run}: step {step} of 24, checkpoint {step}" in output
    assert f"resumed from step {step}:" in output
    assert "24 of 24" in output
    assert HOLDS in output
    assert "96 trained" in output
    assert "Traceback" not in output
    assert run.steps == 24, "each step's metrics are there once"
    assert checkpoints(run)[-1] == 24

    before = (run.run / "config.yaml").stat().st_mtime_ns
    third = headrace(tmp_path, "run", "config.yaml")
    assert (third.returncode, third.stderr) == (0, "")
    [line] = third.stdout.splitlines()
    assert line.startswith(f"{run.run} is finished: 24 of 24 steps")
    assert "run.name=NAME" in line
    assert (run.run / "config.yaml").stat().st_mtime_ns == before, "nothing was started"


def test_a_run_whose_data_have_ended_goes_on_with_another_epoch(tmp_path: Path) -> None:
    config = saved_config(tmp_path, steps=8, rows=16)
    with launched(tmp_path, config) as run:
        code, output = run.ended(END_S)
        assert code == 0, output
        assert "4 of 4" in output

    more = {**config["trainer"], "total_epochs": 2}
    back = {"mode": "path", "path": str(run.run / "checkpoints" / "global_step_4")}
    with launched(tmp_path, {**config, "trainer": more, "resume": back}) as run:
        code, output = run.ended(END_S)
        assert code == 0, output
    assert "resumed from step 4:" in output
    assert "8 of 8" in output
    assert "32 trained" in output
    assert HOLDS in output
    assert run.steps == 8


def test_a_finished_run_goes_back_and_on_once_and_begins_again_once(tmp_path: Path) -> None:
    config = saved_config(tmp_path, steps=6)
    with launched(tmp_path, config) as run:
        code, output = run.ended(END_S)
        assert code == 0, output

    step = checkpoints(run)[-2]
    path = run.run / "checkpoints" / f"global_step_{step}"
    back: dict[str, Any] = {"mode": "path", "path": str(path)}
    longer = {**config, "trainer": {**config["trainer"], "total_training_steps": 8}}
    with launched(tmp_path, {**longer, "resume": back}) as run:
        code, output = run.ended(END_S)
        assert code == 0, output
    assert "step 6 of 6, checkpoint 6; it was finished, and goes back (resume.mode" in output
    assert f"resumed from step {step}:" in output
    assert "8 of 8" in output
    assert "32 trained" in output
    assert HOLDS in output
    assert run.steps == 8
    again = headrace(tmp_path, "run", "config.yaml")
    assert (again.returncode, again.stderr) == (0, "")
    assert f"{run.run} is finished: 8 of 8 steps" in again.stdout

    left = ", ".join(map(str, reversed(checkpoints(run))))
    anew = {"mode": "disable", "allow": ["new_lineage"]}
    with launched(tmp_path, {**config, "resume": anew}) as run:
        code, output = run.ended(END_S)
        assert code == 0, output
    assert "6 of 6" in output
    assert "24 trained" in output
    assert HOLDS in output
    assert "step 8 of 8, checkpoint 8; all of that is left behind, it begins again" in output
    log = (run.run / "logs" / "trainer.log").read_text()
    assert "8 trained steps, " in log
    assert f"the checkpoints (of steps: {left}), which are moved aside" in log
    assert len(status(run)["lineages"]) == 3
    assert checkpoints(run)[-1] == 6


@pytest.mark.chaos
def test_a_killed_trainer_goes_back_to_the_newest_checkpoint_and_on(tmp_path: Path) -> None:
    with launched(tmp_path, saved_config(tmp_path, steps=24, save_freq=3)) as run:
        run.until(lambda: bool(checkpoints(run)) and run.steps >= 4)
        run.kill("trainer")
        run.until(lambda: "resumed from step" in run.output.read_text())
        run.until(lambda: run.steps >= 10)
        run.kill("trainer")
        run.kill("checkpoint")
        code, output = run.ended(END_S)
        assert code == 0, output
        assert run.left() == []
    assert output.count("trainer died (killed by SIGKILL); started again") == 2
    assert output.count("\nresumed from step") == 2
    assert HOLDS in output
    assert "96 trained" in output
    assert len(status(run)["lineages"]) == 3


@pytest.mark.chaos
def test_everything_is_killed_and_the_same_command_goes_on(tmp_path: Path) -> None:
    config = saved_config(tmp_path, steps=20, save_freq=3)
    with launched(tmp_path, config) as run:
        run.until(lambda: bool(checkpoints(run)) and run.steps >= 5)
        run.process.kill()
        run.process.wait()
        assert run.left() == []

    config["rollout"]["workers"] = 2
    with launched(tmp_path, config) as run:
        code, output = run.ended(END_S)
        assert code == 0, output
    assert "80 trained" in output
    assert HOLDS in output


def test_what_may_not_change_is_refused_with_both_sides(tmp_path: Path) -> None:
    config = saved_config(tmp_path, steps=30)
    with launched(tmp_path, config) as run:
        run.until(lambda: run.steps >= 2)
        interrupt(run)
    step = status(run)["committed_step"]

    for section, key, value, says in (
        ("data", "seed", 7, "is not what this run was started with (offered: 400 rows"),
        ("rollout", "n", 3, "rollout.n = 2, now it is 3"),
        ("reward", "kind", "exact_match", "reward"),
    ):
        changed = config | {section: config[section] | {key: value}}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(changed))
        done = headrace(tmp_path, "run", "config.yaml", timeout_s=END_S)
        assert done.returncode == 2, done.stdout + done.stderr
        assert says in done.stdout, done.stdout
    assert status(run)["committed_step"] == step


def test_when_every_checkpoint_is_damaged_the_run_says_which_and_exits_with_3(
    tmp_path: Path,
) -> None:
    config = saved_config(tmp_path, steps=30)
    with launched(tmp_path, config) as run:
        run.until(lambda: len(checkpoints(run)) >= 2)
        interrupt(run)
    saved = checkpoints(run)
    for step in saved:
        (run.run / "checkpoints" / f"global_step_{step}" / "manifest.json").write_text("{")

    done = headrace(tmp_path, "run", "config.yaml", timeout_s=END_S)

    assert done.returncode == 3, done.stdout + done.stderr
    for step in saved:
        assert f"global_step_{step}" in done.stdout
    assert "Traceback" not in done.stdout


def client_looks(run: Launched) -> None:
    """Go through what a notebook has of checkpoints, on a run under way."""
    seen = connect(run.run)
    step = seen.snapshot(wait_s=END_S)
    table = seen.checkpoints(verify=True)
    assert step in set(table.step)
    assert list(table.problem) == [""] * len(table)
    assert list(table[table.latest].step) == [max(table.step)]
    assert (table.size_bytes > 0).all()
    assert not table.abandoned.any()
    assert seen.last_resume() is None

    run.kill("trainer")
    run.until(lambda: "resumed from step" in run.output.read_text())
    resume = seen.last_resume()
    assert resume is not None
    assert resume.done
    assert resume.step >= step
    assert resume.lineage in resume._repr_html_()
    assert list(resume.phases)[-1] == "warmup"
    assert f"resumed from step {resume.step}:" in str(resume)
    assert "checkpoint" in str(seen.status())


async def test_a_notebook_has_checkpoints_made_and_lists_them_in_a_run_and_after_it(
    tmp_path: Path,
) -> None:
    with launched(tmp_path, saved_config(tmp_path, steps=400, save_freq=100)) as run:
        run.until(lambda: run.steps >= 2)
        await asyncio.to_thread(client_looks, run)
        interrupt(run)
    left = checkpoints(run)

    seen = connect(run.run)
    table = seen.checkpoints(verify=True)
    assert sorted(table[~table.abandoned].step) == left
    assert list(table[table.latest].step) == [left[-1]]
    resume = seen.last_resume()
    assert resume is not None
    assert list(resume.phases) == ["plan", "store", "ledger", "weights", "reissue", "warmup"]
    with pytest.raises(UsageError):
        seen.snapshot()
