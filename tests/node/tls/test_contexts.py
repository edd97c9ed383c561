"""Contexts follow their files: new certificates, removed authorities, files that cannot be used."""

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.errors import ConfigError
from penstock.node.tls.contexts import TlsFiles, client_port_files, inter_node_files
from tests.tls import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def looked_at(files: TlsFiles) -> ssl.SSLContext:
    """The context after two looks, which a change needs."""
    files.look()
    files.look()
    return files.current


def test_new_files_make_a_new_context(certificates: Certificates) -> None:
    files = client_port_files("tls", certificates.settings())
    before = files.current
    assert looked_at(files) is before
    certificates.issue("server", "localhost")
    assert looked_at(files) is not before


def test_files_are_not_read_while_they_change(certificates: Certificates) -> None:
    files = client_port_files("tls", certificates.settings())
    before = files.current
    for _ in range(3):
        certificates.issue("server", "localhost")
        files.look()
        assert files.current is before
    files.look()
    assert files.current is not before


def test_a_certificate_without_its_key_is_not_used_until_the_key_is_there(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    files = client_port_files("tls of listener web", certificates.settings())
    before, old_key = files.current, Path(certificates.key).read_bytes()
    certificates.issue("server", "localhost")
    new_key = Path(certificates.key).read_bytes()
    Path(certificates.key).write_bytes(old_key)
    assert looked_at(files) is before
    assert looked_at(files) is before
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "tls of listener web: the new files cannot be used, the ones before stay: KEY_VALUES_MISMATCH"
    ]
    Path(certificates.key).write_bytes(new_key)
    assert looked_at(files) is not before


@pytest.mark.parametrize("content", [b"", b"no PEM", None])
def test_a_broken_file_leaves_the_old_context(certificates: Certificates, content: bytes | None) -> None:
    files = client_port_files("tls", certificates.settings(ca=True))
    before = files.current
    if content is None:
        os.remove(certificates.ca)
    else:
        Path(certificates.ca).write_bytes(content)
    assert looked_at(files) is before


def test_a_removed_authority_is_not_in_the_new_context(certificates: Certificates, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    Path(certificates.ca).write_bytes(Path(certificates.ca).read_bytes() + Path(other.ca).read_bytes())
    files = client_port_files("tls", certificates.settings(ca=True))
    assert len(files.current.get_ca_certs()) == 2
    Path(certificates.ca).write_bytes(Path(other.ca).read_bytes())
    assert len(looked_at(files).get_ca_certs()) == 1


def test_old_versions_of_tls_and_resumed_sessions_are_off(certificates: Certificates) -> None:
    context = client_port_files("tls", certificates.settings()).current
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_both_sides_of_the_inter_node_port_check_certificates(certificates: Certificates) -> None:
    accepts, dials = inter_node_files(certificates.inter_node())
    assert accepts.current.verify_mode == dials.current.verify_mode == ssl.CERT_REQUIRED
    assert dials.current.check_hostname


def test_a_missing_file_is_named_at_the_start(certificates: Certificates, tmp_path: Path) -> None:
    os.remove(certificates.key)
    with pytest.raises(ConfigError, match=r"server\.key.*No such file"):
        client_port_files("tls", certificates.settings())


def test_a_key_with_a_password_is_refused_without_a_prompt(certificates: Certificates) -> None:
    key = load_pem_private_key(Path(certificates.key).read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    Path(certificates.key).write_bytes(encrypted)
    with pytest.raises(ConfigError, match="a key without a password"):
        client_port_files("tls", certificates.settings())


@pytest.mark.parametrize(("days", "told"), [(-1, "has expired on"), (2, "expires on"), (30, None)])
def test_a_certificate_that_has_expired_or_soon_will_is_used_and_told_of_once(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, days: int, told: str | None
) -> None:
    now = datetime.now(UTC)
    issued = certificates.authority.issue_cert(
        "localhost", not_before=now - timedelta(days=60), not_after=now + timedelta(days=days)
    )
    issued.private_key_pem.write_to_path(certificates.key)
    issued.cert_chain_pems[0].write_to_path(certificates.cert)
    files = client_port_files("tls of listener web", certificates.settings())
    looked_at(files)
    lines = [record.getMessage() for record in caplog.records if record.name == "penstock.tls"]
    if told is None:
        assert lines == []
    else:
        [line] = lines
        assert line.startswith(f"tls of listener web: the certificate in {certificates.cert} {told}")
