"""Settings of who may call, and how calls are protected."""

from __future__ import annotations

from pathlib import Path

from headrace.config.section import Section


class TlsConfig(Section):
    """TLS on every port, from PEM files. Read once, when a process starts."""

    ca: Path
    """The certificates of the authority that peers' certificates must come from."""
    cert: Path
    """This process's certificate, with what leads to the authority behind it. Its names are those
    that peers call it by."""
    key: Path
    """The certificate's key, not encrypted."""


class SecurityConfig(Section):
    """Who may call, and how calls are protected."""

    token_file: Path | None = None
    """A file with the token that every call has to carry; null = calls need none."""
    tls: TlsConfig | None = None
    """TLS; null = plaintext."""
