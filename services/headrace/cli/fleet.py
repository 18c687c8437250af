"""The processes of a run on one machine: their commands, and in which order they end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from headrace.cli.gpus import visible_gpus
from headrace.cli.keeper import Part, Ports
from headrace.cli.launcher import Command
from headrace.cli.single import makes_checkpoints, peers
from headrace.config.config import Config
from headrace.config.rollout import TorchEngine
from headrace.config.rundir import RunDirectory

QUIET: Final = {
    "PYTHONUNBUFFERED": "1",
    # Warnings about forks, and waits for a hub that a run does not need.
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
"""Variables for all processes."""


def worker_names(config: Config) -> list[str]:
    """Name the workers."""
    return [f"worker-{number}" for number in range(config.rollout.workers)]


def stop_order(config: Config) -> list[list[str]]:
    """Say who is stopped together, and in which order; the replay buffer goes last, by itself.

    The trainer goes first: to end its step and save it, it needs all the others.
    """
    coordinator = [["checkpoint"]] if makes_checkpoints(config) else []
    return [["trainer"], worker_names(config), ["feeder"], *coordinator, ["store"]]


def parts(config: Config, directory: RunDirectory, environment: Mapping[str, str]) -> list[Part]:
    """Give the processes of a run.

    Args:
        config: What is run.
        directory: Where.
        environment: The launcher's own.

    Raises:
        UsageError: a worker cannot have its GPUs.

    """
    engine = config.rollout.engine
    threads = engine.threads if isinstance(engine, TorchEngine) else None
    make = partial(_part, config, directory)
    saves = makes_checkpoints(config)
    return [
        make("replay", "replay", ["serve", "replay"]),
        make("store", "store", ["serve", "store"]),
        make("feeder", "feeder", ["serve", "feeder"]),
        *([make("checkpoint", "checkpoint", ["serve", "checkpoint"])] if saves else ()),
        make("trainer", "trainer", ["train"], threads=config.trainer.threads),
        *(
            make(name, "rollout", ["worker", "--name", name], threads=threads, shown=gpus)
            for name, gpus in zip(
                worker_names(config), visible_gpus(config.rollout, environment), strict=True
            )
        ),
    ]


def _part(
    config: Config,
    directory: RunDirectory,
    name: str,
    package: str,
    words: list[str],
    *,
    threads: int | None = None,
    shown: Mapping[str, str] | None = None,
) -> Part:
    needs = peers(package, config)
    # torch's own setting comes too late for the thread pools that libraries make at import.
    limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {}

    def command(addresses: Mapping[str, str], ports: Ports) -> Command:
        announcement = directory.endpoint_file(name)
        options = ["--port", str(ports.calls), "--metrics-port", str(ports.metrics)]
        options += ["--announce", str(announcement)]
        endpoints = [f"endpoints.{peer}={addresses[peer]}" for peer in needs]
        program = [sys.executable, "-m", "headrace.cli.main", *words]
        return Command(
            name=name,
            arguments=[*program, str(directory.config_file), *options, *endpoints],
            log=directory.log_file(name),
            announcement=announcement,
            environment={**QUIET, **limits, **(shown or {})},
        )

    saves = makes_checkpoints(config)
    is_main = package == "trainer"
    return Part(
        name,
        command,
        needs=needs,
        is_main=is_main,
        resumes=is_main and saves,
        may_leave=package == "rollout",
        saving_s=config.checkpoint.preempt_grace_s if is_main and saves else 0.0,
    )
