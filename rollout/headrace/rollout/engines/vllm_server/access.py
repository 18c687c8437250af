"""Who speaks to the servers: a key, and certificates. Knows nothing of calls."""

from __future__ import annotations

import ssl

from headrace.config.vllm_server import VllmServerEngine
from headrace.rollout import access


def read_access(config: VllmServerEngine) -> tuple[str, ssl.SSLContext]:
    """Read the key, empty if none is sent, and what servers are checked against.

    Raises:
        UsageError: A file cannot be read, or is not what it should be.

    """
    key = access.read_token(config.api_key_file, key="rollout.engine.api_key_file")
    return key, access.read_certificates(config.ca_file, key="rollout.engine.ca_file")
