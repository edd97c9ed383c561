"""`penstock certs dev`: files that work, and words that say what to do with them."""

import ssl
import stat
from pathlib import Path

from confluent_kafka.admin import AdminClient

from penstock.config import Address, NodeConfig
from tests.tls import running

from .conftest import Cli, succeeded

PATIENCE_SECONDS = 60.0


def test_a_broker_and_a_client_can_use_the_files(plain_cli: Cli, tmp_path: Path) -> None:
    said = succeeded(plain_cli("certs", "dev", str(tmp_path / "certs"), "--client", "alice")).stdout
    folder = tmp_path / "certs"
    assert f"--tls-cert {folder}/broker.pem --tls-key {folder}/broker.key" in said
    config = NodeConfig(
        memory=True,
        kafka=Address("127.0.0.1", 0),
        http=None,
        tls_cert=str(folder / "broker.pem"),
        tls_key=str(folder / "broker.key"),
        tls_ca=str(folder / "ca.pem"),
    )
    with running(config) as service:
        client = {
            "bootstrap.servers": str(service.kafka_address),
            "security.protocol": "ssl",
            "ssl.ca.location": str(folder / "ca.pem"),
            "ssl.certificate.location": str(folder / "client.pem"),
            "ssl.key.location": str(folder / "client.key"),
        }
        assert AdminClient(client).list_topics(timeout=PATIENCE_SECONDS).brokers


def test_keys_are_for_their_owner_only(plain_cli: Cli, tmp_path: Path) -> None:
    succeeded(plain_cli("certs", "dev", str(tmp_path)))
    for key in ("ca.key", "broker.key", "client.key"):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600


def test_a_second_run_keeps_the_authority_and_adds_hosts(plain_cli: Cli, tmp_path: Path) -> None:
    assert "a new authority" in succeeded(plain_cli("certs", "dev", str(tmp_path))).stdout
    before = (tmp_path / "ca.pem").read_bytes()
    again = succeeded(plain_cli("certs", "dev", str(tmp_path), "--host", "broker.test", "--host", "10.0.0.7"))
    assert "the authority that was there" in again.stdout
    assert (tmp_path / "ca.pem").read_bytes() == before
    found = ssl._ssl._test_decode_cert(str(tmp_path / "broker.pem"))  # type: ignore[attr-defined]
    assert ("DNS", "broker.test") in found["subjectAltName"]
    assert ("IP Address", "10.0.0.7") in found["subjectAltName"]


def test_a_folder_that_cannot_be_used_is_a_problem_with_advice(plain_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    (tmp_path / "ca.key").write_text("no key")
    result = plain_cli("certs", "dev", str(tmp_path))
    assert result.exit_code == 1
    assert "choose another folder" in result.stderr


def test_a_command_shows_its_certificate(plain_cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    succeeded(plain_cli("certs", "dev", str(folder), "--client", "alice"))
    config = NodeConfig(
        memory=True,
        kafka=Address("127.0.0.1", 0),
        http=Address("127.0.0.1", 0),
        tls_cert=str(folder / "broker.pem"),
        tls_key=str(folder / "broker.key"),
        tls_ca=str(folder / "ca.pem"),
    )
    own = ("--tls-cert", str(folder / "client.pem"), "--tls-key", str(folder / "client.key"))
    with running(config) as service:
        where = ("--bootstrap", str(service.kafka_address), "--tls-ca", str(folder / "ca.pem"))
        for command in (("topics", "list"), ("queues", "list")):
            succeeded(plain_cli(*command, *where, *own))
        refused = plain_cli("topics", "list", *where)
    assert refused.exit_code == 1
    assert "wants one" in refused.stderr
    assert "--tls-cert" in refused.stderr
