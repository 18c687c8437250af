"""Makes a certificate authority, a certificate for a run's processes, and a token.

The files are what `headrace.rpc.security` reads. The authority's key is never written.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from headrace.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
"""What every certificate names."""

EARLIER: Final = timedelta(hours=1)
"""Clocks of other machines may be behind by this much."""

TOKEN_BYTES: Final = 32

_NAME: Final = re.compile(
    r"(?!.{254})(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    r"(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)


@dataclass(frozen=True)
class Credentials:
    """Names the files in a directory."""

    directory: Path
    """Absolute."""

    @property
    def ca(self) -> Path:
        """The authority's certificate: whoever calls needs it."""
        return self.directory / "ca.pem"

    @property
    def cert(self) -> Path:
        """The processes' certificate."""
        return self.directory / "cert.pem"

    @property
    def key(self) -> Path:
        """Its key."""
        return self.directory / "key.pem"

    @property
    def token(self) -> Path:
        """The token."""
        return self.directory / "token"

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return self.ca, self.cert, self.key, self.token

    @property
    def configuration(self) -> str:
        """What to write into a configuration, as YAML."""
        tls = {"ca": str(self.ca), "cert": str(self.cert), "key": str(self.key)}
        section = {"security": {"token_file": str(self.token), "tls": tls}}
        return yaml.safe_dump(section, sort_keys=False, allow_unicode=True, width=1000)


def make_credentials(
    directory: Path, hosts: Iterable[str], *, days: int, force: bool, now: datetime
) -> Credentials:
    """Make the files, readable by their owner only.

    Args:
        directory: Where; made if it is not there.
        hosts: What the certificate names beside `ALWAYS`.
        days: How long it and the authority are valid.
        force: Replace files that are there.
        now: When they begin to be.

    Raises:
        UsageError: A file is there already, cannot be written, or a host is no name.

    """
    credentials = Credentials(directory.absolute())
    there = [path for path in credentials.paths if path.exists()]
    if there and not force:
        raise UsageError(
            f"{there[0]} is there already; give another directory, or --force to replace "
            "certificates and token (a run that uses them has to be started again)"
        )
    contents = _contents(dict.fromkeys((*ALWAYS, *hosts)), now - EARLIER, now + timedelta(days))
    try:
        credentials.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, content in zip(credentials.paths, contents, strict=True):
            _write(path, content)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
    return credentials


def _contents(hosts: Iterable[str], begin: datetime, end: datetime) -> tuple[bytes, ...]:
    """Make what goes into the files, in the order of `Credentials.paths`."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    names = [_general_name(host) for host in hosts]
    authority_key, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    authority = _authority(authority_key, begin, end)
    certificate = _certificate(names, key, authority, authority_key)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (
        authority.public_bytes(Encoding.PEM),
        certificate.public_bytes(Encoding.PEM),
        private,
        f"{secrets.token_hex(TOKEN_BYTES)}\n".encode(),
    )


def _authority(key: EllipticCurvePrivateKey, begin: datetime, end: datetime) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    # A serial of its own in the name: certificates of two authorities must not be mixed up.
    serial = x509.random_serial_number()
    name = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, f"headrace development {serial:x}"[:64])]
    )
    builder = (
        _builder(key, begin, end)
        .subject_name(name)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return builder.sign(key, SHA256())


def _certificate(
    names: list[GeneralName],
    key: EllipticCurvePrivateKey,
    authority: Certificate,
    authority_key: EllipticCurvePrivateKey,
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _builder(key, authority.not_valid_before_utc, authority.not_valid_after_utc)
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace")]))
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
    )
    return builder.sign(authority_key, SHA256())


def _builder(key: EllipticCurvePrivateKey, begin: datetime, end: datetime) -> CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if _NAME.fullmatch(host) is None:
            raise UsageError(
                f"--host {host!r} is neither a host's name nor an IP address; a port does not "
                "belong to it"
            ) from None
        return x509.DNSName(host)


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole; nobody else may ever read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)
