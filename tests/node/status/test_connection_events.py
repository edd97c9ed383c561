"""Connections of all protocols in the status log."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from penstock import Broker
from penstock.config import Limits
from penstock.node.status.connection_events import SINGLES, SINGLES_PER_MINUTE, Crowds

from .status_events import TOPIC, events_until, has, told

ASK = b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


@pytest.fixture
def watched() -> Iterator[Broker]:
    with Broker(status_topic=TOPIC) as running:
        yield running


def http_socket(broker: Broker) -> socket.socket:
    place = urlsplit(broker.http_url)
    assert place.hostname is not None
    return socket.create_connection((place.hostname, place.port or 0), timeout=30)


def name_of(client: socket.socket) -> str:
    return "{}:{}".format(*client.getsockname())


def ask_once(broker: Broker) -> str:
    """One request on a connection of its own, to its end; returns the client's address."""
    with http_socket(broker) as client:
        name = name_of(client)
        client.sendall(ASK)
        while client.recv(4096):
            pass
    return name


def push_url(broker: Broker, path: str = "/v1/push") -> str:
    return broker.http_url.replace("http://", "ws://") + path


# --- events


def test_a_kafka_connection_is_an_event_with_its_protocol(watched: Broker) -> None:
    host, port = watched.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as client:
        name = name_of(client)
        events_until(watched.bootstrap_servers, has("connection.opened", client=name, protocol="kafka"))
    events_until(watched.bootstrap_servers, has("connection.closed", client=name, protocol="kafka"))


def test_a_kafka_connection_that_the_broker_closes_is_an_event_with_the_reason() -> None:
    with Broker(status_topic=TOPIC, limits=Limits(max_request_bytes=65536)) as broker:
        host, port = broker.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            name = name_of(client)
            client.sendall((2**30).to_bytes(4, "big"))
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        events = events_until(broker.bootstrap_servers, has("connection.closed", client=name))
    [closed] = told(events, "connection.closed", client=name)
    assert str(2**30) in closed["reason"]


def test_an_http_connection_has_events_for_its_begin_and_end(watched: Broker) -> None:
    name = ask_once(watched)
    events = events_until(watched.bootstrap_servers, has("connection.closed", client=name))
    about = [event for event in events if event.get("client") == name]
    assert [(event["kind"], event["protocol"]) for event in about] == [
        ("connection.opened", "http"),
        ("connection.closed", "http"),
    ]


def test_a_websocket_connection_changes_its_protocol_in_its_events(watched: Broker) -> None:
    with connect(push_url(watched)) as reader:
        name = "{}:{}".format(*reader.local_address)
        events_until(watched.bootstrap_servers, has("connection.opened", client=name, protocol="websocket"))
    events = events_until(
        watched.bootstrap_servers, has("connection.closed", client=name, protocol="websocket")
    )
    about = [event for event in events if event.get("client") == name]
    assert [(event["kind"].split(".")[1], event["protocol"]) for event in about] == [
        ("opened", "http"),
        ("closed", "http"),
        ("opened", "websocket"),
        ("closed", "websocket"),
    ]
    assert about[1]["reason"] == "it becomes a WebSocket"


def test_a_websocket_of_a_foreign_origin_is_a_refused_event(watched: Broker) -> None:
    with pytest.raises(InvalidStatus):
        connect(push_url(watched), origin=Origin("http://elsewhere.example"))
    events = events_until(watched.bootstrap_servers, has("connection.refused", protocol="websocket"))
    [refused] = told(events, "connection.refused")
    assert refused["reason"] == "403 Forbidden"
    assert not told(events, "connection.opened", protocol="websocket")


def test_a_websocket_for_an_unknown_path_is_a_refused_event(watched: Broker) -> None:
    with pytest.raises(InvalidStatus):
        connect(push_url(watched, "/v1/nothing"))
    events_until(
        watched.bootstrap_servers,
        has("connection.refused", protocol="websocket", reason="404 Not Found"),
    )


def test_an_invalid_handshake_is_a_refused_event(watched: Broker) -> None:
    with http_socket(watched) as client:
        client.sendall(
            b"GET /v1/push HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        while client.recv(4096):
            pass
    events_until(
        watched.bootstrap_servers,
        has("connection.refused", protocol="websocket", reason="no handshake"),
    )


def test_an_http_connection_above_the_limit_is_a_refused_event_and_never_an_opened_one() -> None:
    with Broker(status_topic=TOPIC, limits=Limits(max_http_connections=1)) as broker, ExitStack() as held:
        # A WebSocket counts, and is never taken for idle.
        held.enter_context(connect(push_url(broker)))
        one_more = held.enter_context(http_socket(broker))
        name = name_of(one_more)
        with suppress(ConnectionResetError):
            assert one_more.recv(1) == b""
        events = events_until(broker.bootstrap_servers, has("connection.refused", client=name))
        [refused] = told(events, "connection.refused", client=name)
        assert (refused["protocol"], refused["reason"]) == ("http", "too many connections")
        assert not told(events, "connection.opened", client=name)
        assert not told(events, "connection.closed", client=name)


def test_an_idle_connection_that_is_closed_for_another_is_an_event_with_the_reason() -> None:
    with Broker(status_topic=TOPIC, limits=Limits(max_http_connections=1)) as broker, ExitStack() as held:
        silent = held.enter_context(http_socket(broker))
        name = name_of(silent)
        events_until(broker.bootstrap_servers, has("connection.opened", client=name))
        ask_once(broker)
        events_until(
            broker.bootstrap_servers,
            has("connection.closed", client=name, reason="idle, and the limit of connections is reached"),
        )


# --- floods


def test_a_flood_of_short_http_requests_is_summed_up(watched: Broker) -> None:
    events_until(watched.bootstrap_servers, has("broker.ready"))
    names = {ask_once(watched) for _ in range(150)}

    def all_closed(events: list[dict[str, object]]) -> bool:
        return len(told(events, "connection.closed", protocol="http")) + sums(events, "closed") >= len(names)

    events = events_until(watched.bootstrap_servers, all_closed)
    singly = [event for event in events if event.get("client") in names]
    # The minute may have changed once meanwhile.
    assert SINGLES <= len(singly) <= 2 * SINGLES_PER_MINUTE < 2 * len(names)
    assert len(told(events, "connection.opened", protocol="http")) + sums(events, "opened") == len(names)


def sums(events: list[dict[str, object]], what: str) -> int:
    return sum(int(str(event.get(what, 0))) for event in told(events, "connections.summary", protocol="http"))


def singles(crowds: Crowds, protocol: str, wall_ms: int, count: int) -> int:
    return sum(crowds.is_single("connection.opened", protocol, wall_ms) for _ in range(count))


def test_between_two_writes_only_the_first_events_are_single() -> None:
    crowds = Crowds()
    assert singles(crowds, "http", 0, 30) == SINGLES
    assert list(crowds.sum_up()) == [{"protocol": "http", "opened": 30 - SINGLES}]
    assert list(crowds.sum_up()) == [], "a sum is told once"
    assert singles(crowds, "http", 0, 5) == 5


def test_the_number_of_single_events_per_minute_is_limited() -> None:
    crowds = Crowds()
    told_singly = 0
    for collection in range(50):
        told_singly += singles(crowds, "http", collection * 1000, 4)
        list(crowds.sum_up())
    assert told_singly == SINGLES_PER_MINUTE
    assert singles(crowds, "http", 60_000, 4) == 4


def test_a_flood_of_one_protocol_does_not_hide_the_others() -> None:
    crowds = Crowds()
    singles(crowds, "http", 0, 1000)
    assert singles(crowds, "kafka", 0, 3) == 3
    assert list(crowds.sum_up()) == [{"protocol": "http", "opened": 1000 - SINGLES}]
