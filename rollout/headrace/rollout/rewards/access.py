"""What a reward service is told and asked about who speaks: a token, and certificates.

Knows nothing of calls.
"""

from __future__ import annotations

import ssl

from headrace.config.rollout import RewardConfig
from headrace.errors import UsageError


def check(config: RewardConfig) -> None:
    """See whether the files that the calls need are there.

    Raises:
        UsageError: One is not, or is not what it should be.

    """
    read_token(config)
    read_certificates(config)


def read_token(config: RewardConfig) -> str:
    """Read the token; empty if there is none to send.

    Raises:
        UsageError: The file cannot be read, or is not a token.

    """
    path = config.http.token_file
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"reward.http.token_file: {path} cannot be read: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise UsageError(f"reward.http.token_file: {path} does not hold one token and nothing else")
    return token


def read_certificates(config: RewardConfig) -> ssl.SSLContext:
    """Read the certificates that a service is checked against.

    Raises:
        UsageError: The file cannot be read, or holds none.

    """
    path = config.http.ca_file
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # of which ssl's errors are
        raise UsageError(
            f"reward.http.ca_file: {path} holds no certificates that can be read: {error}"
        ) from error
