"""Clients that begin with TLS and do not go on: bounded, and others are served beside them."""

import socket
import ssl
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.config import Limits
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from tests.kafka.raw import RawClient

PATIENCE_SECONDS = 60.0
MOST = 100
SLOW = 1_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tls=True, http=None, limits=Limits(max_tls_handshakes=MOST)) as running:
        yield running


def client_hello(broker: Broker) -> bytes:
    """The first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=broker.tls_ca_file)
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("sent", ["nothing", "half a hello", "a hello"])
def test_a_thousand_slow_handshakes_keep_nobody_out(broker: Broker, sent: str) -> None:
    hello = client_hello(broker)
    begun = {"nothing": b"", "half a hello": hello[:100], "a hello": hello}[sent]
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    slow = []
    try:
        for number in range(SLOW):
            slow.append(socket.create_connection((host, int(port)), PATIENCE_SECONDS))
            slow[-1].sendall(begun)
            if number % 250 == 0:
                with RawClient(broker) as honest:
                    honest.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        assert AdminClient(broker.client_settings()).list_topics(timeout=PATIENCE_SECONDS).brokers
        listener = broker._thread.service._listener
        assert listener is not None
        assert listener._tls_ports["default"].handshakes <= MOST
    finally:
        for one in slow:
            one.close()


def test_connections_with_tls_count_for_the_limit_of_connections() -> None:
    limits = Limits(max_connections=2)
    with (
        Broker(tls=True, http=None, limits=limits) as broker,
        RawClient(broker) as one,
        RawClient(broker) as two,
    ):
        for client in (one, two):
            client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        with RawClient(broker) as third:
            assert third.is_closed_by_broker()
