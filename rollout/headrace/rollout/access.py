"""What a peer over HTTP is told and asked about who speaks: a token, and certificates.

Knows nothing of calls.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from headrace.errors import UsageError


def read_token(path: Path | None, *, key: str) -> str:
    """Read the token; empty if there is none to send.

    Args:
        path: The file.
        key: Where it is named in the configuration.

    Raises:
        UsageError: The file cannot be read, or is not a token.

    """
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{key}: {path} cannot be read: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise UsageError(f"{key}: {path} does not hold one token and nothing else")
    return token


def read_certificates(path: Path | None, *, key: str) -> ssl.SSLContext:
    """Read the certificates that a peer is checked against; None = the usual ones.

    Raises:
        UsageError: The file cannot be read, or holds none.

    """
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # of which ssl's errors are
        raise UsageError(
            f"{key}: {path} holds no certificates that can be read: {error}"
        ) from error
