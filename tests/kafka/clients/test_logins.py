"""Real clients that log in, by every mechanism and with and without TLS: produce, read as a group, administer; a wrong
password, an expired token, and a right that is taken away."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic as PythonNewTopic
from kafka.errors import KafkaError as PythonKafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

from penstock.config import Address, Listener, NodeConfig
from penstock.config.oidc import OidcSettings
from penstock.embedded import _BrokerThread
from penstock.node.access import logins
from tests.tls import Certificates

PATIENCE_SECONDS = 60
KCAT = shutil.which("kcat") or shutil.which("kafkacat")
Unique = Callable[[str], str]
ANY_PORT = Address("127.0.0.1", 0)
ISSUER, AUDIENCE = "https://id.example.org", "penstock"
PASSWORDS = {"admin": "admin-password", "alice": "alice-password", "bob": "bob-password"}
KEY = generate_private_key(SECP256R1())
RECORDS = [b"one", b"two", b"three"]

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER")
LISTENERS = ("plain", "tls")


def token(user: str, lifetime_s: float = 600) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": time.time() + lifetime_s}
    return jwt.encode(claims, KEY, "ES256", headers={"kid": "k"})


class Node(NamedTuple):
    thread: _BrokerThread
    certificates: Certificates

    def address(self, listener: str) -> str:
        return next(str(one.bind) for one in self.thread.service.listeners if one.name == listener)

    def librdkafka(
        self, listener: str, mechanism: str, user: str, password: str | None = None, **more: Any
    ) -> dict[str, Any]:
        settings = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": "sasl_ssl" if listener == "tls" else "sasl_plaintext",
            "ssl.ca.location": self.certificates.ca,
            "sasl.mechanism": mechanism,
            "log_level": 0,
            **more,
        }
        if mechanism == "OAUTHBEARER":
            return {**settings, "oauth_cb": lambda _: (password or token(user), time.time() + 600)}
        return {**settings, "sasl.username": user, "sasl.password": password or PASSWORDS[user]}

    def python(self, listener: str, mechanism: str, user: str, password: str | None = None) -> dict[str, Any]:
        """Settings of kafka-python and aiokafka, which are the same but for tokens."""
        settings = {
            "bootstrap_servers": self.address(listener),
            "security_protocol": "SASL_SSL" if listener == "tls" else "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if listener == "tls":
            settings["ssl_context"] = self.certificates.client_context()
        if mechanism != "OAUTHBEARER":
            settings |= {
                "sasl_plain_username": user,
                "sasl_plain_password": password or PASSWORDS[user],
            }
        return settings


@pytest.fixture(scope="module", autouse=True)
def no_delays() -> Iterator[None]:
    """All clients have one address here, and librdkafka tries a wrong password many times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "SLOWEST_SECONDS", logins.FIRST_DELAY_SECONDS)
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    keys = Path(certificates.folder) / "keys.json"
    public: str = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key())
    keys.write_text(json.dumps({"keys": [{**json.loads(public), "kid": "k", "use": "sig"}]}))
    listeners = (
        Listener(name="plain", bind=ANY_PORT, mechanisms=MECHANISMS),
        Listener(name="tls", bind=ANY_PORT, tls=certificates.settings(), mechanisms=MECHANISMS),
    )
    config = NodeConfig(
        memory=True,
        http=None,
        status_topic="",
        listeners=listeners,
        require_login=True,
        oidc=OidcSettings(jwks=str(keys), issuer=ISSUER, audience=AUDIENCE),
    )
    thread = _BrokerThread(config, None, PASSWORDS)
    thread.start_and_wait()
    yield Node(thread, certificates)
    thread.stop_and_wait()


@pytest.fixture(scope="module")
def admin(node: Node) -> AdminClient:
    return AdminClient(node.librdkafka("plain", "SCRAM-SHA-256", "admin"))


def binding(kind: ResourceType, name: str, operation: AclOperation, user: str) -> AclBinding:
    allow = AclPermissionType.ALLOW
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, allow)


def allow(admin: AdminClient, user: str, topic: str, group: str) -> None:
    bindings = [
        binding(ResourceType.TOPIC, topic, AclOperation.CREATE, user),
        binding(ResourceType.TOPIC, topic, AclOperation.WRITE, user),
        binding(ResourceType.TOPIC, topic, AclOperation.READ, user),
        binding(ResourceType.GROUP, group, AclOperation.READ, user),
    ]
    for created in admin.create_acls(bindings).values():
        created.result(PATIENCE_SECONDS)


every_way = [
    pytest.param(listener, mechanism, id=f"{mechanism}-{listener}")
    for listener in LISTENERS
    for mechanism in MECHANISMS
]
ways = pytest.mark.parametrize(("listener", "mechanism"), every_way)


@ways
def test_confluent_kafka(
    node: Node, admin: AdminClient, listener: str, mechanism: str, unique: Unique
) -> None:
    topic, group = unique("topic"), unique("group")
    allow(admin, "alice", topic, group)
    settings = node.librdkafka(listener, mechanism, "alice")
    own = AdminClient(settings)
    own.poll(1.0)  # it asks for a token then
    own.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_SECONDS)
    producer = Producer(settings)
    for value in RECORDS:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert [message.value() for message in consumer.consume(3, PATIENCE_SECONDS)] == RECORDS
    consumer.close()
    assert list(own.list_topics(timeout=PATIENCE_SECONDS).topics).count(topic) == 1


class Tokens(AbstractTokenProvider):
    async def token(self) -> str:
        return token("alice")


class PythonTokens(PythonTokenProvider):
    def token(self) -> str:
        return token("alice")


@ways
def test_kafka_python(node: Node, admin: AdminClient, listener: str, mechanism: str, unique: Unique) -> None:
    topic, group = unique("topic"), unique("group")
    allow(admin, "alice", topic, group)
    settings = node.python(listener, mechanism, "alice")
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = PythonTokens()
    own = KafkaAdminClient(**settings)
    own.create_topics([PythonNewTopic(topic, 1, 1)])
    own.close()
    producer = KafkaProducer(**settings)
    for value in RECORDS:
        producer.send(topic, value).get(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=group,
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_SECONDS * 1000,
        **settings,
    )
    assert [next(consumer).value for _ in RECORDS] == RECORDS
    consumer.close()


@ways
def test_aiokafka(node: Node, admin: AdminClient, listener: str, mechanism: str, unique: Unique) -> None:
    topic, group = unique("topic"), unique("group")
    allow(admin, "alice", topic, group)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_SECONDS)

    async def scenario() -> None:
        settings = node.python(listener, mechanism, "alice")
        if mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = Tokens()
        async with AIOKafkaProducer(**settings) as producer:
            for value in RECORDS:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(
            topic, group_id=group, auto_offset_reset="earliest", **settings
        ) as consumer:
            read = [(await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).value for _ in RECORDS]
        assert read == RECORDS

    asyncio.run(scenario())


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed (apt-get install kcat)")
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_kcat(node: Node, admin: AdminClient, listener: str, mechanism: str, unique: Unique) -> None:
    topic, group = unique("topic"), unique("group")
    allow(admin, "alice", topic, group)
    settings = node.librdkafka(listener, mechanism, "alice")
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]

    def kcat(*arguments: str, stdin: str = "") -> str:
        command = [KCAT or "kcat", *options, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    kcat("-P", "-t", topic, stdin="one\ntwo\n")
    assert kcat("-X", "auto.offset.reset=earliest", "-e", "-q", "-G", group, topic) == "one\ntwo\n"


# --- refusals


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_clients_hear_that_a_password_is_wrong(node: Node, mechanism: str) -> None:
    errors: list[KafkaError] = []
    client = Producer(node.librdkafka("plain", mechanism, "alice", "wrong", error_cb=errors.append))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while KafkaError._AUTHENTICATION not in {error.code() for error in errors}:
        client.poll(0.2)
        assert time.monotonic() < deadline
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**node.python("plain", mechanism, "alice", "wrong"), bootstrap_timeout_ms=5_000)

    async def scenario() -> None:
        producer = AIOKafkaProducer(**node.python("plain", mechanism, "alice", "wrong"))
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioKafkaError):
        asyncio.run(scenario())


def test_an_expired_token_is_refused(node: Node) -> None:
    client = Producer(node.librdkafka("plain", "OAUTHBEARER", "alice", token("alice", -600)))
    client.poll(0.5)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)


def test_a_connection_with_a_token_goes_on_with_a_newer_one(
    node: Node, admin: AdminClient, unique: Unique
) -> None:
    """The broker names the token's lifetime, and the client logs in again on the same connection (KIP-368)."""
    topic, group = unique("topic"), unique("group")
    allow(admin, "alice", topic, group)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_SECONDS)
    asked: list[str] = []

    def fresh(_: object) -> tuple[str, float]:
        asked.append(token("alice", 3))
        return asked[-1], time.time() + 3

    producer = Producer({**node.librdkafka("plain", "OAUTHBEARER", "alice"), "oauth_cb": fresh})
    failed: list[KafkaError] = []
    while len(asked) < 4:
        producer.produce(topic, b"...", on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0.2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failed == []


def test_a_right_that_is_taken_away_is_gone_for_clients_that_are_connected(
    node: Node, admin: AdminClient, unique: Unique
) -> None:
    topic, group = unique("topic"), unique("group")
    allow(admin, "bob", topic, group)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_SECONDS)
    settings = node.librdkafka("tls", "SCRAM-SHA-512", "bob")
    producer = Producer(settings)
    outcomes: list[KafkaError | None] = []

    def write() -> KafkaError | None:
        producer.produce(topic, b"...", on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(PATIENCE_SECONDS)
        return outcomes.pop()

    assert write() is None
    everything = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:bob",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    deleted = admin.delete_acls([everything])[everything].result(PATIENCE_SECONDS)
    assert len(deleted) == 3
    refused = write()
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_user_sees_the_topics_that_it_may_and_no_others(
    node: Node, admin: AdminClient, unique: Unique
) -> None:
    mine, hidden, group = unique("mine"), unique("hidden"), unique("group")
    allow(admin, "bob", mine, group)
    for created in admin.create_topics([NewTopic(mine, 1), NewTopic(hidden, 1)]).values():
        created.result(PATIENCE_SECONDS)
    own = AdminClient(node.librdkafka("plain", "PLAIN", "bob"))
    listed = own.list_topics(timeout=PATIENCE_SECONDS).topics
    assert mine in listed
    assert hidden not in listed
    with pytest.raises(KafkaException) as refused:
        own.create_topics([NewTopic(hidden, 1)])[hidden].result(PATIENCE_SECONDS)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_user_without_rights_on_the_cluster_hears_of_the_http_port_and_of_no_other_config(
    node: Node,
) -> None:
    own = AdminClient(node.librdkafka("plain", "PLAIN", "bob"))
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    told = own.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert list(told) == ["penstock.http.url"]
