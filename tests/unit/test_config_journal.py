"""`journal`: a password leaves this machine under TLS only."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace.config.services import JournalConfig

IN_THE_CLEAR = "the password is not sent to redis without TLS"


def journal(url: str, password_file: Path | None = None) -> JournalConfig:
    return JournalConfig(kind="redis", redis_url=url, redis_password_file=password_file)


def test_a_password_is_not_sent_to_another_machine_in_the_clear() -> None:
    with pytest.raises(ValidationError, match=IN_THE_CLEAR):
        journal("redis://redis:6379/0", Path("token"))
    with pytest.raises(ValidationError, match=IN_THE_CLEAR):
        journal("redis://:secret@redis:6379/0")
    with pytest.raises(ValidationError, match=IN_THE_CLEAR):
        journal("redis://redis:6379/0?password=secret")


@pytest.mark.parametrize(
    "url",
    [
        "rediss://redis:6379/0?ssl_ca_certs=ca.pem", "redis://localhost:6379/0",
        "redis://[::1]:6379", "unix:///run/redis.sock",
    ],
)  # fmt: skip
def test_under_tls_and_on_this_machine_it_is(url: str) -> None:
    assert journal(url, Path("token")).redis_url == url


def test_without_a_password_there_is_nothing_to_hide() -> None:
    assert journal("redis://redis:6379/0").redis_password_file is None
