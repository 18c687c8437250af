from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.data import DataConfig, JsonlSource, PythonSource
from headrace.errors import UsageError
from headrace.feeder.sources.digits import digit_rows
from headrace.feeder.sources.load import open_source
from headrace.feeder.sources.source import Row, Source

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def jsonl(path: Path, content: str | bytes, **settings: Any) -> DataConfig:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    batch = settings.pop("train_batch_size", 1)
    return DataConfig(
        source=JsonlSource(kind="jsonl", path=path, **settings), train_batch_size=batch
    )


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def python(function: str, batch: int = 1, **options: Any) -> DataConfig:
    source = PythonSource(kind="python", function=function, options=options)
    return DataConfig(source=source, train_batch_size=batch)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's in the current folder, which is not on the path."""
    (tmp_path / "users_rows.py").write_text(
        "import datetime\n"
        "def rows(n, tag='t'):\n"
        "    return [{'prompt': f'{tag}{i}', 'answer': i, 'level': i % 2} for i in range(n)]\n"
        "def raises(): raise KeyError('no such split')\n"
        "def generator(): yield {'prompt': 'a', 'answer': 'b'}\n"
        "def number(): return 3\n"
        "def texts(): return ['a', 'b']\n"
        "def no_answer(): return [{'prompt': 'a', 'anwser': 'b'}]\n"
        "def dates(): return [{'prompt': 'a', 'answer': '', 'day': datetime.date(2026, 1, 1)}]\n"
        "class Damaged:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i):\n"
        "        if i: raise OSError('disk gone')\n"
        "        return {'prompt': 'a', 'answer': 'b'}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "users_rows"
    sys.modules.pop("users_rows", None)


def all_rows(source: Source) -> list[Row]:
    return [source[i] for i in range(len(source))]


def test_a_jsonl_row_is_found_by_index_with_its_other_columns(tmp_path: Path) -> None:
    config = jsonl(
        tmp_path / "words.jsonl",
        lines(
            {"prompt": "a", "answer": "x", "level": 3},
            {"prompt": CHAT, "answer": 42},
            {"prompt": "häß", "answer": None, "data_source": "gsm8k"},
        ),
    )
    source = open_source(config)

    assert len(source) == 3
    assert source[2] == Row("häß", "", "gsm8k", {"data_source": "gsm8k"})
    assert source[0] == Row("a", "x", "words", {"level": 3})
    assert source[1] == Row(CHAT, "42", "words", {})


def test_columns_may_have_other_names_and_answers_may_be_none(tmp_path: Path) -> None:
    config = jsonl(
        tmp_path / "a.jsonl", lines({"q": "a", "prompt": 1}), prompt_key="q", answer_key=None
    )

    assert open_source(config)[0] == Row("a", "", "a", {"prompt": 1})


def test_blank_lines_and_a_missing_last_newline_do_not_matter(tmp_path: Path) -> None:
    text = '{"prompt": "a", "answer": "1"}\r\n\n  \n{"prompt": "b", "answer": "2"}'
    source = open_source(jsonl(tmp_path / "a.jsonl", text))

    assert [row.prompt for row in all_rows(source)] == ["a", "b"]


GOOD = lines({"prompt": "a", "answer": "b"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + "{bad}\n", r"a\.jsonl:2: malformed JSON at column 2"),
        (GOOD + '{"prompt": \n', r"a\.jsonl:2: malformed JSON at column 11: Expecting value"),
        (GOOD + "\n[1, 2]\n", r"a\.jsonl:3: not a JSON object or mapping but list"),
        (GOOD.encode() + b'{"prompt": "\xff"}', r"a\.jsonl:2: not UTF-8 \(byte 12"),
        (GOOD + '{"prompt": "a", "answer": NaN}', r"a\.jsonl:2: malformed JSON: NaN is not JSON"),
        (GOOD + lines({"prompt": "", "answer": ""}), r"a\.jsonl:2: prompt: is empty"),
        (GOOD + lines({"prompt": 3, "answer": ""}), r"a\.jsonl:2: prompt: must be text or a list"),
        (GOOD + lines({"prompt": [], "answer": ""}), r"a\.jsonl:2: prompt: must be text or a list"),
        (
            GOOD + lines({"prompt": [{"role": "user"}], "answer": ""}),
            r"a\.jsonl:2: prompt: a chat message must have",
        ),
        (GOOD + '{"prompt": "\\ud800", "answer": ""}', r"a\.jsonl:2: prompt: half of a surrogate"),
        (
            lines({"question": "a", "answer": "b", "level": 1}),
            r"a\.jsonl:1: no column 'prompt'; the columns are: question, answer, level; "
            r"set data\.source\.prompt_key",
        ),
        (lines({"prompt": "a"}), r"a\.jsonl:1: no column 'answer'; .*null if there are no answers"),
        ("", r"a\.jsonl has no rows"),
        ("\n\n", r"a\.jsonl has no rows"),
    ],
)
def test_a_bad_file_is_one_clear_error_at_opening(
    content: str | bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        open_source(jsonl(tmp_path / "a.jsonl", content))
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder_are_one_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        config = DataConfig(source=JsonlSource(kind="jsonl", path=path), train_batch_size=1)
        with pytest.raises(UsageError, match=r"data\.source\.path: cannot read"):
            open_source(config)


def test_fewer_rows_than_a_batch_is_refused_with_both_numbers(tmp_path: Path) -> None:
    config = jsonl(tmp_path / "a.jsonl", GOOD * 3, train_batch_size=4)

    with pytest.raises(UsageError, match=r"has 3 rows, fewer than one batch: .* is 4"):
        open_source(config)


def test_a_files_fingerprint_is_that_of_its_content(tmp_path: Path) -> None:
    def digest(name: str, content: str, **settings: Any) -> str:
        return open_source(jsonl(tmp_path / name, content, **settings)).fingerprint()

    first = digest("a.jsonl", GOOD * 2)
    assert digest("b.jsonl", GOOD * 2) == first
    assert digest("a.jsonl", GOOD * 3) != first
    assert digest("a.jsonl", GOOD * 2, answer_key=None) != first


def test_a_function_in_the_current_folder_gives_rows(module: str) -> None:
    source = open_source(python(f"{module}:rows", n=3, tag="q"))

    assert all_rows(source)[1:] == [
        Row("q1", "1", "rows", {"level": 1}),
        Row("q2", "2", "rows", {"level": 0}),
    ]


def test_a_functions_fingerprint_follows_arguments_and_rows(module: str, tmp_path: Path) -> None:
    def digest(**options: Any) -> str:
        return open_source(python(f"{module}:rows", **options)).fingerprint()

    first = digest(n=3)
    assert digest(n=3) == first
    assert digest(n=4) != first
    assert digest(n=3, tag="u") != first
    sys.modules.pop(module)
    path = tmp_path / f"{module}.py"
    path.write_text(path.read_text().replace("'t'", "'other tag'"))
    assert digest(n=3) != first


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:rows", r"cannot import no_such_module: ModuleNotFoundError"),
        ("users_rows:absent", r"users_rows.py\) has no function 'absent'"),
        ("users_rows:raises", r"calling .* failed: KeyError: 'no such split' \(.*rows.py:4\)"),
        ("users_rows:rows", r"calling .* failed: TypeError: .*'n'"),
        ("users_rows:generator", r"must return a sequence of mappings .* returned generator"),
        ("users_rows:number", r"must return a sequence of mappings .* returned int"),
        ("users_rows:texts", r"row 0: not a JSON object or mapping but str"),
        ("users_rows:no_answer", r"row 0: no column 'answer'; the columns are: prompt, anwser"),
        ("users_rows:dates", r"row 0: its other columns cannot be written as JSON: .*date"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_bad_function_is_one_clear_error(function: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        open_source(python(function))
    assert "\n" not in str(raised.value)


def test_a_row_that_cannot_be_read_is_named(module: str) -> None:
    source = open_source(python(f"{module}:Damaged"))

    with pytest.raises(UsageError, match=r"users_rows:Damaged, row 1: OSError: disk gone"):
        source[1]


@pytest.mark.parametrize("task", ["sort", "reverse", "copy"])
def test_digit_rows_ask_for_what_the_task_says(task: str) -> None:
    for row in digit_rows(task, 4, 200, 1):
        digits = row["prompt"].removesuffix(">")
        answers = {"sort": "".join(sorted(digits)), "reverse": digits[::-1], "copy": digits}
        assert len(digits) == 4
        assert row["answer"] == answers[task]


def test_a_digit_row_depends_on_seed_and_index_alone() -> None:
    rows = digit_rows("sort", 4, 100, 1)

    assert rows[57] == digit_rows("sort", 4, 1000, 1)[57]
    assert rows[57] != digit_rows("sort", 4, 100, 2)[57]
    assert len({row["prompt"] for row in rows}) > 90
    assert {row["prompt"][0] for row in rows} == set("0123456789")


@pytest.mark.parametrize("options", [{"task": "add"}, {"digits": 0}, {"size": 0}])
def test_digit_rows_refuse_what_they_cannot_do(options: dict[str, Any]) -> None:
    good: dict[str, Any] = {"task": "sort", "digits": 4, "size": 10, "seed": 1}
    config = python("headrace.feeder.sources.digits:digit_rows", **good | options)

    with pytest.raises(UsageError, match="failed: ValueError"):
        open_source(config)


def test_opening_a_source_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from headrace.config.data import DataConfig\n"
        "from headrace.feeder.sources.load import open_source\n"
        "import headrace.feeder.process\n"
        "f = 'headrace.feeder.sources.digits:digit_rows'\n"
        "o = {'task': 'sort', 'digits': 4, 'size': 9, 'seed': 1}\n"
        "s = {'kind': 'python', 'function': f, 'options': o}\n"
        "assert len(open_source(DataConfig(source=s, train_batch_size=4))) == 9\n"
        "assert not {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
