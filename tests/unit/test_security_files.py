"""What is wrong with a token, a certificate or a key shows at start, by name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from headrace.cli.credentials import Credentials, make_credentials
from headrace.config.config import Config
from headrace.config.load import load_config
from headrace.errors import UsageError
from headrace.rpc.security import Security

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def made(directory: Path) -> Credentials:
    return make_credentials(directory, (), days=10, force=False, now=NOW)


def config_file(directory: Path, security: str) -> Path:
    path = directory / "config.yaml"
    path.write_text(
        "data: {source: {kind: jsonl, path: rows.jsonl}, train_batch_size: 1}\n"
        "model: {architecture: gpt2, tokenizer: {alphabet: ab, eos: .}}\n"
        f"run: {{run_id: r}}\n{security}"
    )
    return path


def read(credentials: Credentials, now: datetime = NOW) -> Security:
    config = load_config(config_file(credentials.directory, credentials.configuration))
    return Security.from_config(config, now=now)


def test_whole_files_are_read(tmp_path: Path) -> None:
    credentials = made(tmp_path)
    security = read(credentials)
    assert security.token == credentials.token.read_text().strip()
    assert security.authority == credentials.ca.read_bytes()
    assert security.pair == (credentials.key.read_bytes(), credentials.cert.read_bytes())
    assert security.run_id == "r"


def test_secrets_do_not_show_where_the_object_is_printed(tmp_path: Path) -> None:
    shown = repr(read(made(tmp_path)))
    assert shown == "Security(run_id='r')"


def test_relative_paths_count_from_the_configuration_files_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "certs")
    monkeypatch.chdir("/")
    text = (
        "security: {token_file: certs/token, "
        "tls: {ca: certs/ca.pem, cert: certs/cert.pem, key: certs/key.pem}}"
    )
    security = Security.from_config(load_config(config_file(tmp_path, text)), now=NOW)
    assert security.token
    assert security.pair


def test_without_a_section_there_is_nothing(tmp_path: Path) -> None:
    config: Config = load_config(config_file(tmp_path, ""))
    assert Security.from_config(config) == Security(run_id="r")


def lose(path: Path) -> None:
    path.unlink()


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [lose, replace_by_a_folder])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ca.pem", "security.tls.ca"),
        ("cert.pem", "security.tls.cert"),
        ("key.pem", "security.tls.key"),
        ("token", "security.token_file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_by_its_key(
    tmp_path: Path, name: str, key: str, damage: Callable[[Path], None]
) -> None:
    credentials = made(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(UsageError, match=rf"^{key}: {tmp_path / name} cannot be read: \w"):
        read(credentials)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("token", "", "token is empty; `headrace certs init`"),
        ("token", " \n\t", "token is empty"),
        ("token", "two words", "token does not hold a token, one word of printable ASCII"),
        ("token", "schlüssel", "token does not hold a token"),
        ("ca.pem", "", "ca.pem holds no certificate"),
        ("ca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n", "ca.pem holds no certificate"),
        ("cert.pem", "x", "cert.pem holds no certificate"),
        ("key.pem", "x", "key.pem is not a private key"),
    ],
)
def test_a_file_that_holds_something_else_is_named(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    credentials = made(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as refused:
        read(credentials)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_space_around_a_token_does_not_count(tmp_path: Path) -> None:
    credentials = made(tmp_path)
    credentials.token.write_text("\n secret \r\n\n")
    assert read(credentials).token == "secret"


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    credentials, other = made(tmp_path / "a"), made(tmp_path / "b")
    credentials.key.write_bytes(other.key.read_bytes())
    with pytest.raises(UsageError, match=r"key\.pem is not the key of the certificate in .*cert"):
        read(credentials)


def test_an_encrypted_key_is_refused(tmp_path: Path) -> None:
    credentials = made(tmp_path)
    key = serialization.load_pem_private_key(credentials.key.read_bytes(), password=None)
    credentials.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    with pytest.raises(UsageError, match="or it is encrypted"):
        read(credentials)


@pytest.mark.parametrize(
    ("now", "complaint"),
    [
        (NOW + timedelta(days=10, seconds=1), r"ca\.pem has expired on 2026-12-09 12:00 UTC"),
        (NOW - timedelta(hours=1, seconds=1), r"ca\.pem is not valid before 2026-11-29 11:00 UTC"),
    ],
)
def test_a_certificate_is_refused_outside_its_time(
    tmp_path: Path, now: datetime, complaint: str
) -> None:
    credentials = made(tmp_path)
    with pytest.raises(UsageError, match=complaint):
        read(credentials, now)


def test_a_certificate_is_good_within_its_time_to_the_second(tmp_path: Path) -> None:
    credentials = made(tmp_path)
    for now in (NOW - timedelta(hours=1), NOW + timedelta(days=10)):
        assert read(credentials, now).pair


def test_an_expired_certificate_of_a_good_authority_is_named(tmp_path: Path) -> None:
    old, credentials = made(tmp_path / "old"), tmp_path / "new"
    newer = make_credentials(credentials, (), days=30, force=False, now=NOW)
    newer.cert.write_bytes(old.cert.read_bytes())
    newer.key.write_bytes(old.key.read_bytes())
    with pytest.raises(UsageError, match=r"^security\.tls\.cert: .* has expired on 2026-12-09"):
        read(newer, NOW + timedelta(days=20))


def test_a_tools_files_are_named_by_their_options(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--token-file: .* cannot be read"):
        Security.for_tool(token_file=tmp_path / "none")
    with pytest.raises(UsageError, match=r"^--ca: .* cannot be read"):
        Security.for_tool(ca=tmp_path / "none")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    Security().check_host(host)


HALVES = {
    "nothing": (Security(), r"set security\.token_file and security\.tls \("),
    "a token": (Security(token="t"), r"set security\.tls \("),
    "TLS": (Security(authority=b"a", pair=(b"k", b"c")), r"set security\.token_file \("),
    "an authority": (Security(token="t", authority=b"a"), r"set security\.tls \("),
}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "replay", ""])
@pytest.mark.parametrize("half", HALVES)
def test_any_other_address_needs_a_token_and_tls(host: str, half: str) -> None:
    security, complaint = HALVES[half]
    with pytest.raises(UsageError, match=complaint):
        security.check_host(host)
    Security(token="t", authority=b"a", pair=(b"k", b"c")).check_host(host)


def test_a_token_does_not_go_over_a_network_in_the_clear() -> None:
    plain = Security(token="t")
    for target in ("127.0.0.1:1", "[::1]:1", "localhost:1"):
        plain.check_target(target)
    for target in ("10.0.0.5:1", "replay:1", "[2001:db8::1]:1"):
        with pytest.raises(UsageError, match=r"not sent to .* without TLS"):
            plain.check_target(target)
        Security(token="t", authority=b"a").check_target(target)
        Security().check_target(target)
