"""Makes a Hugging Face directory of a checkpoint: configuration, safetensors, tokenizer.

Needs nothing of the run but the trainer's part of the checkpoint. Blocks.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from headrace.checkpoint.storage import fetch
from headrace.errors import UsageError
from headrace.trainer import part
from headrace.trainer.state import fill_model
from headrace.v1.resume_pb2 import CheckpointPart

OF_MODEL: Final = ("config.json", "generation_config.json")
"""Files of the description that the model writes itself; the others are the tokenizer's."""


def export(source: CheckpointPart, target: Path) -> int:
    """Write the model of a checkpoint into a directory that is made, whole or not at all.

    Args:
        source: the trainer's part of it.
        target: the directory.

    Returns:
        The number of its parameters.

    Raises:
        UsageError: the directory is there already, and not empty.
        DamagedError, PartDamagedError, ShardsDamagedError: the checkpoint is damaged.
        OSError: the directory cannot be written.

    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already: give a new directory, or an empty one")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.exporting")
    try:
        fetch(source, scratch)
        files = scratch / part.folder_of(source)
        part.read_counters(files)
        model = _build(files)
        made = scratch / "made"
        model.save_pretrained(made)
        for file in (files / part.DESCRIPTION).iterdir():
            if file.name not in OF_MODEL:
                shutil.copy2(file, made / file.name)
        if target.exists():
            target.rmdir()
        made.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return int(model.num_parameters())


def _build(files: Path) -> Any:
    transformers.utils.logging.disable_progress_bar()
    tensors = part.read_model(files)
    description = files / part.DESCRIPTION
    config = AutoConfig.from_pretrained(description, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32)
    if (description / OF_MODEL[1]).exists():
        model.generation_config = GenerationConfig.from_pretrained(description)
    fill_model(model, tensors)
    return model
