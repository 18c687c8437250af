"""The commands as a user types them, as far as nothing is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from headrace.cli.main import app, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "sort_digits.yaml"
COMMANDS = [
    [],
    ["run"],
    ["status"],
    ["where"],
    ["prompts"],
    ["audit"],
    ["worker"],
    ["train"],
    ["serve"],
    ["serve", "replay"],
    ["serve", "feeder"],
    ["serve", "store"],
    ["config"],
    ["config", "show"],
    ["config", "check"],
    ["certs"],
    ["certs", "init"],
]


def headrace(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(words: list[str]) -> None:
    result = headrace(*words, "--help")

    assert result.exit_code == 0
    if words and words not in (["serve"], ["config"], ["certs"]):
        assert "Example" in result.output


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, headrace.cli.main\n"
        "heavy = {'torch', 'transformers', 'grpc', 'pydantic', 'rich.live', 'numpy'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert loaded.stdout.split() == [], loaded.stderr


@pytest.mark.parametrize(("before", "after"), [(None, "ERROR"), ("DEBUG", "DEBUG")])
def test_grpcs_own_log_is_only_errors_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", before or "")  # so that it is restored in the end
    if before is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    monkeypatch.setattr(sys, "argv", ["headrace", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert os.environ["GRPC_VERBOSITY"] == after


def test_config_show_prints_what_a_run_would_use() -> None:
    result = headrace("config", "show", str(EXAMPLE), "rollout.n=4")

    shown = yaml.safe_load(result.output)
    assert shown["rollout"]["n"] == 4
    assert shown["ledger"]["lease_s"] == 60.0


def test_config_check_is_content_with_the_example() -> None:
    result = headrace("config", "check", str(EXAMPLE))

    assert (result.exit_code, result.output) == (0, f"{EXAMPLE}: nothing is wrong\n")


def test_config_check_gives_warnings() -> None:
    result = headrace("config", "check", str(EXAMPLE), "sampler.max_off_policy_threshold=2")

    assert result.exit_code == 0
    assert "warning: sampler.max_off_policy_threshold = 2 leaves no slack" in result.output


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "no.yaml"], "error: no.yaml: no such file"),
        (
            ["run", str(EXAMPLE), "trainer.lr=1"],
            "error: command line: trainer.lr: unknown key; did you mean trainer.optim.lr?",
        ),
        (
            ["config", "check", str(EXAMPLE), "data.source={kind: jsonl, path: /no/rows.jsonl}"],
            "error: data.source.path: cannot read /no/rows.jsonl",
        ),
        (
            ["config", "check", str(EXAMPLE), "reward={kind: python, function: 'no_such:f'}"],
            "error: reward.function: cannot import no_such",
        ),
        (["config", "check", str(EXAMPLE), "model.tokenizer=/no/dir"], "error: "),
        (["serve", "store", str(EXAMPLE)], "error: run.run_dir is missing"),
        (["status", "--replay", "nowhere"], "error: 'nowhere' is not an address"),
        (["status", "--replay", "127.0.0.1:1"], "error: no replay buffer listens on 127.0.0.1:1"),
        (["status", "--run", "/"], "error: / is not a run directory"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(words: list[str], line: str) -> None:
    result = headrace(*words)

    assert result.exit_code == 2
    assert result.output.startswith(line)
    assert len(result.output.splitlines()) == 1


def test_more_steps_than_the_data_are_enough_for_are_warned_about() -> None:
    result = headrace("config", "check", str(EXAMPLE), "trainer.total_training_steps=626")

    assert result.exit_code == 0
    assert (
        "20000 rows x trainer.total_epochs = 1 are enough for 625 steps of 32: "
        "raise trainer.total_epochs to 2" in " ".join(result.output.split())
    )
    result = headrace("config", "check", str(EXAMPLE), "trainer.total_training_steps=625")
    assert "are enough for" not in result.output


def test_a_process_without_its_peers_says_which_it_needs(tmp_path: Path) -> None:
    result = headrace("worker", str(EXAMPLE), f"run.run_dir={tmp_path}")

    assert result.exit_code == 2
    assert "add endpoints.replay=HOST:PORT endpoints.store=HOST:PORT" in result.output


def test_questions_without_any_run_say_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = headrace("audit")

    assert result.exit_code == 2
    assert "--run DIR" in result.output


def test_the_reference_is_printed_by_a_hidden_command() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"

    assert headrace("config", "docs").output == page.read_text()
    assert "docs " not in headrace("config", "--help").output
