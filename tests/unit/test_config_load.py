"""Reading the configuration: what is accepted, and what is said about what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.config import Config
from headrace.config.load import FILE_PATHS, WORKING_PATHS, dump_config, load_config
from headrace.config.schema import NAME, alternatives, fields
from headrace.errors import UsageError

MINIMAL = """
data:
  source: {kind: jsonl, path: rows.jsonl}
  train_batch_size: 4
model:
  architecture: gpt2
  tokenizer: {alphabet: "abc", eos: ";"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL)
    return path


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as refused:
        load_config(path, overrides)
    return str(refused.value)


def test_overrides_are_yaml_values_and_the_last_one_wins(file: Path) -> None:
    config = load_config(
        file, ["trainer.optim.lr=1e-3", "run.name=a", "run.name=b", "model.options={n_embd: 8}"]
    )

    assert config.trainer.optim.lr == 1e-3
    assert config.run.name == "b"
    assert config.model.options == {"n_embd": 8}


def test_numbers_in_free_options_are_numbers(file: Path) -> None:
    config = load_config(file, ["model.options={a: 1e-3, b: 0x10, c: no, d: 12:30, e: 007}"])

    assert config.model.options == {"a": 1e-3, "b": 16, "c": "no", "d": "12:30", "e": 7}


def test_relative_paths_count_from_the_file_and_the_run_directory_from_the_current_folder(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    config = load_config(
        file, ["run.run_dir=here", "model.tokenizer=tok", "weights.dir=/w", "model.seed=1"]
    )

    assert config.data.source.model_dump()["path"] == tmp_path / "rows.jsonl"
    assert config.model.tokenizer == tmp_path / "tok"
    assert config.weights.dir == Path("/w")
    assert config.run.run_dir == elsewhere / "here"


def test_what_a_run_makes_and_goes_on_from_counts_from_the_current_folder_unless_it_is_a_url(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    at = ["checkpoint.storage=saved", "resume.mode=path", "resume.path=saved/global_step_2"]

    config = load_config(file, at)
    assert config.checkpoint.storage == str(elsewhere / "saved")
    assert config.resume.path == "saved/global_step_2", "what is wished is named by it"

    assert load_config(file, ["checkpoint.storage=s3://b/r"]).checkpoint.storage == "s3://b/r"


def test_of_every_path_it_is_known_from_where_it_counts() -> None:
    paths = {key for key, field in fields(Config) if Path in alternatives(field.annotation)}

    assert "journal.redis_password_file" in paths
    assert {key.replace(NAME, "*") for key in paths} <= {*FILE_PATHS, *WORKING_PATHS}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["rollout.gpus=[1]", "rollout.workers=2"], "need 2 different ones"),
        (["rollout.gpus=[1, 1]", "rollout.workers=2"], "need 2 different ones"),
        (
            ["rollout.engine={kind: vllm, tensor_parallel_size: 2}", "rollout.gpus=[1, 2, 3]"],
            "rollout.workers = 1 with 2 each need 2",
        ),
        (["rollout.engine={kind: scripted}", "rollout.gpus=[1]"], "kind = scripted use no GPU"),
        (
            ["rollout.engine={kind: torch, device: cuda:1}", "rollout.gpus=[1]"],
            "device = cuda:1: with rollout.gpus",
        ),
        (["rollout.gpus=[0]"], "trainer.device = auto is GPU 0, which rollout.gpus gives"),
    ],
)
def test_gpus_that_cannot_be_dealt_out_are_refused(
    file: Path, overrides: list[str], says: str
) -> None:
    assert says in complaint(file, *overrides)


def test_a_gpu_is_shared_with_the_trainer_by_name(file: Path) -> None:
    assert load_config(file, ["rollout.gpus=[0]", "trainer.device=cuda:0"]).rollout.gpus == (0,)


def test_what_is_dumped_is_read_back_the_same(file: Path, tmp_path: Path) -> None:
    config = load_config(file, ["model.tokenizer.alphabet='0123~'", "trainer.optim.lr=1e-6"])
    copy = tmp_path / "elsewhere.yaml"
    copy.write_text(dump_config(config))

    assert load_config(copy) == config


def test_a_section_with_nothing_in_it_has_its_defaults(file: Path) -> None:
    file.write_text(MINIMAL + "rollout:\n  # n: 4\n")

    assert load_config(file).rollout == Config.model_fields["rollout"].default


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.optim.lrr=1", "trainer.optim.lrr: unknown key; did you mean trainer.optim.lr?"),
        ("trainer.lr=1", "trainer.lr: unknown key; did you mean trainer.optim.lr?"),
        ("trainr.optim.lr=1", "trainr.optim.lr: unknown key; did you mean trainer.optim.lr?"),
        (
            "train_batch_size=1",
            "train_batch_size: unknown key; did you mean data.train_batch_size?",
        ),
        ("zzzz=1", "zzzz: unknown key"),
    ],
)
def test_an_unknown_key_is_named_in_full_with_a_suggestion(
    file: Path, override: str, line: str
) -> None:
    assert complaint(file, override) == f"command line: {line}"


def test_an_unknown_key_in_the_file_names_the_file(file: Path) -> None:
    file.write_text(MINIMAL + "trainer:\n  total_epoch: 2\n")

    assert complaint(file) == (
        f"{file}: trainer.total_epoch: unknown key; did you mean trainer.total_epochs?"
    )


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("rollout.n=0", "rollout.n = 0: should be greater than or equal to 1"),
        ("rollout.n=x", "rollout.n = 'x': should be a valid integer, unable to parse"),
        ("trainer.trainer_mode=s", "trainer.trainer_mode = 's': should be 'sync' or 'separate"),
        ("data.source.kind=csv", "data.source.kind = 'csv': should be 'jsonl' or 'parquet'"),
        (
            "rollout.engine={threads: 1}",
            "rollout.engine.kind: is required (torch | scripted | vllm | vllm_server)",
        ),
        ("model.tokenizer=5", "model.tokenizer = 5: should be a path"),
        ("model.tokenizer.eos=ab", "model.tokenizer.eos = 'ab': should have at most 1 character"),
        ("reward=5", "reward = 5: should be a mapping of keys to values"),
        ("data.train_batch_size=", "data.train_batch_size = null: should be a valid integer"),
    ],
)
def test_a_wrong_value_is_shown_with_its_key_and_what_it_should_be(
    file: Path, override: str, text: str
) -> None:
    assert complaint(file, override).startswith(f"command line: {text}")


def test_only_the_member_of_a_union_that_was_meant_is_talked_about(file: Path) -> None:
    assert complaint(file, "model.tokenizer={alphabet: ab}") == (
        "command line: model.tokenizer.eos: is required (The stop character)"
    )


def test_a_key_of_another_kind_is_told_apart_from_an_unknown_one(file: Path) -> None:
    file.write_text(MINIMAL + "rollout:\n  engine: {kind: torch, threads: 1}\n")

    assert complaint(file, "rollout.engine.kind=scripted") == (
        f"{file}: rollout.engine.threads: is no key of kind scripted; "
        "to change the kind, give rollout.engine as a whole"
    )


def test_everything_that_is_wrong_is_said_at_once_a_line_each(file: Path) -> None:
    lines = complaint(file, "rollout.n=0", "run.nam=x", "sampler.basis=q").splitlines()

    assert [line.split()[2].rstrip(":") for line in lines] == [
        "run.nam",
        "rollout.n",
        "sampler.basis",
    ]


def test_checks_across_sections_come_through(file: Path) -> None:
    text = complaint(file, "trainer.parameter_sync_step=3")

    assert text.startswith(f"{file}: data.train_batch_size = 4 must be a multiple of trainer.par")


def test_a_missing_section_is_named(file: Path) -> None:
    file.write_text("data:\n  source: {kind: jsonl, path: a}\n")

    assert complaint(file).splitlines() == [
        f"{file}: data.train_batch_size: is required (Prompt groups per step (B))",
        f"{file}: model: is required (The policy and its tokenizer)",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1", ", line 1: not valid YAML: expected ',' or ']'"),
        ("a: 1\nb: 2\na: 3\n", ", line 3: not valid YAML: 'a' is given twice"),
        ("- a\n- b\n", ": should be a mapping of sections, is a list"),
        ("just text", ": should be a mapping of sections, is a text"),
    ],
)
def test_a_file_that_is_no_configuration_says_why(file: Path, text: str, reason: str) -> None:
    file.write_text(text)

    assert complaint(file).startswith(f"{file}{reason}")


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert complaint(tmp_path / "no.yaml") == f"{tmp_path}/no.yaml: no such file"
    assert complaint(tmp_path).startswith(f"{tmp_path}: is a directory")


@pytest.mark.parametrize("override", ["foo", "=1", "a..b=1", "a b=1"])
def test_an_override_without_key_and_value_is_refused(file: Path, override: str) -> None:
    assert complaint(file, override).startswith(f"{override!r} is not an override")


def test_an_override_cannot_go_below_a_plain_value(file: Path) -> None:
    assert "model.architecture is 'gpt2'" in complaint(file, "model.architecture.x=1")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("reward={kind: http}", "reward.kind = http needs reward.url: http://host:port/path"),
        ("reward={kind: http, url: judge:9000}", "reward.url = 'judge:9000': "),
        ("reward={function: 'mine:score'}", "reward.function is for reward.kind = python only"),
        ("reward={answer_tag: x}", "reward.answer_tag is for reward.kind = reasoning_gym only"),
        ("reward={url: 'http://judge:9000'}", "reward.url is for reward.kind = http only"),
    ],
)
def test_a_reward_and_its_kind_belong_together(file: Path, override: str, said: str) -> None:
    assert said in complaint(file, override)


def test_a_model_with_too_few_positions_is_refused_before_it_is_built(file: Path) -> None:
    need = "= 1024 is more than model.options.n_positions = 1000: lower them, or raise it"
    assert need in complaint(file, "model.options={n_positions: 1000}")
    load_config(file, ["model.options={n_positions: 1024}"])


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://judge:9000/score", True),
        ("https://judge:9000/score", False),
        ("http://127.0.0.1:9000/score", False),
    ],
)
def test_a_token_that_others_can_read_is_warned_about(file: Path, url: str, warns: bool) -> None:
    config = load_config(file, [f"reward={{kind: http, url: '{url}', http: {{token_file: t}}}}"])

    assert any("can be read by everybody" in line for line in config.warnings()) is warns
    assert config.reward.http.token_file == file.parent / "t"


@pytest.mark.parametrize(("kind", "warns"), [("torch", True), ("vllm", False)])
def test_a_transport_that_an_engine_does_not_have_is_warned_about(
    file: Path, kind: str, warns: bool
) -> None:
    config = load_config(file, ["weights.transport=nccl", f"rollout.engine={{kind: {kind}}}"])

    said = [line for line in config.warnings() if line.startswith("weights.transport = nccl")]
    assert bool(said) is warns
    assert all("(it is torch): workers get weights as with grpc" in line for line in said)


SYNC = ["trainer.trainer_mode=sync", "trainer.num_warmup_batches=0"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([*SYNC, "rollout.partial_rollout=true"], "trainer.trainer_mode = sync trains on one"),
        (["rollout.journal_tokens_every=64"], "set rollout.partial_rollout to true"),
        (["rollout.journal_tokens_every=0"], "should be greater than or equal to 1"),
    ],
)
def test_responses_of_several_versions_are_asked_for_and_for_async_runs(
    file: Path, overrides: list[str], said: str
) -> None:
    assert said in complaint(file, *overrides)


def test_responses_under_way_may_be_journaled_wherever_they_can_go_on(file: Path) -> None:
    load_config(file, [*SYNC, "rollout.journal_tokens_every=64"])
    load_config(file, ["rollout.partial_rollout=true", "rollout.journal_tokens_every=64"])
