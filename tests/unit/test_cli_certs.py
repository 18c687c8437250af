"""`headrace certs init` makes what `security` needs, once."""

from __future__ import annotations

import ipaddress
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from typer.testing import CliRunner, Result

from headrace.cli.credentials import make_credentials
from headrace.cli.main import app
from headrace.config.security import SecurityConfig
from headrace.rpc.security import read_token

NAMES = ("ca.pem", "cert.pem", "key.pem", "token")


def init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["certs", "init", *arguments])


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def certificate(directory: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / "cert.pem").read_bytes())


def test_it_makes_four_files_that_only_their_owner_reads(tmp_path: Path) -> None:
    directory = tmp_path / "certs"
    assert init(str(directory)).exit_code == 0
    assert sorted(contents(directory)) == sorted(NAMES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_it_prints_what_belongs_into_the_configuration(tmp_path: Path) -> None:
    printed = init(str(tmp_path)).stdout
    section = printed[printed.index("security:") : printed.index("To look")]
    security = SecurityConfig.model_validate(yaml.safe_load(section)["security"])
    assert security.tls is not None
    assert security.token_file == tmp_path / "token"
    assert (security.tls.ca, security.tls.cert, security.tls.key) == (
        tmp_path / "ca.pem",
        tmp_path / "cert.pem",
        tmp_path / "key.pem",
    )


def test_the_certificate_names_loopback_and_the_hosts_that_were_given(tmp_path: Path) -> None:
    init(str(tmp_path), "--host", "replay", "--host", "10.0.0.5", "--host", "localhost")
    names = certificate(tmp_path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["localhost", "replay"]
    assert names.value.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(address) for address in ("127.0.0.1", "::1", "10.0.0.5")
    ]


def test_it_is_valid_for_as_long_as_was_asked_for(tmp_path: Path) -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    made = make_credentials(tmp_path, (), days=3, force=False, now=now)
    assert certificate(made.directory).not_valid_after_utc == now + timedelta(days=3)
    assert certificate(made.directory).not_valid_before_utc == now - timedelta(hours=1)


def test_each_certificate_comes_from_its_own_authority(tmp_path: Path) -> None:
    for name in ("a", "b"):
        init(str(tmp_path / name))
    a, b = (
        x509.load_pem_x509_certificate((tmp_path / name / "ca.pem").read_bytes()) for name in "ab"
    )
    certificate(tmp_path / "a").verify_directly_issued_by(a)
    with pytest.raises(ValueError, match="Issuer"):
        certificate(tmp_path / "a").verify_directly_issued_by(b)


def test_each_token_is_another_one(tmp_path: Path) -> None:
    tokens = set()
    for name in ("a", "b"):
        init(str(tmp_path / name))
        tokens.add(read_token("token", tmp_path / name / "token"))
    assert {len(token) for token in tokens} == {64}
    assert len(tokens) == 2


@pytest.mark.parametrize("name", NAMES)
def test_it_overwrites_nothing_unless_forced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    refused = init(str(tmp_path))
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: {tmp_path / name} is there already; ")
    assert contents(tmp_path) == {name: b"mine"}

    assert init(str(tmp_path), "--force").exit_code == 0
    assert sorted(contents(tmp_path)) == sorted(NAMES)
    assert (tmp_path / name).read_bytes() != b"mine"
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["replay:7001", "https://replay", "", "a b", "-a", "a..b", "*"])
def test_what_is_no_host_is_refused_and_nothing_is_made(tmp_path: Path, host: str) -> None:
    refused = init(str(tmp_path / "certs"), "--host", host)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: --host {host!r} is neither")
    assert not (tmp_path / "certs").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = init(str(tmp_path / "file" / "certs"))
    assert refused.exit_code == 2
    assert f"{tmp_path / 'file' / 'certs'} cannot be written" in refused.stderr
