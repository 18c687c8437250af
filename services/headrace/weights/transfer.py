"""Weights over gRPC: what trainer and workers agree on.

Knows nothing of gRPC itself. A worker gets `manifest.json` first, which is right if its SHA-256 is
the published checksum, and then the files that it names.
"""

from __future__ import annotations

from typing import Final

GRPC_URI: Final = "grpc:"
"""The `uri` of published weights that the trainer serves, instead of a directory."""

CHUNK_BYTES: Final = 2**20
"""The largest piece of a file in one message."""

MAX_MANIFEST_BYTES: Final = 16 * 2**20
"""Above any manifest; what is longer is none."""
