"""Whether the weights in a directory are the ones that were published.

Reads files; knows nothing of torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from headrace.rollout.engines.base import EngineError
from headrace.v1 import prompt_pb2
from headrace.weights.directory import verify
from headrace.weights.manifest import MANIFEST_NAME, Manifest, WeightsDamagedError, parse

WEIGHTS_NAME: Final = "model.safetensors"
"""The file with the model's weights."""


def confirm(published: prompt_pb2.PublishedWeights) -> Path:
    """Check every file of published weights, and return their directory.

    Raises:
        EngineError: A file is missing or has other bytes, or these are other weights.

    """
    directory = Path(published.uri)
    try:
        manifest, checksum = verify(directory)
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
