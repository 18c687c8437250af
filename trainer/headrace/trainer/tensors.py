"""Lists the tensors of a weights file, with digests, for whoever receives them without the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open

from headrace.weights.digest import digest, text_of
from headrace.weights.tensors import SCHEMA_VERSION, TensorEntry, TensorList


def list_tensors(file: Path, device: Any) -> TensorList:
    """Read a file's tensors, one after the other, and compute their digests on a device."""
    with safe_open(file, framework="pt", device="cpu") as opened:
        return TensorList(
            SCHEMA_VERSION,
            [_entry(name, opened.get_tensor(name).to(device)) for name in opened.keys()],  # noqa: SIM118
        )


def _entry(name: str, tensor: Any) -> TensorEntry:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorEntry(name, dtype, list(tensor.shape), text_of(digest(tensor)))
