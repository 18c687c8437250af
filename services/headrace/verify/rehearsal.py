"""From a user's configuration to one that can be run, killed and judged on this machine in minutes.

The user's are: the data, their order, all batch sizes, n, the window, staleness, the group filter, the
mode. What is replaced is what takes time or touches something outside; each replacement is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from headrace.config.config import Config
from headrace.config.data import StreamSource
from headrace.errors import UsageError

REPLACED: Final = (
    "rollouts are scripted, on 2 workers",
    "the model is a GPT-2 of one small layer, with your tokenizer",
    "the reward is a function of the response",
    "leases last 2 s, and the ledger is compacted every 300 events",
    "journal, store and checkpoints are in the rehearsal's own directory",
)
"""What is not the user's, in words."""
LONGEST_S: Final = 3.0
"""With the journal of tokens: how long the longest response takes, so that some are under way
whenever somebody is killed."""
REPORTS: Final = 8
"""With it: how often the longest response is reported, at least."""
SAVES: Final = 6
"""Checkpoints in a rehearsal, about."""


def rehearse(config: Config, *, run_dir: Path, steps: int, seed: int) -> Config:
    """Make the configuration of one rehearsal.

    Args:
        config: The user's.
        run_dir: Its run directory.
        steps: The most steps; fewer if the user's run has fewer.
        seed: Of the scripted engine.

    Raises:
        UsageError: it cannot be rehearsed.

    """
    if isinstance(config.data.source, StreamSource):
        raise UsageError(
            "data.source.kind = stream: a rehearsal reads the data twice, and a stream is read once; "
            "verify with a jsonl file of some of its rows"
        )
    values = config.model_dump(mode="json", exclude={"security", "endpoints", "journal"})
    wanted = config.trainer.total_training_steps
    total = min(steps, wanted) if wanted else steps
    most, every = config.rollout.max_groups_in_flight, config.rollout.journal_tokens_every
    longest = config.data.max_response_length
    changes: dict[str, Any] = {
        "run": {"name": "rehearsal", "run_dir": str(run_dir), "run_id": "rehearsal"},
        "model": _tiny_model(config),
        "rollout": {
            "engine": {
                "kind": "scripted",
                "mean_latency_s": 0.02,
                "token_latency_s": LONGEST_S / longest if every else 0.0,
                "seed": seed,
            },
            "journal_tokens_every": every and min(every, max(1, longest // REPORTS)),
            "workers": 2,
            "gpus": None,
            "max_groups_in_flight": 16 if most == "auto" else min(16, most),
            "max_generation_s": 60.0,
        },
        "reward": {"kind": "python", "function": "headrace.verify.rewards:by_content"},
        "trainer": {
            "total_training_steps": total,
            "save_freq": max(1, total // SAVES),
            "warm_start": {"steps": 0},
            "device": "cpu",
            "threads": 1,
            "tensorboard": False,
        },
        "ledger": {"lease_s": 2.0, "worker_timeout_s": 10.0},
        "journal": {"compact_every": 300, "keep_events": 10**9, "keep_settled": 10**9},
        "store": {
            "durability": config.store.durability,
            "sweep_every_s": 0.5,
            "sweep_grace_s": 5.0,
        },
        "checkpoint": {"storage": None, "preempt_grace_s": 20.0, "deadline_s": 60.0},
        "resume": {"mode": "auto", "path": None, "allow": []},
        "weights": {"dir": None, "tmpdir": None},
        "watchdog": {"on_stall": "report"},
        "launcher": {"max_restarts": 10**6},
    }
    for section, fields in changes.items():
        whole = section in ("model", "reward")
        values[section] = fields if whole else {**values.get(section, {}), **fields}
    return Config.model_validate(values)


def _tiny_model(config: Config) -> dict[str, Any]:
    tokenizer = config.model.tokenizer or config.model.path
    assert tokenizer is not None  # the configuration has one of them
    positions = config.data.max_prompt_length + config.data.max_response_length
    return {
        "architecture": "gpt2",
        "options": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": positions},
        "tokenizer": str(tokenizer)
        if isinstance(tokenizer, Path)
        else tokenizer.model_dump(mode="json"),
    }
