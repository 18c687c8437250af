"""`headrace run` from the outside: how it ends, what it leaves, what it says."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from launched import headrace, launched
from scene import small_config

PROCESSES = ("replay", "store", "feeder", "checkpoint", "trainer", "worker-0")
HOLDS = "holds: every prompt is accounted for"
MODEL = {
    "options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16},
}
ENDLESS = 2000
"""Steps of a run that is to be under way however long other commands take."""

pytestmark = pytest.mark.timeout(240)


def trained_config(directory: Path, *, steps: int, **sections: Any) -> dict[str, Any]:
    """Scripted responses, and a tiny model that is really trained on them."""
    return small_config(
        directory,
        model=MODEL,
        trainer={"total_training_steps": steps, "threads": 1, "optim": {"lr": 1e-3}},
        **sections,
    )


def test_a_run_ends_with_a_summary_and_answers_questions_afterwards(tmp_path: Path) -> None:
    with launched(tmp_path, trained_config(tmp_path, steps=6)) as run:
        code, output = run.ended(within_s=180)
        assert code == 0, output
        assert run.left() == []
    assert "6 of 6" in output
    assert HOLDS in output
    assert "24 trained" in output
    assert "Traceback" not in output

    where_from = ("--run", str(run.run))
    audit = headrace(tmp_path, "audit", *where_from)
    assert audit.returncode == 0, audit.stderr
    status = headrace(tmp_path, "status", *where_from, "--json")
    counts = json.loads(status.stdout)["counts"]
    assert (counts["fed"], counts["trained"]) == ("24", "24")
    listed = json.loads(headrace(tmp_path, "prompts", *where_from, "--json").stdout)["groups"]
    uid = listed[0]["uid"]
    history = json.loads(headrace(tmp_path, "where", uid, *where_from, "--json").stdout)["history"]
    names = [event["name"] for event in history]
    assert names[0] == "prompts_registered"
    assert names[-1] == "step_committed"


@pytest.mark.chaos
def test_a_run_survives_a_kill_of_each_service_and_of_a_worker(tmp_path: Path) -> None:
    engine = {"engine": {"mean_latency_s": 0.2}}
    config = trained_config(tmp_path, steps=24, rollout=engine)
    with launched(tmp_path, config) as run:
        for number, victim in enumerate(("replay", "feeder", "worker-0", "store")):
            run.until(lambda least=2 + 5 * number: run.steps >= least)  # type: ignore[misc]
            run.kill(victim)
        code, output = run.ended(within_s=150)
        assert code == 0, output
        assert run.left() == []
    assert "24 of 24" in output
    assert HOLDS in output
    assert "96 trained" in output
    for victim in ("replay", "feeder", "worker-0", "store"):
        assert f"{victim} died (killed by SIGKILL); started again" in output
    assert headrace(tmp_path, "audit", "--run", str(run.run)).returncode == 0


@pytest.mark.chaos
def test_without_checkpoints_a_killed_trainer_ends_the_run_with_its_own_exit_code(
    tmp_path: Path,
) -> None:
    config = trained_config(tmp_path, steps=90)
    config["trainer"]["save_freq"] = -1
    with launched(tmp_path, config) as run:
        run.until(lambda: run.steps >= 1)
        run.kill("trainer")
        code, output = run.ended(within_s=60)
        assert code == 4, output
        assert run.left() == []
    assert "trainer died (killed by SIGKILL)" in output
    assert HOLDS in output
    assert "Traceback" not in output
    again = headrace(tmp_path, "run", "config.yaml")
    assert_one_line(again.returncode, again.stderr, "without checkpoints (trainer.save_freq = -1)")


@pytest.mark.chaos
def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    with launched(tmp_path, trained_config(tmp_path, steps=90)) as run:
        run.until_all_announced(PROCESSES)
        run.process.kill()
        run.process.wait()
        assert run.left() == []


def test_ctrl_c_stops_a_run_and_its_directory_is_nobody_elses_before(tmp_path: Path) -> None:
    with launched(tmp_path, trained_config(tmp_path, steps=ENDLESS, rows=4 * ENDLESS)) as run:
        run.until_all_announced(PROCESSES)
        second = headrace(tmp_path, "run", "config.yaml")
        assert_one_line(second.returncode, second.stderr, f"{run.run} is in use by another run")
        os.kill(run.process.pid, signal.SIGINT)
        code, output = run.ended(within_s=60)
        assert code == 130, output
        assert run.left() == []
    assert "interrupted" in output
    assert HOLDS in output
    assert "Traceback" not in output


def test_a_run_is_steered_by_an_address_and_what_it_leaves_is_told_apart(tmp_path: Path) -> None:
    workers = {"workers": 2, "engine": {"mean_latency_s": 0.2}}
    config = trained_config(tmp_path, steps=ENDLESS, rows=4 * ENDLESS, rollout=workers)
    with launched(tmp_path, config) as run:
        run.until(lambda: run.steps >= 1)
        announced = json.loads((run.run / "endpoints" / "replay.json").read_text())
        at = ("--replay", announced["address"])
        saved = headrace(tmp_path, "snapshot", *at)
        home = headrace(tmp_path, "drain", "worker-1", *at)
        run.until(lambda: "worker-1 went home" in run.output.read_text())
        run.until(lambda: not (run.run / "endpoints" / "worker-1.json").exists())
        os.kill(run.process.pid, signal.SIGINT)
        code, output = run.ended(within_s=60)
        assert code == 130, output
    assert saved.returncode == 0, saved.stderr
    assert saved.stdout.splitlines()[-1].endswith(" is saved")
    assert home.stdout.startswith("worker-1 goes home"), home.stderr
    assert list((run.run / "endpoints").iterdir()) == []

    fewer = headrace(tmp_path, "run", "config.yaml", "trainer.total_training_steps=1")
    assert_one_line(fewer.returncode, fewer.stderr, "trainer.total_training_steps: 1 is fewer than")
    other = headrace(tmp_path, "run", "config.yaml", "--plain", "data.source.options.seed=2")
    assert other.returncode == 2
    said = other.stdout.splitlines()
    assert [line for line in said if line.startswith(("balance", "the whole run"))] == []
    assert said[-1].startswith("error: data: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["run", "config.yaml", "rollout.nn=3"], "rollout.nn"),
        (["run", "config.yaml", "data.source={kind: jsonl, path: no.jsonl}"], "no.jsonl"),
        (["run", "config.yaml", "run.run_dir=config.yaml"], "config.yaml cannot be made"),
        (["run", "config.yaml", "run.run_dir=/proc/nobody/run"], "/proc/nobody/run cannot be made"),
        (["run", "config.yaml", "data.source.options.size=3"], "4"),
        (["status", "--run", "nowhere"], "is not a run directory"),
        (["audit", "--replay", "127.0.0.1:1"], "no replay buffer listens"),
        (["train", "config.yaml"], "endpoints.replay"),
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, words: list[str], says: str) -> None:
    write(tmp_path)
    done = headrace(tmp_path, *words)
    assert_one_line(done.returncode, done.stderr, says)
    assert not (tmp_path / "run" / "journal").exists()


def test_an_occupied_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    write(tmp_path)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = headrace(tmp_path, "serve", "replay", "config.yaml", "--port", port)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert_one_line(done.returncode, "\n".join(lines), port)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_directory_without_permission_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "run").mkdir(mode=0o500)
    done = headrace(tmp_path, "run", "config.yaml")
    assert_one_line(done.returncode, done.stderr, "cannot be written")


def write(directory: Path) -> None:
    text = json.dumps(trained_config(directory, steps=6))  # JSON is YAML
    (directory / "config.yaml").write_text(text)


def assert_one_line(code: int, stderr: str, says: str) -> None:
    assert code == 2, stderr
    [line] = stderr.splitlines()
    assert line.startswith("error: "), line
    assert says in line
