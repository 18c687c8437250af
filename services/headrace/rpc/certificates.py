"""PEM files with certificates and keys: read, and checked before anybody relies on them.

Knows nothing of gRPC. Files are named in the messages by the keys of the configuration, or by
the options of the command line, that they come from.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

AGAIN = "`headrace certs init` makes new ones"


def read_file(key: str, path: Path) -> bytes:
    """Read a file.

    Raises:
        UsageError: It cannot be read; named by `key`.

    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{key}: {path} cannot be read: {error.strerror}") from error


def read_authority(key: str, path: Path, *, now: datetime) -> bytes:
    """Read the certificates that others' must come from.

    Raises:
        UsageError: The file cannot be read, holds no certificate, or one that is not valid now.

    """
    data = read_file(key, path)
    for certificate in _certificates(key, path, data):
        _check_dates(key, path, certificate, now)
    return data


def read_pair(
    cert_key: str, cert: Path, key_key: str, key: Path, *, now: datetime
) -> tuple[bytes, bytes]:
    """Read a certificate and its key; give (key, certificate), the order that gRPC wants.

    Raises:
        UsageError: A file cannot be read or is something else, the certificate is not valid now,
            or the key is another certificate's.

    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    cert_data, key_data = read_file(cert_key, cert), read_file(key_key, key)
    certificate = _certificates(cert_key, cert, cert_data)[0]
    _check_dates(cert_key, cert, certificate, now)
    try:
        private = load_pem_private_key(key_data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # Not quoted: the messages are long, and about OpenSSL.
        raise UsageError(
            f"{key_key}: {key} is not a private key in PEM form, or it is encrypted; {AGAIN}"
        ) from error
    if private.public_key() != certificate.public_key():
        raise UsageError(
            f"{key_key}: {key} is not the key of the certificate in {cert} ({cert_key}); "
            f"give the two that belong together, or {AGAIN}"
        )
    return key_data, cert_data


def _certificates(key: str, path: Path, data: bytes) -> list[Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(data)
    except ValueError as error:
        raise UsageError(f"{key}: {path} holds no certificate in PEM form; {AGAIN}") from error


def _check_dates(key: str, path: Path, certificate: Certificate, now: datetime) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise UsageError(
            f"{key}: the certificate in {path} has expired on {end:%Y-%m-%d %H:%M} UTC; {AGAIN}"
        )
    if now < begin:
        raise UsageError(
            f"{key}: the certificate in {path} is not valid before {begin:%Y-%m-%d %H:%M} UTC; "
            "is this machine's clock right?"
        )
