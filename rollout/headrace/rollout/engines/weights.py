"""Whether the weights in a directory are the ones that were published.

Reads files; knows nothing of torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from headrace.rollout.engines.base import EngineError
from headrace.v1 import prompt_pb2
from headrace.weights.directory import verify
from headrace.weights.document import WeightsDamagedError
from headrace.weights.manifest import MANIFEST_NAME, Manifest, parse
from headrace.weights.tensors import TENSORS_NAME
from headrace.weights.tensors import WEIGHTS_NAME as WEIGHTS_NAME
from headrace.weights.tensors import parse as parse_tensors


def confirm(
    published: prompt_pb2.PublishedWeights,
    *,
    at: Path | None = None,
    without: Collection[str] = (),
) -> Path:
    """Check every file of published weights but some, and return their directory.

    Args:
        published: What they are.
        at: Where they are read; None = where they were published.
        without: Names of files that are not looked at.

    Raises:
        EngineError: A file is missing or has other bytes, or these are other weights.

    """
    directory = at or Path(published.uri)
    try:
        manifest, checksum = verify(directory, without=without)
    except WeightsDamagedError as error:
        raise EngineError(str(error)) from error
    _compare(published, manifest, checksum)
    return directory


def confirm_manifest(published: prompt_pb2.PublishedWeights) -> None:
    """Check the manifest only, for an engine that does not read the files it names.

    Raises:
        EngineError: The manifest is missing, or these are other weights.

    """
    path = Path(published.uri) / MANIFEST_NAME
    try:
        data = path.read_bytes()
        manifest = parse(data, source=str(path))
    except (OSError, WeightsDamagedError) as error:
        raise EngineError(f"weights cannot be read: {error}") from error
    _compare(published, manifest, hashlib.sha256(data).hexdigest())


def read_tensors(directory: Path) -> dict[str, list[Any]]:
    """Read what tensors a version has, column by column, as vLLM wants it.

    Raises:
        EngineError: It cannot be read, or the trainer did not write it.

    """
    path = directory / TENSORS_NAME
    try:
        tensors = parse_tensors(path.read_bytes(), source=str(path)).tensors
    except FileNotFoundError as error:
        raise EngineError(
            f"the version has no {TENSORS_NAME}: the trainer does not have weights.transport: nccl"
        ) from error
    except (OSError, WeightsDamagedError) as error:
        raise EngineError(f"the list of tensors cannot be read: {error}") from error
    return {
        "names": [each.name for each in tensors],
        "dtype_names": [each.dtype for each in tensors],
        "shapes": [list(each.shape) for each in tensors],
        "digests": [each.digest for each in tensors],
    }


def _compare(published: prompt_pb2.PublishedWeights, manifest: Manifest, checksum: str) -> None:
    if checksum != published.checksum:
        raise EngineError(
            f"{published.uri}: the manifest's SHA-256 is {checksum}, {published.checksum} was "
            "published"
        )
    if (manifest.lineage, manifest.version) != (published.id.lineage, published.id.version):
        raise EngineError(
            f"{published.uri}: holds version {manifest.version} of {manifest.lineage}, version "
            f"{published.id.version} of {published.id.lineage} was published"
        )
