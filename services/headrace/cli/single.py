"""Runs one process of headrace in this one."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.cli.rundirs import with_run_directory
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.errors import UsageError
from headrace.log import configure
from headrace.rpc.process import ProcessOptions

PEERS: Final[dict[str, tuple[str, ...]]] = {
    "replay": (),
    "feeder": ("replay",),
    "store": ("replay",),
    "checkpoint": ("replay", "store"),
    "rollout": ("replay", "store"),
    "trainer": ("replay", "store", "feeder"),
}
"""Whose addresses a process needs in any case, by its package."""


def peers(package: str, config: Config) -> tuple[str, ...]:
    """Name those whose addresses a process needs."""
    if package == "rollout" and config.weights.are_served:
        return (*PEERS[package], "trainer")
    if package == "trainer" and makes_checkpoints(config):
        return (*PEERS[package], "checkpoint")
    return PEERS[package]


def makes_checkpoints(config: Config) -> bool:
    """Whether the run has a checkpoint coordinator."""
    return config.trainer.save_freq > 0


def serve(
    package: str,
    config_file: Path,
    overrides: Sequence[str],
    name: str,
    port: int,
    metrics_port: int,
    health_port: int | None,
    announce: Path | None,
) -> int:
    """Run the process of `headrace.{package}` until it is done; give its exit code.

    Raises:
        UsageError: the configuration is wrong, or the package's extra is not installed.

    """
    config = with_run_directory(load_config(config_file, overrides))
    _check_peers(package, config)
    configure(name, config.run.run_id)
    options = ProcessOptions(
        name=name,
        port=port,
        metrics_port=metrics_port,
        health_port=health_port,
        announce=announce,
    )
    try:
        module = importlib.import_module(f"headrace.{package}.process")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        extra = "" if package == "replay" else f"[{package}]"
        raise UsageError(
            f"the package {error.name!r} is not installed; pip install 'headrace{extra}'"
        ) from error
    code: int = asyncio.run(module.run(config, options))
    return code


def _check_peers(package: str, config: Config) -> None:
    missing = [peer for peer in peers(package, config) if getattr(config.endpoints, peer) is None]
    if missing:
        needed = " ".join(f"endpoints.{peer}=HOST:PORT" for peer in missing)
        raise UsageError(f"the addresses of its peers are needed: add {needed}")
