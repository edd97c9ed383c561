"""Quotas of HTTP requests and WebSockets: bytes count for the same user and client as over Kafka."""

import asyncio
import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from starlette.websockets import WebSocket, WebSocketState
from websockets.sync.client import connect

from penstock import Broker
from penstock.web.http_quotas import SocketQuota
from penstock.web.websocket_frames import FrameSender
from penstock.web.websocket_protocol import PROTOCOL
from tests.kafka.quota_requests import Entity, set_quotas
from tests.kafka.raw import RawClient
from tests.kafka.requests import create, write

ANONYMOUS: Entity = {"user": "ANONYMOUS"}
PATIENCE_SECONDS = 60
Answer = tuple[HTTPResponse, dict[str, object]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as client:
        create(client, "orders", replicas=1)
        yield client


def call(broker: Broker, method: str, path: str, body: object = None) -> Answer:
    assert broker.http_url is not None
    connection = HTTPConnection(broker.http_url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    headers = {} if body is None else {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response, json.loads(text) if text else {}


def publish(broker: Broker, size: int = 100_000) -> Answer:
    return call(broker, "POST", "/v1/topics/orders/records", {"records": [{"value": "v" * size}]})


def read(broker: Broker) -> Answer:
    return call(broker, "GET", "/v1/topics/orders/partitions/0/records?offset=0")


def is_throttled(answer: Answer) -> bool:
    response, body = answer
    if response.status != 429:
        return False
    error = body["error"]
    assert isinstance(error, dict)
    assert error["code"] == "throttled"
    assert int(response.headers["Retry-After"]) > 1
    return True


def test_publishing_above_the_quota_is_refused_until_the_rate_is_below(
    broker: Broker, client: RawClient
) -> None:
    set_quotas(client, ANONYMOUS, producer_byte_rate=100)
    assert publish(broker)[0].status == 200
    assert is_throttled(publish(broker))
    assert read(broker)[0].status == 200


def test_reading_above_the_quota_is_refused_until_the_rate_is_below(
    broker: Broker, client: RawClient
) -> None:
    assert publish(broker)[0].status == 200
    set_quotas(client, ANONYMOUS, consumer_byte_rate=100)
    assert read(broker)[0].status == 200
    assert is_throttled(read(broker))
    assert publish(broker)[0].status == 200


def test_bytes_over_kafka_and_over_http_count_together(broker: Broker, client: RawClient) -> None:
    set_quotas(client, ANONYMOUS, producer_byte_rate=100)
    write(client, "orders", bytes(100_000))
    assert is_throttled(publish(broker))


def test_topics_beyond_the_quota_of_mutations_are_refused_with_429(broker: Broker, client: RawClient) -> None:
    set_quotas(client, ANONYMOUS, controller_mutation_rate=1)
    first, _ = call(broker, "POST", "/v1/topics", {"name": "first", "partitions": 50})
    second, body = call(broker, "POST", "/v1/topics", {"name": "second", "partitions": 1})
    assert (first.status, second.status) == (201, 429)
    error = body["error"]
    assert isinstance(error, dict)
    assert error["code"] == "throttling_quota_exceeded"


def test_records_that_are_pushed_count_for_their_user(broker: Broker, client: RawClient) -> None:
    for _ in range(3):
        write(client, "orders", bytes(30_000))
    set_quotas(client, ANONYMOUS, consumer_byte_rate=100)
    assert broker.http_url is not None
    url = broker.http_url.replace("http", "ws", 1) + "/v1/push"
    with connect(url, max_size=None) as socket:
        request = {"type": "subscribe", "subscription": "alarms", "topics": ["orders"], "read_old": True}
        socket.send(json.dumps(request))
        offsets: list[object] = []
        while not offsets:
            frame = json.loads(socket.recv(timeout=PATIENCE_SECONDS))
            assert frame["type"] != "error", frame
            offsets += [message["offset"] for message in frame.get("messages", [])]
        assert offsets[0] == 0
    assert is_throttled(read(broker))


class DebtOf(SocketQuota):
    """A user that has to wait for so many seconds, once."""

    def __init__(self, seconds: float) -> None:
        self._waits = [seconds]
        self.counted: list[int] = []

    def wait_seconds(self) -> float:
        return self._waits.pop() if self._waits else 0.0

    def sent(self, size: int) -> None:
        self.counted.append(size)


class Taking:
    """A client that takes every frame."""

    async def has_room(self, seconds: float) -> bool:
        return True

    async def send(self, message: object) -> None: ...


def sender_of(quota: SocketQuota) -> FrameSender:
    taking: Any = Taking()
    socket = WebSocket({"type": "websocket", "headers": [], PROTOCOL: taking}, taking.send, taking.send)
    socket.application_state = WebSocketState.CONNECTED
    return FrameSender(socket, 1.0, quota)


def test_a_socket_above_its_quota_has_no_room_for_records_until_its_wait_is_over() -> None:
    async def run() -> None:
        sender = sender_of(DebtOf(seconds=3600.0))
        assert not await sender.has_room(0.01)
        assert await sender.has_room(0.01)
        sender = sender_of(DebtOf(seconds=0.01))
        await sender.wait_for_room()

    asyncio.run(run())


def test_only_frames_with_records_count() -> None:
    async def run() -> None:
        quota = DebtOf(0.0)
        sender = sender_of(quota)
        await sender.send({"type": "pong"})
        await sender.send(b"records")
        assert quota.counted == [7]

    asyncio.run(run())
