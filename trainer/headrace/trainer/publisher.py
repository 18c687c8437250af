"""The model as files that a worker builds it from. Knows nothing of who is told of them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headrace.trainer.number_format import format_of, published, set_format
from headrace.trainer.probe import make_probe
from headrace.trainer.tensors import list_tensors
from headrace.weights import directory
from headrace.weights.probe import PROBE_NAME
from headrace.weights.tensors import TENSORS_NAME, WEIGHTS_NAME

ONE_FILE = "1000000GB"
"""Above the size of any model, so that the weights are one file."""


def save_model(model: Any, target: Path) -> None:
    """Write `config.json` and `model.safetensors`, in the format that the model computes in.

    Tied weights are written once.

    Raises:
        OSError: they could not be written; the disk is full, most often.

    """
    try:
        dtype, state = format_of(model), published(model)
        model.save_pretrained(target, state_dict=state, max_shard_size=ONE_FILE)
        # It has written, and noted, the format of the weights that are trained.
        set_format(model, dtype)
        model.config.save_pretrained(target)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(target)) from error


class WeightsWriter:
    """Writes the versions of one line of weights.

    Args:
        root: where the versions' directories are.
        run_id: the run.
        lineage: its time line.
        probed: the sequences that are scored with each version, for whoever loads it.
        uri: where workers find all versions; None = each in its directory.
        lists_tensors: whether workers may receive the tensors without the file.

    """

    def __init__(
        self,
        root: Path,
        *,
        run_id: str,
        lineage: str,
        probed: Sequence[Sequence[int]],
        uri: str | None = None,
        lists_tensors: bool = False,
    ) -> None:
        self._root = root
        self._run_id = run_id
        self._lineage = lineage
        self._probed = probed
        self._uri = uri
        self._lists_tensors = lists_tensors

    def write(self, model: Any, version: int) -> tuple[str, str]:
        """Write the model as it is now, and return where workers find it and its checksum."""
        path, checksum = directory.write(
            self._root,
            run_id=self._run_id,
            lineage=self._lineage,
            version=version,
            write_files=lambda target: self._write_files(model, target),
        )
        return self._uri or str(path), checksum

    def _write_files(self, model: Any, target: Path) -> None:
        save_model(model, target)
        (target / PROBE_NAME).write_bytes(make_probe(model, self._probed).to_bytes())
        if self._lists_tensors:
            tensors = list_tensors(target / WEIGHTS_NAME, model.device)
            (target / TENSORS_NAME).write_bytes(tensors.to_bytes())

    def leave_other_lines(self) -> None:
        """Remove what the run has of other lines."""
        directory.prune_other_lines(self._root, run_id=self._run_id, lineage=self._lineage)

    def prune(self, oldest_needed: int) -> None:
        """Remove versions below `oldest_needed`."""
        directory.prune(
            self._root, run_id=self._run_id, lineage=self._lineage, oldest_needed=oldest_needed
        )
