"""A configuration whose passes cannot fit is said before anything of it is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import memory
from headrace.config.load import load_config

ROOT = Path(__file__).parents[2]
QWEN3 = 151_936
"""Tokens of its vocabulary."""


def found(config: str, *overrides: str, vocabulary: int) -> list[str]:
    return memory.warnings(load_config(ROOT / config, overrides), vocabulary)


def test_a_pass_over_all_sequences_of_a_large_vocabulary_is_warned_about() -> None:
    [warning] = found(
        "k8s/overlays/gpu-vllm/run.yaml", "trainer.micro_batch_size=null", vocabulary=QWEN3
    )
    assert "trainer.micro_batch_size = null, all sequences of an update" in warning
    assert "take about 445 GiB" in warning  # 3 x 512 x 1024 x 151936 x 2 bytes


@pytest.mark.parametrize(
    ("config", "vocabulary"),
    [
        ("k8s/overlays/gpu-vllm/run.yaml", QWEN3),
        ("examples/sort_digits.yaml", 12),
        ("examples/smollm_countdown.yaml", 49_152),
    ],
)
def test_what_is_shipped_is_not_warned_about(config: str, vocabulary: int) -> None:
    assert found(config, vocabulary=vocabulary) == []


def test_more_than_there_are_sequences_are_not_counted() -> None:
    assert (
        found("examples/sort_digits.yaml", "trainer.micro_batch_size=100000", vocabulary=12) == []
    )
