"""Logins and TLS of the client for batches, with a real node and with scripted answers."""

from collections.abc import Iterator

import pytest

from penstock.batch import Record
from penstock.client import LoginFailed, Refused, TlsFailed, Unreachable
from penstock.client.security_settings import SecuritySettings
from penstock.client.wire import ClientSettings, Cluster, Connection, fetch_range
from penstock.client.wire.producer import BatchProducer
from penstock.errors import ConfigError, ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.metadata import MetadataRequest
from penstock.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.kafka.wire.messages.sasl_handshake import SaslHandshakeResponse
from penstock.types import TopicPartition
from tests.client.wire.fake import FakeBroker, Request
from tests.secured import MECHANISMS, READ, SECRETS, TOPIC, WRITE, SecuredNode, secured_node, token

ASK = MetadataRequest(topics=[])
PLAIN = SecuritySettings(mechanism="PLAIN", user="alice", password="alice-password")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node"), max_session_ms=2_000) as running:
        yield running


def settings(servers: str, security: SecuritySettings, **changes: int) -> ClientSettings:
    times = {"retry_for_ms": 0, "retry_backoff_ms": 5, **changes}
    return ClientSettings(bootstrap_servers=servers, security=security, **times)


def connected(servers: str, security: SecuritySettings) -> Connection:
    host, _, port = servers.rpartition(":")
    return Connection(host, int(port), settings(servers, security))


@pytest.mark.parametrize("listener", ["plain", "tls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_records_are_written_and_read(node: SecuredNode, listener: str, mechanism: str, unique) -> None:
    topic = unique("orders")
    with Cluster(
        settings(node.address("plain"), node.wire("plain", "PLAIN", "admin"), retry_for_ms=20_000)
    ) as admin:
        admin.create_topic(topic, 1)
    node.allow("alice", TOPIC, topic, READ, WRITE)
    records = [Record(0, number, b"k", b"v" * 100_000, ()) for number in range(40)]
    mine = settings(node.address(listener), node.wire(listener, mechanism, "alice"), retry_for_ms=20_000)
    with Cluster(mine) as cluster, BatchProducer(cluster) as producer:
        producer.send_records(topic, 0, records)
        producer.flush()
        chunks = list(fetch_range(cluster, TopicPartition(topic, 0), 0, len(records)))
    assert sum(map(len, chunks)) > 40 * 100_000


def test_a_client_logs_in_again_on_the_same_connection_before_its_session_ends(node: SecuredNode) -> None:
    for mechanism in ("SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"):
        connection = connected(node.address("tls"), node.wire("tls", mechanism, "alice"))
        logins = set()
        while len(logins) < 2:
            connection.call(ApiKey.METADATA, ASK)
            logins.add(connection._login_again_s)
        connection.close()


def test_answers_that_are_outstanding_survive_a_new_login(node: SecuredNode) -> None:
    connection = connected(node.address("plain"), node.wire("plain", "SCRAM-SHA-256", "alice"))
    connection.send(ApiKey.METADATA, ASK)
    connection._login_again_s = 0.0
    connection.send(ApiKey.METADATA, ASK)
    assert connection.receive() == connection.receive()
    connection.close()


def ask_for_ever(connection: Connection) -> None:
    while True:
        connection.call(ApiKey.METADATA, ASK)


def test_a_session_that_has_ended_costs_a_connection_and_no_more(node: SecuredNode) -> None:
    mine = settings(node.address("plain"), node.wire("plain", "PLAIN", "alice"), retry_for_ms=20_000)
    with Cluster(mine) as cluster:
        cluster.topics([])
        connection = cluster._pool._connect(cluster._pool._bootstrap[0])
        connection._login_again_s = float("inf")
        with pytest.raises(Unreachable) as lost:
            ask_for_ever(connection)
        assert lost.value.retriable
        cluster.topics([])


# --- refusals


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_or_token_is_told_without_it(node: SecuredNode, mechanism: str) -> None:
    secret = token("alice", -600) if mechanism == "OAUTHBEARER" else "wrong-password"
    with pytest.raises(
        LoginFailed, match=f"does not accept the login by {mechanism}.*invalid credentials"
    ) as told:
        connected(node.address("tls"), node.wire("tls", mechanism, "alice", secret))
    assert not told.value.retriable
    assert not any(text in str(told.value) for text in (*SECRETS, secret))


def test_a_wrong_password_is_tried_at_one_server_only(node: SecuredNode) -> None:
    servers = f"{node.address('plain')},localhost:{node.address('plain').rpartition(':')[2]}"
    before = node.thread.service.node.metrics.failed_logins
    cluster = Cluster(settings(servers, node.wire("plain", "SCRAM-SHA-256", "alice", "wrong-password")))
    with cluster, pytest.raises(LoginFailed):
        cluster.topics([])
    assert node.thread.service.node.metrics.failed_logins == before + 1


def test_no_login_wrong_tls_and_missing_rights_are_told(node: SecuredNode) -> None:
    login = node.wire("plain", "PLAIN", "bob")
    nothing = SecuritySettings()
    cases = [
        (node.address("plain"), nothing, LoginFailed, "wants a login"),
        (node.address("tls"), login, TlsFailed, "this port speaks TLS only"),
        (node.address("plain"), node.wire("tls", "PLAIN", "bob"), TlsFailed, "this port does not speak TLS"),
        (node.address("tls"), SecuritySettings(tls=True), TlsFailed, "is not trusted"),
        (node.address("tls"), SecuritySettings(tls=True, ca_file="/nowhere"), TlsFailed, "on each executor"),
    ]
    for servers, security, kind, words in cases:
        cluster = Cluster(settings(servers, security))
        with cluster, pytest.raises(kind, match=words):
            cluster.topics([])
    cluster = Cluster(settings(node.address("plain"), login))
    with cluster, pytest.raises(Refused, match=r"no DESCRIBE permission.*penstock acls") as refused:
        cluster.topics(["orders"])
    assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_mechanism_that_the_broker_does_not_offer_is_told() -> None:
    refusal = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["GSSAPI"])
    told = pytest.raises(LoginFailed, match="no login by PLAIN, but by GSSAPI")
    with FakeBroker({ApiKey.SASL_HANDSHAKE: lambda _: refusal}) as fake, told:
        connected(fake.address, PLAIN)


def test_a_broker_that_cannot_prove_that_it_knows_the_password_is_refused() -> None:
    def answer(request: Request) -> SaslAuthenticateResponse:
        assert isinstance(request.message, SaslAuthenticateRequest)
        text = request.message.auth_bytes.decode()
        if not text.startswith("n,,"):
            return SaslAuthenticateResponse(auth_bytes=b"v=AAAA")
        nonce = text.rpartition("r=")[2]
        return SaslAuthenticateResponse(auth_bytes=f"r={nonce}theirs,s=QUJDREVGR0g=,i=4096".encode())

    handlers = {ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(), ApiKey.SASL_AUTHENTICATE: answer}
    scram = SecuritySettings(mechanism="SCRAM-SHA-256", user="alice", password="alice-password")
    with (
        FakeBroker(handlers) as fake,
        pytest.raises(LoginFailed, match="check that this is the right broker"),
    ):
        connected(fake.address, scram)


def test_too_many_logins_at_once_are_worth_another_try() -> None:
    busy = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="too many logins at once: try again"
    )
    handlers = {
        ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(),
        ApiKey.SASL_AUTHENTICATE: lambda _: busy,
    }
    with FakeBroker(handlers) as fake, pytest.raises(LoginFailed) as refused:
        connected(fake.address, PLAIN)
    assert refused.value.retriable


def test_impossible_settings_are_refused_before_connecting() -> None:
    with pytest.raises(ConfigError, match="a user and a password"):
        settings("h:1", SecuritySettings(mechanism="PLAIN", user="alice")).validate()
    with pytest.raises(ConfigError, match="one of PLAIN"):
        settings("h:1", SecuritySettings(mechanism="GSSAPI")).validate()
    with pytest.raises(ConfigError, match="a token"):
        settings("h:1", SecuritySettings(mechanism="OAUTHBEARER")).validate()
