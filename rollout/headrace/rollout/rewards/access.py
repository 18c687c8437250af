"""Who speaks to a reward service: its token, and certificates. Knows nothing of calls."""

from __future__ import annotations

import ssl

from headrace.config.rollout import RewardConfig
from headrace.rollout import access


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
    return access.read_token(config.http.token_file, key="reward.http.token_file")


def read_certificates(config: RewardConfig) -> ssl.SSLContext:
    """Read the certificates that a service is checked against.

    Raises:
        UsageError: The file cannot be read, or holds none.

    """
    return access.read_certificates(config.http.ca_file, key="reward.http.ca_file")
