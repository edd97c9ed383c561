"""HTTPS and secure WebSockets: the same port, with TLS in front."""

import asyncio
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from starlette.requests import HTTPConnection

from penstock.config import Address, NodeConfig
from penstock.errors import ConfigError
from penstock.service import Service
from penstock.types import Caller
from penstock.web.callers import caller_of
from tests.tls import Certificates, running

PATIENCE_SECONDS = 60.0
ANY_PORT = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def config(certificates: Certificates, **settings: Any) -> NodeConfig:
    files = {"tls_cert": certificates.cert, "tls_key": certificates.key}
    return NodeConfig(memory=True, kafka=ANY_PORT, http=ANY_PORT, status_topic="", **{**files, **settings})


@pytest.fixture(scope="module")
def service(certificates: Certificates) -> Iterator[Service]:
    with running(config(certificates)) as started:
        yield started


def get(url: str, context: ssl.SSLContext) -> bytes:
    with urllib.request.urlopen(url, context=context, timeout=PATIENCE_SECONDS) as answer:
        body: bytes = answer.read()
        return body


def test_the_api_answers_over_https(service: Service, certificates: Certificates) -> None:
    assert service.http_url is not None
    assert service.http_url.startswith("https://")
    assert get(f"{service.http_url}/ready", certificates.client_context())


def test_a_client_that_does_not_know_the_authority_refuses(service: Service, tmp_path: Path) -> None:
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        get(f"{service.http_url}/ready", Certificates(tmp_path).client_context())


def test_plain_http_is_told_to_use_https(service: Service) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{service.http_address}/ready", timeout=PATIENCE_SECONDS)
    assert caught.value.code == 400
    assert b"use https://" in caught.value.read()


def test_websockets_work_over_tls(service: Service, certificates: Certificates) -> None:
    async def scenario() -> str:
        url = f"wss://{service.http_address}/v1/push"
        async with websockets.connect(url, ssl=certificates.client_context()) as connection:
            await connection.send("?")
            return str(await asyncio.wait_for(connection.recv(), PATIENCE_SECONDS))

    assert json.loads(asyncio.run(scenario()))


def test_nodes_announce_the_scheme_of_their_http_port(service: Service, certificates: Certificates) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": str(service.kafka_address),
            "security.protocol": "ssl",
            "ssl.ca.location": certificates.ca,
        }
    )
    [found] = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    assert found.result(PATIENCE_SECONDS)["penstock.http.url"].value == service.http_url
    listed = json.loads(get(f"{service.http_url}/v1/cluster", certificates.client_context()))
    assert [node["https"] for node in listed["nodes"]] == [True]


def test_a_certificate_of_the_client_may_be_required(certificates: Certificates) -> None:
    with running(config(certificates, tls_ca=certificates.ca)) as service:
        assert get(f"{service.http_url}/ready", certificates.client_context(certificate=True))
        with pytest.raises((urllib.error.URLError, OSError)):
            get(f"{service.http_url}/ready", certificates.client_context())


def test_tls_on_a_port_without_it_is_closed_with_a_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with running(config(certificates, http_tls=False)) as service:
        assert get(f"http://{service.http_address}/ready", certificates.client_context())
        assert service.http_address is not None
        address = (service.http_address.host, service.http_address.port)
        with socket.create_connection(address, PATIENCE_SECONDS) as plain, pytest.raises(OSError):
            certificates.client_context().wrap_socket(plain, server_hostname="localhost")
    assert "a client speaks TLS to the HTTP port, which has none" in caplog.text


def test_a_broken_file_is_found_at_the_start_and_not_by_the_first_client(
    certificates: Certificates, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    bad = {"cert": str(wrong), "key": str(wrong)}
    tls = certificates.settings()
    with (
        pytest.raises(ConfigError, match="tls of the HTTP port"),
        running(config(certificates, http_tls=type(tls)(**bad))),
    ):
        pass


def test_the_caller_of_a_request_is_the_subject_of_the_certificate() -> None:
    scope = {"type": "http", "headers": [], "client": ("10.0.0.1", 5), "state": {"principal": "User:CN=x"}}
    assert caller_of(HTTPConnection(scope)) == Caller("User:CN=x", "10.0.0.1", "")
    assert caller_of(HTTPConnection({**scope, "state": {}})).principal == "User:ANONYMOUS"


def test_a_certificate_logs_in_where_login_is_required(certificates: Certificates) -> None:
    rules = "RULE:^CN=([^,]+).*$/$1/L, DEFAULT"
    settings = {
        "tls_ca": certificates.ca,
        "tls_principal_rules": rules,
        "require_login": True,
        "super_users": ("User:orders",),
    }
    with running(config(certificates, **settings)) as started:
        url = f"{started.http_url}/v1/cluster"
        assert get(url, certificates.client_context(certificate=True))
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(url, certificates.client_context())
        assert refused.value.code == 401
        files = {
            "bootstrap.servers": str(started.kafka_address),
            "security.protocol": "ssl",
            "ssl.ca.location": certificates.ca,
            "log_level": 0,
        }
        own = {
            "ssl.certificate.location": certificates.client_cert,
            "ssl.key.location": certificates.client_key,
        }
        listed = AdminClient({**files, **own}).list_topics(timeout=PATIENCE_SECONDS)
        assert listed.brokers
        with pytest.raises(KafkaException):
            AdminClient(files).list_topics(timeout=3)
