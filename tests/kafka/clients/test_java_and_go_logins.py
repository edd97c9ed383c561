"""Java's clients and franz-go log in by every way there is: they produce, read as a group and administer; and they hear
of a wrong password, an expired token, a stranger's certificate, and a right that was taken away."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.node.access import logins
from tests.kafka.programs.builds import franz_go_client, java_client
from tests.kafka.programs.pipe import Client, Program, Refused
from tests.secured import (
    CREATE,
    GROUP,
    PASSWORD_MECHANISMS,
    PASSWORDS,
    READ,
    TOPIC,
    WRITE,
    SecuredNode,
    secured_node,
    token,
)
from tests.tls import Certificates

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

Unique = Callable[[str], str]
PROGRAMS = {"java": java_client, "franz-go": franz_go_client}
RECORDS = ["one", "two", "three"]
SESSION_MS = 2000
CERTIFICATE_WORDS = (
    "unknown_ca",
    "valid certification path",
    "unknown certificate authority",
    "unknown authority",
)
"""How Java and Go say that one side does not believe the other's certificate."""


class Way(NamedTuple):
    """How a client comes in, and as whom."""

    listener: str
    user: str
    mechanism: str = ""


WAYS = {
    "TLS": Way("anonymous", "ANONYMOUS"),
    "mTLS": Way("certificate", "orders"),
    "PLAIN": Way("tls", "alice", "PLAIN"),
    "SCRAM-SHA-256": Way("tls", "alice", "SCRAM-SHA-256"),
    "SCRAM-SHA-512": Way("tls", "alice", "SCRAM-SHA-512"),
    "OAUTHBEARER": Way("tls", "alice", "OAUTHBEARER"),
    "SCRAM-SHA-256 without TLS": Way("plain", "alice", "SCRAM-SHA-256"),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def keystore(certificates: Certificates) -> str:
    """The client's key and certificate in one file, the key as PKCS #8: Java takes nothing else."""
    made = certificates.folder / "client-keystore.pem"
    key = load_pem_private_key(Path(certificates.client_key).read_bytes(), None)
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made.write_bytes(plain + Path(certificates.client_cert).read_bytes())
    return str(made)


def settings(node: SecuredNode, way: Way, secret: str | None = None) -> dict[str, str]:
    told = {"bootstrap": node.address(way.listener)}
    if way.listener != "plain":
        told["ca"] = node.certificates.ca
    if way.listener == "certificate":
        told["keystore"] = keystore(node.certificates)
    if way.mechanism:
        default = token(way.user) if way.mechanism == "OAUTHBEARER" else PASSWORDS[way.user]
        told |= {"mechanism": way.mechanism, "user": way.user, "secret": secret or default}
    return told


@pytest.fixture(scope="module", autouse=True)
def no_delays() -> Iterator[None]:
    """All clients have one address here, and franz-go tries a wrong password more than once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "SLOWEST_SECONDS", logins.FIRST_DELAY_SECONDS)
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node"), certificate_listeners=True) as running:
        yield running


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(PROGRAMS[request.param](), tmp_path_factory.mktemp("program") / "log") as running:
        yield running


def allow(node: SecuredNode, user: str, topic: str, group: str) -> None:
    node.allow(user, TOPIC, topic, CREATE, WRITE, READ)
    node.allow(user, GROUP, group, READ)


def error_of(attempt: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        attempt()
    return refused.value.name


@every_way
def test_a_client_administers_produces_and_reads_as_a_group(
    node: SecuredNode, program: Program, way: Way, unique: Unique
) -> None:
    topic, group = unique("topic"), unique("group")
    allow(node, way.user, topic, group)
    client = program.connect(**settings(node, way))
    client.create(topic)
    assert [client.produce(topic, value) for value in RECORDS] == [0, 1, 2]
    assert client.consume(topic, group, 3) == RECORDS
    assert topic in client.topics()
    client.close()


@every_way
def test_a_right_that_is_taken_away_is_gone_for_a_client_that_is_connected(
    node: SecuredNode, program: Program, way: Way, unique: Unique
) -> None:
    topic, group = unique("topic"), unique("group")
    allow(node, way.user, topic, group)
    client = program.connect(**settings(node, way))
    client.create(topic)
    client.produce(topic, "one")
    node.revoke(way.user, GROUP, group)
    assert error_of(lambda: client.consume(topic, group, 1)) == "GROUP_AUTHORIZATION_FAILED"
    node.revoke(way.user, TOPIC, topic)
    assert error_of(lambda: client.produce(topic, "two")) == "TOPIC_AUTHORIZATION_FAILED"
    assert error_of(lambda: client.create(unique("other"))) == "TOPIC_AUTHORIZATION_FAILED"
    assert topic not in client.topics()
    client.close()


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_a_client_hears_that_its_password_is_wrong(
    node: SecuredNode, program: Program, mechanism: str
) -> None:
    client = program.connect(**settings(node, Way("tls", "alice", mechanism), "wrong-password"))
    assert error_of(client.topics) == "SASL_AUTHENTICATION_FAILED"
    client.close()


def test_a_client_with_an_expired_token_is_refused(node: SecuredNode, program: Program) -> None:
    """The broker first sends a challenge that says why (RFC 7628). Java answers it and hears Kafka's error; franz-go
    gives up in its own words."""
    client = program.connect(**settings(node, WAYS["OAUTHBEARER"], token("alice", -600)))
    with pytest.raises(Refused, match=r"SASL_AUTHENTICATION_FAILED|unexpected data in oauth response"):
        client.topics()
    client.close()


def refuses_certificates(client: Client) -> bool:
    with pytest.raises(Refused) as refused:
        client.topics()
    return any(words in refused.value.message for words in CERTIFICATE_WORDS)


def test_a_client_whose_certificate_a_stranger_signed_is_refused(
    node: SecuredNode, program: Program, tmp_path: Path
) -> None:
    told = settings(node, WAYS["mTLS"])
    client = program.connect(**{**told, "keystore": keystore(Certificates(tmp_path))})
    assert refuses_certificates(client)
    client.close()


def test_a_client_refuses_a_broker_whose_authority_it_does_not_know(
    node: SecuredNode, program: Program, tmp_path: Path
) -> None:
    told = settings(node, WAYS["TLS"])
    client = program.connect(**{**told, "ca": Certificates(tmp_path).ca})
    assert refuses_certificates(client)
    client.close()


def test_a_connection_goes_on_when_its_session_ends_because_the_client_logs_in_again(
    program: Program, unique: Unique, tmp_path: Path
) -> None:
    """KIP-368: the broker names the session's lifetime, and closes connections that go on without a login."""
    topic, group = unique("topic"), unique("group")
    with secured_node(tmp_path, max_session_ms=SESSION_MS) as node:
        allow(node, "alice", topic, group)
        client = program.connect(**settings(node, WAYS["SCRAM-SHA-512"]))
        client.create(topic)
        count = 0
        deadline = time.monotonic() + 3 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            assert client.produce(topic, "one") == count
            count += 1
        client.close()
