"""A whole run on all addresses, with a token and TLS on every port."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.cli.credentials import make_credentials
from headrace.rpc.security import Security

CONFIG = """
run: {name: secure}
data:
  source:
    kind: python
    function: headrace.feeder.sources.digits:digit_rows
    options: {task: sort, digits: 4, size: 64, seed: 1}
  train_batch_size: 2
  max_prompt_length: 8
  max_response_length: 5
model:
  architecture: gpt2
  options: {n_layer: 1, n_embd: 8, n_head: 1, n_positions: 16}
  tokenizer: {alphabet: "0123456789>", eos: ";"}
rollout: {n: 2, engine: {kind: scripted}}
reward: {kind: positional}
trainer: {total_training_steps: 3, threads: 1, tensorboard: false, warm_start: {steps: 1}}
weights: {transport: grpc}
endpoints: {bind_host: 0.0.0.0}
"""


async def headrace(*arguments: str, folder: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace.cli.main",
        *arguments,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.timeout(400)
async def test_a_run_with_token_and_tls_on_all_addresses_trains_to_its_end(
    tmp_path: Path,
) -> None:
    made = make_credentials(tmp_path / "certs", (), days=1, force=False, now=datetime.now(UTC))
    (tmp_path / "config.yaml").write_text(CONFIG + made.configuration)

    code, said = await headrace(
        "run", "config.yaml", "--plain", "run.run_dir=here", folder=tmp_path
    )

    assert code == 0, said
    assert "3 of 3" in said
    logs = [path.read_text() for path in (tmp_path / "here" / "logs").iterdir()]
    lines = [line for log in logs for line in log.splitlines()]
    assert [line for line in lines if re.match(r"[IWEF]\d{4} ", line)] == []  # gRPC's own
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [event for event in events if event["event"] == "caller_refused"] == []
    listening = [event["address"] for event in events if event["event"] == "listening"]
    assert len(listening) == 6
    assert {address.rpartition(":")[0] for address in listening} == {"0.0.0.0"}
    token = Security.for_tool(token_file=made.token).token
    assert token not in said + "".join(logs)


async def test_a_run_on_all_addresses_without_them_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    code, said = await headrace("run", "config.yaml", "--plain", folder=tmp_path)
    assert code == 2
    [line] = said.splitlines()
    assert line.startswith("error: cannot listen on '0.0.0.0': without a token and TLS ")
    assert not (tmp_path / "runs").exists()
