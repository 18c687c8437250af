"""`headrace run` with workers that share no directory with the trainer, and a reward service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import launched
from scene import small_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "reward_server.py"
MODEL = {"options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16}}


@pytest.fixture
def service() -> Iterator[str]:
    """The example's address."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["grpc", "nccl"])
def test_a_run_gets_its_weights_by_grpc_and_its_rewards_by_http(
    transport: str, tmp_path: Path, service: str
) -> None:
    config = small_config(
        tmp_path,
        model=MODEL,
        rollout={"workers": 2},
        reward={"kind": "http", "url": service},
        trainer={"total_training_steps": 3, "threads": 1},
        weights={"transport": transport, "tmpdir": "temporary"},
    )
    with launched(tmp_path, config) as run:
        code, output = run.ended(within_s=240)
        assert code == 0, output
        assert run.left() == []

    assert "3 of 3" in output
    assert "balance        holds" in output
    assert list((tmp_path / "temporary").iterdir()) == []
    versions = [_downloaded(run.run / "logs" / f"worker-{number}.log") for number in range(2)]
    assert all(found == sorted(set(found)) for found in versions)
    assert [0] in [found[:1] for found in versions]


def _downloaded(log: Path) -> list[Any]:
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [event["version"] for event in events if event["event"] == "weights_downloaded"]
