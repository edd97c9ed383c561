"""Logins on the Kafka port, byte by byte: what a client may send before it, how it ends, and what is limited."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as KafkaMechanism

from penstock import Broker
from penstock.config import Address, Limits, Listener, NodeConfig
from penstock.embedded import _BrokerThread
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message, encode_request, join
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.security.credentials import ScramMechanism
from penstock.security.scram import ScramClient
from tests.kafka.raw import RawClient, frame
from tests.kafka.requests import create
from tests.secured import PATIENCE_SECONDS, secured_node
from tests.tls import Certificates

PASSWORDS = {"admin": "admin-password", "alice": "alice-password"}
PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-256"
LIMITS = Limits(max_login_bytes=2048)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=None, users=PASSWORDS, limits=LIMITS) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as client:
        yield client


def handshake(client: RawClient, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
    answer = client.call(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))
    assert isinstance(answer, SaslHandshakeResponse)
    return answer


def authenticate(client: RawClient, data: bytes, version: int = 2) -> SaslAuthenticateResponse:
    answer = client.call(ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=data))
    assert isinstance(answer, SaslAuthenticateResponse)
    return answer


def plain(user: str, password: str | None = None) -> bytes:
    return f"\0{user}\0{PASSWORDS[user] if password is None else password}".encode()


def log_in(client: RawClient, user: str = "admin") -> SaslAuthenticateResponse:
    assert handshake(client, PLAIN).error_code == ErrorCode.NONE
    answer = authenticate(client, plain(user))
    assert answer.error_code == ErrorCode.NONE
    return answer


def metadata(client: RawClient) -> MetadataResponse:
    answer = client.call(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    assert isinstance(answer, MetadataResponse)
    return answer


def administrator(broker: Broker) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SCRAM,
            "sasl.username": "admin",
            "sasl.password": PASSWORDS["admin"],
        }
    )


def test_before_the_login_a_client_may_ask_for_versions_and_nothing_else(client: RawClient) -> None:
    versions = client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    assert isinstance(versions, ApiVersionsResponse)
    assert versions.error_code == ErrorCode.NONE
    client.request(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    assert client.is_closed_by_broker()


def test_a_request_that_comes_with_the_handshake_is_not_served_either(client: RawClient) -> None:
    """A client that does not wait for the login must not get in before it has ended."""
    client.send(
        join(encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "raw", SaslHandshakeRequest(mechanism=PLAIN)))
        + join(
            encode_request(ApiKey.SASL_AUTHENTICATE, 2, 2, "raw", SaslAuthenticateRequest(auth_bytes=b"no"))
        )
        + join(encode_request(ApiKey.METADATA, 12, 3, "raw", MetadataRequest(topics=None)))
    )
    client.answer(ApiKey.SASL_HANDSHAKE, 1)
    _, refused = client.answer(ApiKey.SASL_AUTHENTICATE, 2)
    assert isinstance(refused, SaslAuthenticateResponse)
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.is_closed_by_broker()


def test_scram_by_hand_logs_in(client: RawClient) -> None:
    assert handshake(client, SCRAM).error_code == ErrorCode.NONE
    scram = ScramClient(ScramMechanism.SCRAM_SHA_256, "alice", PASSWORDS["alice"], "a-nonce")
    challenge = authenticate(client, scram.first())
    final = authenticate(client, scram.final(challenge.auth_bytes))
    scram.verify(final.auth_bytes)
    assert metadata(client).topics == [], "a user without rights sees nothing"


def test_a_login_whose_bytes_come_one_by_one_succeeds(broker: Broker) -> None:
    requests = (
        (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=PLAIN)),
        (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=plain("admin"))),
    )
    with RawClient(broker) as client:
        for key, version, message in requests:
            for byte in join(encode_request(key, version, 1, "raw", message)):
                client.send(bytes([byte]))
            _, answer = client.answer(key, version)
            assert getattr(answer, "error_code") == ErrorCode.NONE  # noqa: B009 - two types
        metadata(client)


def test_a_login_that_is_split_at_any_position_succeeds(broker: Broker) -> None:
    sent = join(
        encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "raw", SaslHandshakeRequest(mechanism=PLAIN))
    ) + join(
        encode_request(
            ApiKey.SASL_AUTHENTICATE, 2, 2, "raw", SaslAuthenticateRequest(auth_bytes=plain("admin"))
        )
    )
    for at in range(1, len(sent)):
        with RawClient(broker) as client:
            client.send(sent[:at])
            client.send(sent[at:])
            client.answer(ApiKey.SASL_HANDSHAKE, 1)
            _, answer = client.answer(ApiKey.SASL_AUTHENTICATE, 2)
            assert isinstance(answer, SaslAuthenticateResponse)
            assert answer.error_code == ErrorCode.NONE, at


def test_version_0_of_the_handshake_is_followed_by_messages_without_headers(client: RawClient) -> None:
    assert handshake(client, SCRAM, version=0).error_code == ErrorCode.NONE
    scram = ScramClient(ScramMechanism.SCRAM_SHA_256, "alice", PASSWORDS["alice"], "a-nonce")
    client.send(frame(scram.first()))
    client.send(frame(scram.final(client.read_frame())))
    scram.verify(client.read_frame())
    assert metadata(client).topics == []


def test_a_wrong_token_after_version_0_closes_the_connection(client: RawClient) -> None:
    handshake(client, PLAIN, version=0)
    client.send(frame(plain("alice", "wrong")))
    assert client.is_closed_by_broker()


def test_a_frame_that_comes_with_the_last_token_closes_the_connection_and_is_no_bug(
    client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    handshake(client, PLAIN, version=0)
    with caplog.at_level(logging.WARNING, "penstock.kafka"):
        client.send(frame(plain("alice")) + frame(plain("alice")))
        with suppress(ConnectionError):
            client.read_frame()
        assert client.is_closed_by_broker()
    assert any("before the login had ended" in line for line in caplog.messages)
    assert not any(record.exc_info for record in caplog.records)


@contextmanager
def client_with_certificate(folder: Path) -> Iterator[RawClient]:
    """Of a node where clients may log in by a certificate, a password, or both."""
    certificates = Certificates(folder)
    tls = certificates.settings(ca=True, client_auth="wanted")
    listener = Listener(bind=Address("127.0.0.1", 0), tls=tls, mechanisms=(PLAIN,))
    config = NodeConfig(memory=True, http=None, status_topic="", listeners=(listener,), require_login=True)
    thread = _BrokerThread(config, None, PASSWORDS)
    thread.start_and_wait()
    try:
        (bound,) = thread.service.listeners
        with RawClient(SimpleNamespace(bootstrap_servers=str(bound.bind))) as client:
            context = certificates.client_context(certificate=True)
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            yield client
    finally:
        thread.stop_and_wait()


def test_version_0_of_the_handshake_works_for_a_client_with_a_certificate_too(tmp_path: Path) -> None:
    with client_with_certificate(tmp_path) as client:
        metadata(client)
        assert handshake(client, PLAIN, version=0).error_code == ErrorCode.NONE
        client.send(frame(plain("admin")))
        assert client.read_frame() == b""
        metadata(client)


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_an_unknown_user_and_a_wrong_password_get_the_same_answer(broker: Broker, user: str) -> None:
    with RawClient(broker) as client:
        handshake(client, PLAIN)
        answer = authenticate(client, plain(user, "wrong"))
        assert (answer.error_code, answer.error_message, answer.auth_bytes) == (
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "invalid credentials",
            b"",
        )
        assert client.is_closed_by_broker()


def test_a_login_does_not_make_the_broker_forget_failures_of_its_address(broker: Broker) -> None:
    """Otherwise somebody with an account could guess the passwords of others without delay."""
    node = broker._thread.service.node
    assert node is not None
    with RawClient(broker) as guessing, RawClient(broker) as own:
        handshake(guessing, PLAIN)
        authenticate(guessing, plain("admin", "wrong"))
        failures = node.logins._failures["127.0.0.1"]
        log_in(own, "alice")
    assert node.logins._failures.get("127.0.0.1") == failures


def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are(client: RawClient) -> None:
    answer = handshake(client, "GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert set(answer.mechanisms) == {SCRAM, "SCRAM-SHA-512", PLAIN}
    log_in(client)  # it may choose another one


def test_requests_out_of_order_are_refused(client: RawClient) -> None:
    assert authenticate(client, plain("admin")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    handshake(client, PLAIN)
    assert handshake(client, PLAIN).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_request_before_the_login_is_small(broker: Broker) -> None:
    with RawClient(broker) as client:
        client.send((LIMITS.max_login_bytes + 1).to_bytes(4, "big"))
        assert client.is_closed_by_broker()
    with RawClient(broker) as client:
        log_in(client)
        client.send((LIMITS.max_login_bytes + 1).to_bytes(4, "big"))
        client.send(bytes(LIMITS.max_login_bytes))  # the rest does not come, and the broker waits for it
        with RawClient(broker) as other:
            log_in(other)
            metadata(other)


def test_a_client_may_log_in_again_as_the_same_user_only(broker: Broker) -> None:
    with RawClient(broker) as client:
        log_in(client)
        log_in(client)
        metadata(client)
        handshake(client, PLAIN)
        assert authenticate(client, plain("alice")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_broker()


def test_a_port_without_login_says_so() -> None:
    with Broker(http=None) as broker, RawClient(broker) as client:
        assert handshake(client, PLAIN).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert authenticate(client, plain("admin")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        metadata(client)


def test_a_client_that_does_not_log_in_is_closed_after_a_while() -> None:
    limits = Limits(login_timeout_ms=1)
    with Broker(http=None, users=PASSWORDS, limits=limits) as broker, RawClient(broker) as client:
        assert client.is_closed_by_broker()


def test_connections_of_a_deleted_user_are_closed(broker: Broker) -> None:
    admin = administrator(broker)
    secret = ScramCredentialInfo(KafkaMechanism.SCRAM_SHA_256, 4096)
    changed = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", secret, b"bobs")])
    changed["bob"].result(60)
    with RawClient(broker) as client, RawClient(broker) as other:
        log_in(other)
        handshake(client, PLAIN)
        assert authenticate(client, plain("bob", "bobs")).error_code == ErrorCode.NONE
        deletion = UserScramCredentialDeletion("bob", KafkaMechanism.SCRAM_SHA_256)
        admin.alter_user_scram_credentials([deletion])["bob"].result(60)
        assert client.is_closed_by_broker()
        metadata(other)


def test_a_handshake_for_a_token_does_not_let_a_connection_outlive_its_user(tmp_path: Path) -> None:
    with secured_node(tmp_path) as node:
        client = RawClient(SimpleNamespace(bootstrap_servers=node.address("plain")))
        assert handshake(client, PLAIN).error_code == ErrorCode.NONE
        assert authenticate(client, b"\0bob\0bob-password").error_code == ErrorCode.NONE
        assert handshake(client, "OAUTHBEARER").error_code == ErrorCode.NONE
        deletions = [
            UserScramCredentialDeletion("bob", kind)
            for kind in (KafkaMechanism.SCRAM_SHA_256, KafkaMechanism.SCRAM_SHA_512)
        ]
        admin = node.admin()
        admin.alter_user_scram_credentials(deletions)["bob"].result(PATIENCE_SECONDS)
        assert client.is_closed_by_broker()
        client.socket.close()


def fetching(topic: str) -> Message:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=600_000,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def test_a_fetch_that_waits_ends_when_its_permission_does(broker: Broker) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    admin = administrator(broker)
    rule = (ResourceType.TOPIC, "waited-for", ResourcePatternType.LITERAL, "User:alice", "*")
    binding = AclBinding(*rule, AclOperation.READ, AclPermissionType.ALLOW)
    with RawClient(broker) as own, RawClient(broker) as client:
        log_in(own)
        create(own, "waited-for", replicas=1)
        admin.create_acls([binding])[binding].result(60)
        log_in(client, "alice")
        client.request(ApiKey.FETCH, 12, fetching("waited-for"))
        wanted = AclBindingFilter(*rule, AclOperation.READ, AclPermissionType.ALLOW)
        admin.delete_acls([wanted])[wanted].result(60)
        _, answer = client.answer(ApiKey.FETCH, 12)
    assert isinstance(answer, FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
