from __future__ import annotations

import ast
import json
from typing import Any

import pytest
import reasoning_gym

from headrace.config.data import DataConfig, ReasoningGymSource
from headrace.errors import UsageError
from headrace.feeder.sources.load import open_source
from headrace.feeder.sources.reasoning_gym import carry_entry, plain
from headrace.feeder.sources.source import Source


def gym(name: str, size: int = 4, seed: int = 1, **options: Any) -> Source:
    source = ReasoningGymSource(
        kind="reasoning_gym", name=name, size=size, seed=seed, options=options
    )
    return open_source(DataConfig(source=source, train_batch_size=1))


def carried(source: Source, index: int) -> dict[str, Any]:
    """What arrives at whoever scores: the metadata after its way through JSON."""
    metadata = json.loads(json.dumps(source[index].metadata, allow_nan=False))
    scored: dict[str, Any] = metadata["reasoning_gym"]
    return scored


def score(source: Source, index: int, answer: str) -> float:
    """Score as the documentation of the metadata says."""
    told = carried(source, index)
    entry = told["entry"] if "entry" in told else ast.literal_eval(told["entry_literal"])
    scorer = reasoning_gym.create_dataset(told["name"], **told["options"])
    return float(scorer.score_answer(answer, entry))


@pytest.mark.parametrize(
    "name",
    # The last three have entries that JSON alone would change.
    ["chain_sum", "leg_counting", "course_schedule", "futoshiki", "knights_knaves"],
)
def test_a_row_carries_what_its_scorer_needs(name: str) -> None:
    source = gym(name)

    for index in range(len(source)):
        assert score(source, index, source[index].answer) == 1.0
        assert score(source, index, "certainly not") < 1.0


def test_a_question_may_be_a_chat_message_behind_a_system_prompt() -> None:
    def prompt(**chat: Any) -> Any:
        source = ReasoningGymSource(kind="reasoning_gym", name="chain_sum", size=1, **chat)
        return open_source(DataConfig(source=source, train_batch_size=1))[0].prompt

    question = prompt()
    asked = {"role": "user", "content": question}
    assert isinstance(question, str)
    assert prompt(chat=True) == [asked]
    assert prompt(chat=True, system_prompt="Be brief.") == [
        {"role": "system", "content": "Be brief."}, asked
    ]  # fmt: skip
    with pytest.raises(ValueError, match="set chat to true as well"):
        prompt(system_prompt="Be brief.")


def test_an_entry_that_json_would_change_travels_as_a_literal() -> None:
    output = ((1, 0), (0, 1))  # as in arc_agi, whose scorer compares it with tuples
    entry = {"question": "?", "answer": "1 0", "metadata": {"output": output, 3: {"x"}}}

    told = carry_entry(entry)
    assert "entry" not in told
    assert ast.literal_eval(json.loads(json.dumps(told))["entry_literal"]) == entry


def test_how_hard_a_row_was_drawn_may_lose_its_tuples() -> None:
    entry = {"question": "?", "metadata": {"num_terms": 3, "difficulty": {"terms": (2, 6)}}}

    assert carry_entry(entry)["entry"]["metadata"] == {
        "num_terms": 3,
        "difficulty": {"terms": [2, 6]},
    }


def test_a_row_is_the_question_with_its_answer() -> None:
    entry = reasoning_gym.create_dataset("chain_sum", size=4, seed=1)[2]
    row = gym("chain_sum")[2]

    assert (row.prompt, row.answer) == (entry["question"], entry["answer"])
    assert row.data_source == "chain_sum"


def test_options_reach_rows_and_scorer() -> None:
    source = gym("chain_sum", min_terms=6, max_terms=6)

    assert source[0].metadata["reasoning_gym"]["entry"]["metadata"]["num_terms"] == 6
    assert carried(source, 0)["options"] == {"min_terms": 6, "max_terms": 6}


def test_rows_of_a_composite_are_scored_by_the_part_they_came_from() -> None:
    parts = [
        {"name": "chain_sum", "weight": 1, "config": {"max_terms": 2}},
        {"name": "leg_counting", "weight": 1, "config": {"seed": 5}},
    ]
    source = gym("composite", size=12, datasets=parts)
    names = {source[i].data_source for i in range(12)}

    assert names == {"chain_sum", "leg_counting"}
    assert all(score(source, i, source[i].answer) == 1.0 for i in range(12))


def test_the_fingerprint_follows_every_setting() -> None:
    first = gym("chain_sum").fingerprint()

    assert gym("chain_sum").fingerprint() == first
    assert gym("chain_sum", size=5).fingerprint() != first
    assert gym("chain_sum", seed=2).fingerprint() != first
    assert gym("chain_sum", max_terms=3).fingerprint() != first


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"no data set 'chain_sums'; did you mean chain_sum"):
        gym("chain_sums")


@pytest.mark.parametrize("options", [{"min_terms": 0}, {"terms": 3}])
def test_options_that_the_data_set_refuses_are_one_clear_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"data\.source\.options: .*chain_sum refuses") as raised:
        gym("chain_sum", **options)
    assert "\n" not in str(raised.value)


def test_foreign_numbers_become_plain_ones_and_containers_stay_what_they_are() -> None:
    numpy = pytest.importorskip("numpy")
    value = {"a": (numpy.int64(3), [numpy.str_("x")]), "b": {numpy.float32(0.5)}}

    assert repr(plain(value)) == "{'a': (3, ['x']), 'b': {0.5}}"
    with pytest.raises(TypeError, match="object, which cannot be written down"):
        plain([object()])
