"""Finds what is wrong with a run before anything of it is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.config import memory
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.config.vllm import VllmEngine
from headrace.config.vllm_server import VllmServerEngine


@dataclass(frozen=True)
class Checked:
    """A configuration that can be run, as far as this process can tell."""

    config: Config
    """The configuration."""
    warnings: tuple[str, ...]
    """What is allowed and probably not meant."""


def preflight(path: Path, overrides: Sequence[str]) -> Checked:
    """Load the configuration, open data set, tokenizer and storage, find the reward.

    vLLM is asked about its arguments if it is installed here.

    Raises:
        UsageError: something of it is wrong or not installed.

    """
    # An installed script does not look for the user's modules in the current folder by itself.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    config = load_config(path, overrides)

    # Imported here: a wrong configuration is told without waiting for them.
    from headrace.checkpoint.directory import storage_of
    from headrace.feeder.sources.load import open_data
    from headrace.feeder.sources.stream import StreamRows
    from headrace.rollout.engines.vllm_import import check_section
    from headrace.rollout.engines.vllm_server.access import read_access
    from headrace.rollout.rewards.make import check_rewards
    from headrace.rpc.security import Security
    from headrace.tokenizer.load import load_tokenizer

    Security.from_config(config).check_host(config.endpoints.bind_host)
    data = open_data(config.data)
    tokenizer = load_tokenizer(config.model)
    check_rewards(config.reward)
    if isinstance(config.rollout.engine, VllmServerEngine):
        read_access(config.rollout.engine)
    if config.checkpoint.storage is not None:
        storage_of(config)
    warnings = [*config.warnings(), *memory.warnings(config, tokenizer.vocab_size)]
    if isinstance(config.rollout.engine, VllmEngine) and (
        unchecked := check_section(config.rollout.engine)
    ):
        warnings.append(unchecked)
    if not isinstance(data, StreamRows):
        warnings += _too_few_rows(config, len(data))
    return Checked(config, tuple(warnings))


def _too_few_rows(config: Config, rows: int) -> list[str]:
    """Say that the data end before the steps do."""
    wanted, epochs = config.trainer.total_training_steps, config.trainer.total_epochs
    batch = config.data.train_batch_size
    enough_for = rows * epochs // batch
    if wanted is None or wanted <= enough_for:
        return []
    return [
        f"trainer.total_training_steps = {wanted}, but {rows} rows x trainer.total_epochs = {epochs} "
        f"are enough for {enough_for} steps of {batch}: raise trainer.total_epochs to "
        f"{-(-wanted * batch // rows)}"
    ]
