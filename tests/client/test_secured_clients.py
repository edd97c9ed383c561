"""Client and AsyncClient with brokers that require login and TLS: what works, what is refused, and what users hear."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client import (
    AsyncClient,
    Client,
    ClientError,
    Denied,
    LoginFailed,
    PublishFailed,
    Refused,
    TlsFailed,
)
from penstock.config import NodeConfig
from penstock.errors import ErrorCode
from tests.ports import free_port
from tests.secured import (
    ANY_PORT,
    CREATE,
    DESCRIBE,
    GROUP,
    READ,
    SECRETS,
    TOPIC,
    WRITE,
    SecuredNode,
    secured_node,
    token,
)
from tests.tls import Certificates, running

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def admin(node: SecuredNode) -> Iterator[Client]:
    with Client(node.address("tls"), **node.arguments("admin")) as client:
        yield client


@pytest.fixture
def topic(node: SecuredNode, admin: Client, unique: Unique) -> str:
    """A topic with a queue of the same name, which alice may use."""
    name = unique("orders")
    admin.admin.create_queue(name)
    node.allow("alice", TOPIC, name, READ, WRITE)
    node.allow("alice", GROUP, name, READ)
    return name


def ways(node: SecuredNode) -> dict[str, tuple[str, dict]]:
    ca = node.certificates.ca
    plain = {"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": ca}
    return {
        "arguments": (node.address("tls"), node.arguments("alice")),
        "librdkafka": (
            node.address("tls"),
            {
                "kafka": {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanisms": "PLAIN",
                    "sasl.username": "alice",
                    "sasl.password": "alice-password",
                    "ssl.ca.location": ca,
                }
            },
        ),
        "token": (node.address("tls"), {"token": token("alice"), "tls_ca": ca}),
        "token-function": (node.address("tls"), {"token": lambda: token("alice"), "tls_ca": ca}),
        "kafka-without-tls": (
            node.address("plain"),
            {"user": "alice", "password": "alice-password", "kafka": plain},
        ),
    }


WAYS = ("arguments", "librdkafka", "token", "token-function", "kafka-without-tls")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_publishes_works_subscribes_and_calls(
    node: SecuredNode, topic: str, unique: Unique, way: str
) -> None:
    address, arguments = ways(node)[way]
    name = unique("subscription")
    node.allow("alice", GROUP, name, READ)
    with Client(address, **arguments) as client:
        client.publish(topic, b"one")
        with client.queue(topic) as queue:
            job = queue.receive(PATIENCE_SECONDS)
            assert job is not None
            job.ack().wait(PATIENCE_SECONDS)
        with client.subscribe(topic, name=name, read_old=True) as subscription:
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            assert message.value == b"one"
        assert topic in {one.name for one in client.admin.topics()}
        assert topic in client.admin.queues()


@pytest.mark.parametrize("way", WAYS)
def test_an_asyncio_client_does_the_same(node: SecuredNode, topic: str, way: str) -> None:
    address, arguments = ways(node)[way]

    async def scenario() -> None:
        async with AsyncClient(address, **arguments) as client:
            await client.publish(topic, b"one")
            async with client.queue(topic) as queue:
                job = await queue.receive(PATIENCE_SECONDS)
                assert job is not None
                await job.ack()
            assert topic in await client.admin.queues()

    asyncio.run(scenario())


def test_a_certificate_is_a_login(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    files = {"tls_cert": certificates.cert, "tls_key": certificates.key, "tls_ca": certificates.ca}
    config = NodeConfig(
        memory=True,
        kafka=ANY_PORT,
        http=ANY_PORT,
        status_topic="",
        require_login=True,
        super_users=("User:orders",),
        tls_principal_rules="RULE:^CN=([^,]+).*$/$1/",
        **files,
    )
    mine = {
        "tls_cert": certificates.client_cert,
        "tls_key": certificates.client_key,
        "tls_ca": certificates.ca,
    }
    with running(config) as service, Client(str(service.kafka_address), **mine) as client:
        client.admin.create_queue("orders")
        client.publish("orders", b"one")
        job = client.queue("orders").receive(PATIENCE_SECONDS)
        assert job is not None


# --- refused logins


def check_told(client: Client, topic: str, kind: type[ClientError], words: str) -> None:
    """Each use of the client ends with this error, and none of their texts has a secret."""
    with pytest.raises(PublishFailed, match=words) as failed:
        client.publish(topic, b"one")
    assert isinstance(failed.value.__cause__, kind)
    for use in (client.admin.topics, lambda: client.queue(topic).receive(PATIENCE_SECONDS)):
        with pytest.raises(kind, match=words) as refused:
            use()
        assert not refused.value.retriable
        assert not any(secret in str(refused.value) for secret in SECRETS)


@pytest.mark.usefixtures("gives_up_soon")
def test_a_wrong_password(node: SecuredNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Client(node.address("tls"), **node.arguments("alice", "wrong-password")) as client:
        check_told(
            client, "orders", LoginFailed, "does not accept the login by SCRAM-SHA-256 as user 'alice'"
        )
    assert not any(secret in caplog.text for secret in SECRETS)


def test_a_wrong_password_with_asyncio(node: SecuredNode) -> None:
    async def scenario() -> None:
        async with AsyncClient(node.address("tls"), **node.arguments("alice", "wrong-password")) as client:
            with pytest.raises(LoginFailed, match="check user and password"):
                await client.queue("orders").receive(PATIENCE_SECONDS)

    asyncio.run(scenario())


def uses(client: Client, topic: str) -> list[Callable[[], object]]:
    """Of the HTTP port."""
    return [
        client.admin.queues,
        lambda: client.queue(topic).receive(PATIENCE_SECONDS),
        lambda: client.subscribe(topic, name=topic).receive(PATIENCE_SECONDS),
    ]


def test_a_wrong_password_over_http_alone(node: SecuredNode) -> None:
    arguments = node.arguments("alice", "wrong-password")
    with Client(node.address("tls"), http=node.http_url, **arguments) as client:
        for use in uses(client, "orders"):
            with pytest.raises(LoginFailed, match="HTTP port does not accept the login: invalid credentials"):
                use()


def test_no_login_where_one_is_required(node: SecuredNode) -> None:
    with Client(node.address("tls"), tls_ca=node.certificates.ca) as client:
        check_told(client, "orders", LoginFailed, r"wants a login \(by PLAIN, SCRAM.*give user and password")
    client = Client(node.address("tls"), tls_ca=node.certificates.ca, http=node.http_url)
    with client, pytest.raises(LoginFailed, match="HTTP port wants a login"):
        client.admin.queues()


@pytest.mark.usefixtures("gives_up_soon")
def test_an_expired_token(node: SecuredNode) -> None:
    arguments = {"token": token("alice", -600), "tls_ca": node.certificates.ca}
    client = Client(node.address("tls"), **arguments)
    with client, pytest.raises(LoginFailed, match="the token may have expired"):
        client.admin.topics()


@pytest.mark.usefixtures("gives_up_soon")
def test_a_certificate_that_is_not_trusted(node: SecuredNode) -> None:
    arguments = {"user": "alice", "password": "alice-password", "tls": True}
    with Client(node.address("tls"), **arguments) as client:
        check_told(client, "orders", TlsFailed, "certificate is not trusted.*name the authority.*tls_ca")
    with Client(node.address("tls"), http=node.http_url, **arguments) as client:
        for use in uses(client, "orders"):
            with pytest.raises(TlsFailed, match=f"{node.http_url.removeprefix('https')}.*is not trusted"):
                use()


@pytest.mark.usefixtures("gives_up_soon")
def test_tls_where_there_is_none_and_none_where_there_is(node: SecuredNode) -> None:
    login = {"user": "alice", "password": "alice-password"}
    with Client(node.address("tls"), **login) as client:
        check_told(client, "orders", TlsFailed, "this port speaks TLS only")
    with Client(node.address("plain"), **login, tls_ca=node.certificates.ca) as client:
        check_told(client, "orders", TlsFailed, "this port does not speak TLS")


@pytest.mark.usefixtures("gives_up_soon")
def test_a_login_where_there_is_none(broker: Broker) -> None:
    with Client(broker.bootstrap_servers, user="alice", password="alice-password") as client:
        check_told(client, "orders", LoginFailed, "clients do not log in on this port")


def test_a_broker_that_is_away_is_still_unreachable() -> None:
    with Client(f"127.0.0.1:{free_port()}", user="alice", password="alice-password") as client:
        with pytest.raises(PublishFailed, match="no broker answers") as failed:
            client.publish("orders", b"one")
        assert failed.value.retriable


# --- rights


def test_an_error_says_which_right_is_missing(node: SecuredNode, admin: Client, unique: Unique) -> None:
    name = unique("orders")
    admin.admin.create_queue(name)
    with Client(node.address("tls"), **node.arguments("bob")) as client:
        with pytest.raises(PublishFailed, match=r"no DESCRIBE permission on the topic.*penstock acls add"):
            client.publish(name, b"one")
        with pytest.raises(
            Refused, match=r"User:bob has no CREATE permission on topic.*penstock acls"
        ) as refused:
            client.admin.create_topic(unique("new"))
        assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(
            Denied, match=r"User:bob has no READ permission on group.*penstock acls"
        ) as denied:
            client.queue(name).receive(PATIENCE_SECONDS)
        assert denied.value.code == "group_authorization_failed"
        node.allow("bob", TOPIC, name, DESCRIBE)
        with pytest.raises(PublishFailed, match="no WRITE permission on"):
            client.publish(name, b"one")


def test_a_subscription_ends_when_its_right_is_taken_away(node: SecuredNode, topic: str) -> None:
    node.allow("alice", GROUP, f"{topic}-billing", READ)
    with Client(node.address("tls"), **node.arguments("alice")) as client:
        client.publish(topic, b"one")
        with client.subscribe(topic, name=f"{topic}-billing", read_old=True) as subscription:
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            message.ack().wait(PATIENCE_SECONDS)
            node.revoke("alice", TOPIC, topic)
            with pytest.raises(Denied, match="User:alice has no READ permission on topic"):
                subscription.receive(PATIENCE_SECONDS)


def test_workers_end_when_their_right_is_taken_away(node: SecuredNode, topic: str) -> None:
    client = Client(node.address("tls"), **node.arguments("alice"))
    handled = threading.Event()
    ended: list[BaseException] = []

    @client.worker(topic)
    def handle(job: object) -> None:
        handled.set()

    def run() -> None:
        try:
            client.run(signals=False)
        except ClientError as problem:
            ended.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    client.publish(topic, b"one")
    assert handled.wait(PATIENCE_SECONDS)
    node.revoke("alice", GROUP, topic)
    thread.join(PATIENCE_SECONDS)
    client.close()
    assert [type(one) for one in ended] == [Denied]
    assert "User:alice has no READ permission on group" in str(ended[0])


def test_a_schedule_runs_with_a_login(node: SecuredNode, unique: Unique) -> None:
    client = Client(node.address("tls"), **node.arguments("admin"))
    done = threading.Event()

    @client.every("1s", name=unique("tick"))
    def tick(job: object) -> None:
        done.set()

    thread = threading.Thread(target=client.run, kwargs={"signals": False})
    thread.start()
    assert done.wait(PATIENCE_SECONDS)
    client.stop()
    thread.join(PATIENCE_SECONDS)
    client.close()


def test_a_call_gets_its_reply_with_a_login(node: SecuredNode, topic: str) -> None:
    node.allow("alice", TOPIC, f"{topic}.replies", CREATE, READ, WRITE)
    client = Client(node.address("tls"), **node.arguments("alice"))

    @client.worker(topic)
    def answer(job: object) -> str:
        return "done"

    thread = threading.Thread(target=client.run, kwargs={"signals": False})
    thread.start()
    assert client.call(topic, b"do it", timeout=PATIENCE_SECONDS).text() == "done"
    client.stop()
    thread.join(PATIENCE_SECONDS)
    client.close()
