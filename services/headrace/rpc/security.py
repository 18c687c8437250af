"""Who may call whom, and how calls are protected: a token, TLS, and the run's name.

Made once per process from files, which are not read again: new files count from the next
start on. Knows nothing of servers and channels but the credentials that they want.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from headrace.errors import UsageError
from headrace.rpc.certificates import read_authority, read_file, read_pair
from headrace.rpc.metadata import Metadata, caller_metadata

if TYPE_CHECKING:
    from headrace.config.config import Config


@dataclass(frozen=True)
class Security:
    """What a process presents to those it calls, and wants from those that call it.

    Without anything: plaintext, no token, a tool without a run.
    """

    run_id: str = ""
    """The run that calls are made for; empty = a tool that only looks."""
    token: str = field(default="", repr=False)
    """What every call has to carry; empty = calls need none."""
    authority: bytes | None = field(default=None, repr=False)
    """PEM. Whose certificates peers must have; None = plaintext."""
    pair: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """PEM. Key and certificate of this process as a server; None = plaintext."""

    @classmethod
    def from_config(cls, config: Config, *, now: datetime | None = None) -> Security:
        """Read the files that a process of a run needs.

        Args:
            config: With `run.run_id` filled in.
            now: For the dates in certificates; None = the clock's.

        Raises:
            UsageError: A file cannot be used.

        """
        now = now or datetime.now(UTC)
        looking = cls.for_looking(config, now=now)
        tls = config.security.tls
        return replace(
            looking,
            run_id=config.run.run_id,
            pair=read_pair("security.tls.cert", tls.cert, "security.tls.key", tls.key, now=now)
            if tls
            else None,
        )

    @classmethod
    def for_looking(cls, config: Config, *, now: datetime | None = None) -> Security:
        """Read the files that a tool needs to look at the run of a configuration.

        Raises:
            UsageError: A file cannot be used.

        """
        now = now or datetime.now(UTC)
        token_file, tls = config.security.token_file, config.security.tls
        return cls(
            token=read_token("security.token_file", token_file) if token_file else "",
            authority=read_authority("security.tls.ca", tls.ca, now=now) if tls else None,
        )

    @classmethod
    def for_tool(
        cls, *, token_file: Path | None = None, ca: Path | None = None, now: datetime | None = None
    ) -> Security:
        """Read the files that a tool is given by its options.

        Raises:
            UsageError: A file cannot be used.

        """
        now = now or datetime.now(UTC)
        return cls(
            token=read_token("--token-file", token_file) if token_file else "",
            authority=read_authority("--ca", ca, now=now) if ca else None,
        )

    @property
    def metadata(self) -> Metadata:
        """What is added to each call."""
        return caller_metadata(token=self.token, run_id=self.run_id)

    def check_target(self, target: str) -> None:
        """See that no token goes over a network in the clear.

        Raises:
            UsageError: It would, to `host:port`.

        """
        host = target.rpartition(":")[0].strip("[]")
        if self.token and self.authority is None and not is_loopback(host):
            raise UsageError(
                f"the token is not sent to {target} without TLS, where others could read it: set "
                "security.tls, or --ca"
            )

    def check_host(self, host: str) -> None:
        """See whether a server may listen on `host`.

        Raises:
            UsageError: It needs a token and TLS.

        """
        missing = [
            what
            for what, there in (
                ("security.token_file", self.token),
                ("security.tls", self.pair),
            )
            if not there
        ]
        if missing and not is_loopback(host):
            raise UsageError(
                f"cannot listen on {host!r}: without a token and TLS only a loopback address is "
                f"allowed; set {' and '.join(missing)} (`headrace certs init` makes the files), or "
                "use 127.0.0.1"
            )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return what a channel needs; None = plaintext."""
        if self.authority is None:
            return None
        return grpc.ssl_channel_credentials(root_certificates=self.authority)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Return what a server needs; None = plaintext."""
        return grpc.ssl_server_credentials([self.pair]) if self.pair is not None else None


def read_token(key: str, path: Path) -> str:
    """Read a token from its file; white space around it does not count.

    Raises:
        UsageError: The file cannot be read, or holds no token; named by `key`.

    """
    token = read_file(key, path).decode("ascii", errors="replace").strip()
    if not token:
        raise UsageError(f"{key}: {path} is empty; `headrace certs init` makes a token")
    if not re.fullmatch(r"[!-~]+", token):
        raise UsageError(
            f"{key}: {path} does not hold a token, one word of printable ASCII; "
            "`headrace certs init` makes one"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach, or be reached at, `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
