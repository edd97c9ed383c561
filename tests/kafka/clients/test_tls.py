"""Real clients over TLS, with and without certificates of their own: produce, read as a group, administer; refusals."""

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic as PythonNewTopic

from penstock.config import Address, Listener, NodeConfig
from penstock.service import Service
from tests.tls import Certificates, running

PATIENCE_SECONDS = 60
KCAT = shutil.which("kcat") or shutil.which("kafkacat")
Unique = Callable[[str], str]
ANY_PORT = Address("127.0.0.1", 0)
RECORDS = [b"one", b"two", b"x" * 200_000]


class Node(NamedTuple):
    service: Service
    certificates: Certificates

    def address(self, listener: str) -> str:
        return next(str(one.bind) for one in self.service.listeners if one.name == listener)

    def librdkafka(self, listener: str, **settings: Any) -> dict[str, Any]:
        """Settings of a client; with a certificate where the listener wants one."""
        files = self.certificates
        own = {"ssl.certificate.location": files.client_cert, "ssl.key.location": files.client_key}
        return {
            "bootstrap.servers": self.address(listener),
            "security.protocol": "ssl",
            "ssl.ca.location": files.ca,
            "log_level": 0,
            **(own if listener == "mtls" else {}),
            **settings,
        }

    def context(self, listener: str) -> ssl.SSLContext:
        return self.certificates.client_context(certificate=listener == "mtls")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    listeners = (
        Listener(name="plain", bind=ANY_PORT),
        Listener(name="tls", bind=ANY_PORT, tls=certificates.settings()),
        Listener(name="mtls", bind=ANY_PORT, tls=certificates.settings(ca=True)),
    )
    with running(NodeConfig(memory=True, http=None, status_topic="", listeners=listeners)) as service:
        yield Node(service, certificates)


both = pytest.mark.parametrize("listener", ["tls", "mtls"])


@both
def test_confluent_kafka(node: Node, listener: str, unique: Unique) -> None:
    topic = unique("tls")
    admin = AdminClient(node.librdkafka(listener))
    admin.create_topics([NewTopic(topic, 2)])[topic].result(PATIENCE_SECONDS)
    producer = Producer(node.librdkafka(listener))
    for value in RECORDS:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    settings = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
    consumer = Consumer(node.librdkafka(listener, **settings))
    consumer.subscribe([topic])
    assert [message.value() for message in consumer.consume(3, PATIENCE_SECONDS)] == RECORDS
    consumer.close()


@both
def test_kafka_python(node: Node, listener: str, unique: Unique) -> None:
    topic = unique("tls")
    settings = {
        "bootstrap_servers": node.address(listener),
        "security_protocol": "SSL",
        "ssl_context": node.context(listener),
    }
    admin = KafkaAdminClient(**settings)
    admin.create_topics([PythonNewTopic(topic, 1, 1)])
    admin.close()
    producer = KafkaProducer(**settings)
    for value in RECORDS:
        producer.send(topic, value).get(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=unique("group"),
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_SECONDS * 1000,
        **settings,
    )
    assert [next(consumer).value for _ in RECORDS] == RECORDS
    consumer.close()


@both
def test_aiokafka(node: Node, listener: str, unique: Unique) -> None:
    async def scenario() -> None:
        topic = unique("tls")
        settings = {
            "bootstrap_servers": node.address(listener),
            "security_protocol": "SSL",
            "ssl_context": node.context(listener),
        }
        admin = AIOKafkaAdminClient(**settings)
        await admin.start()
        await admin.create_topics([AioNewTopic(topic, 1, 1)])
        await admin.close()
        async with AIOKafkaProducer(**settings) as producer:
            for value in RECORDS:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(
            topic, group_id=unique("group"), auto_offset_reset="earliest", **settings
        ) as consumer:
            read = [(await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).value for _ in RECORDS]
        assert read == RECORDS

    asyncio.run(scenario())


@both
@pytest.mark.skipif(KCAT is None, reason="kcat is not installed (apt-get install kcat)")
def test_kcat(node: Node, listener: str, unique: Unique) -> None:
    topic = unique("tls")
    settings = node.librdkafka(listener)
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]

    def kcat(*arguments: str, stdin: str = "") -> str:
        command = [KCAT or "kcat", *options, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    kcat("-P", "-t", topic, stdin="one\ntwo\n")
    assert f'topic "{topic}" with 1 partitions' in kcat("-L")
    group = ("-X", "auto.offset.reset=earliest", "-e", "-q", "-G", unique("group"), topic)
    assert kcat(*group) == "one\ntwo\n"


def reaches(settings: dict[str, Any], timeout_s: float = 3.0) -> bool:
    try:
        return bool(AdminClient(settings).list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def test_clients_refuse_a_broker_of_another_authority(node: Node, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path)
    assert reaches(node.librdkafka("tls"), 60.0)
    assert not reaches(node.librdkafka("tls", **{"ssl.ca.location": stranger.ca}))


def test_a_client_without_a_certificate_is_refused_where_one_is_required(node: Node, tmp_path: Path) -> None:
    without = {**node.librdkafka("tls"), "bootstrap.servers": node.address("mtls")}
    assert not reaches(without)
    stranger = Certificates(tmp_path)
    theirs = {
        "ssl.certificate.location": stranger.client_cert,
        "ssl.key.location": stranger.client_key,
    }
    assert not reaches({**without, **theirs})
    assert reaches(node.librdkafka("mtls"), 60.0)


@pytest.mark.parametrize("listener", ["plain", "tls", "mtls"])
def test_clients_are_told_the_address_of_the_listener_by_which_they_came(node: Node, listener: str) -> None:
    settings = node.librdkafka(listener)
    if listener == "plain":
        settings["security.protocol"] = "plaintext"
    admin = AdminClient(settings)
    [broker] = admin.list_topics(timeout=PATIENCE_SECONDS).brokers.values()
    assert f"{broker.host}:{broker.port}" == node.address(listener)
    described = admin.describe_cluster(request_timeout=PATIENCE_SECONDS).result()
    assert [f"{one.host}:{one.port}" for one in described.nodes] == [node.address(listener)]


def test_the_caller_is_the_subject_of_the_certificate(node: Node) -> None:
    consumer = Consumer(node.librdkafka("mtls", **{"group.id": "principals", "client.id": "shop"}))
    listener: Any = node.service._listener
    principals: set[str] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not principals:  # librdkafka may close the connection by which it has found the node
        assert time.monotonic() < deadline, "no connection has this client's id"
        consumer.list_topics(timeout=PATIENCE_SECONDS)
        callers = {connection._caller for connection in list(listener._connections)}
        principals = {caller.principal for caller in callers if caller.client_id == "shop"}
    [principal] = principals
    assert re.fullmatch(r"User:CN=orders,OU=[^,]+,O=Example", principal)
    consumer.close()


def test_a_tls_client_on_a_plain_port_is_closed_with_a_line(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = node.address("plain").rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as plain, pytest.raises(ssl.SSLError):
        node.context("tls").wrap_socket(plain, server_hostname="localhost")
    assert "it speaks TLS, and this port does not" in caplog.text
