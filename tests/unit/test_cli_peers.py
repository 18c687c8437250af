"""Whose addresses a process asks for, and is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.cli.fleet import parts
from headrace.cli.keeper import Ports
from headrace.cli.single import peers
from headrace.config.config import Config
from headrace.config.rundir import RunDirectory


def config(**weights: Any) -> Config:
    return Config.model_validate(
        {
            "data": {"source": {"kind": "jsonl", "path": "rows"}, "train_batch_size": 4},
            "model": {"architecture": "gpt2", "tokenizer": {"alphabet": "abc", "eos": ";"}},
            "weights": weights,
        }
    )


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("dir", ("replay", "store")),
        ("grpc", ("replay", "store", "trainer")),
        ("nccl", ("replay", "store", "trainer")),
    ],
)
def test_workers_know_the_trainer_if_it_serves_the_weights(
    transport: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    chosen = config(transport=transport)
    [worker] = [
        part for part in parts(chosen, RunDirectory(tmp_path), {}) if part.name == "worker-0"
    ]
    addresses = {name: f"127.0.0.1:{port}" for port, name in enumerate(expected, start=1)}

    assert worker.needs == peers("rollout", chosen) == expected
    assert [
        word
        for word in worker.command(addresses, Ports()).arguments
        if word.startswith("endpoints.")
    ] == [f"endpoints.{name}={address}" for name, address in addresses.items()]
