"""Many wrong logins at once: each is refused, the node's work for them is bounded, and other clients are served."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import Broker
from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.node.access import logins
from penstock.security.credentials import ScramMechanism
from penstock.security.scram import ScramClient
from tests.kafka.raw import RawClient
from tests.kafka.server.test_logins import PASSWORDS, authenticate, handshake, log_in, metadata, plain

CLIENTS = 20
LOGINS_EACH = 25


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)  # so that they come as fast as they can
    with Broker(http=None, users=PASSWORDS, limits=Limits(login_timeout_ms=120_000)) as broker:
        yield broker


def guess(broker: Broker, mechanism: str) -> ErrorCode:
    with RawClient(broker) as client:
        handshake(client, mechanism)
        if mechanism == "PLAIN":
            return ErrorCode(authenticate(client, plain("alice", "a guess")).error_code)
        scram = ScramClient(ScramMechanism.SCRAM_SHA_256, "alice", "a guess", "nonce")
        challenge = authenticate(client, scram.first()).auth_bytes
        return ErrorCode(authenticate(client, scram.final(challenge)).error_code)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_guesses_are_refused_and_others_are_served_meanwhile(broker: Broker, mechanism: str) -> None:
    node = broker._thread.service.node
    assert node is not None
    is_over = threading.Event()
    served = 0
    with RawClient(broker) as honest, ThreadPoolExecutor(CLIENTS) as guessing:
        log_in(honest)
        guesses = [
            guessing.submit(lambda: [guess(broker, mechanism) for _ in range(LOGINS_EACH)])
            for _ in range(CLIENTS)
        ]
        threading.Thread(target=lambda: ([one.exception() for one in guesses], is_over.set())).start()
        while not is_over.is_set():
            metadata(honest)
            served += 1
        with RawClient(broker) as another:
            log_in(another)
    outcomes = {code for one in guesses for code in one.result()}
    assert outcomes == {ErrorCode.SASL_AUTHENTICATION_FAILED}
    assert node.metrics.failed_logins == CLIENTS * LOGINS_EACH
    assert served > 0
    checking = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-passwords")]
    assert len(checking) <= 1, "guessing takes one core at most"


def test_ten_thousand_addresses_that_fail_are_forgotten_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.cluster import ClusterState
    from penstock.node.access.logins import Logins

    found = Logins(ClusterState(1))
    for number in range(logins.MAX_ADDRESSES + 5_000):
        found.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(found._failures) == logins.MAX_ADDRESSES
