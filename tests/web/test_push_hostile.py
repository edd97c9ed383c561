"""Subscribers that send invalid frames, too much, or nothing. Each is told why, and others are not affected."""

import json
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect
from websockets.typing import Origin

from penstock import Broker
from penstock.config import Limits
from penstock.web import push, websocket_frames, websocket_protocol
from tests.web.pushing import create, produce, push_url, subscriber, values

Unique = Callable[[str], str]

SUBSCRIBE = {"type": "subscribe", "subscription": "x", "topics": ["x"]}


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> str:
    name = unique("hostile")
    create(broker.bootstrap_servers, name)
    return name


def still_serves(broker: Broker, topic: str, unique: Unique) -> bool:
    with subscriber(broker.http_url) as other:
        other.subscribe(unique("other"), topic)
        produce(broker.bootstrap_servers, topic, ["alive"])
        return values(other.take(1)) == ["alive"]


# --- the first frame


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "invalid_frame"),
        ("nonsense", "invalid_frame"),
        ("[" * 100_000, "invalid_frame"),
        ("null", "invalid_frame"),
        ("[]", "invalid_frame"),
        ("{}", "invalid_field"),
        ('{"type": "dance"}', "invalid_field"),
        ('{"type": 7}', "invalid_field"),
        ('{"type": "ack", "topic": "t", "partition": 0, "offset": 0}', "not_subscribed"),
        ('{"type": "subscribe", "topics": ["x"]}', "invalid_field"),
        (json.dumps({**SUBSCRIBE, "topics": []}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "topics": ["x"] * 1001}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "topics": [7]}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "topics": ["../x"]}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "subscription": ""}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "subscription": "n" * 250}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "credit": 0}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "credit": 10**30}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "credit": "many"}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "read_old": "yes"}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "ack_timeout_ms": -1}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "encoding": "morse"}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "credits": 5}), "invalid_field"),
        (json.dumps({**SUBSCRIBE, "topics": ["there-is-no-such-topic"]}), "unknown_topic"),
        (json.dumps({**SUBSCRIBE, "topics": ["__consumer_offsets"]}), "unknown_topic"),
    ],
)
def test_an_invalid_first_frame_is_refused_with_the_reason(broker: Broker, frame: str, code: str) -> None:
    with subscriber(broker.http_url) as one:
        one.socket.send(frame)
        told = one.hear()
        assert (told["type"], told["code"]) == ("error", code)
        assert told["message"]
        assert one.closed()[1] == code


def test_a_binary_frame_is_refused(broker: Broker) -> None:
    with subscriber(broker.http_url) as one:
        one.socket.send(b'{"type": "subscribe"}')
        assert one.hear()["code"] == "invalid_frame"


def test_a_connection_without_a_first_frame_is_closed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_frames, "FIRST_FRAME_SECONDS", 0.2)
    with subscriber(broker.http_url) as one:
        assert one.hear()["code"] == "no_frame"


# --- later frames


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("nonsense", "invalid_frame"),
        ('{"type": "ack"}', "invalid_field"),
        ('{"type": "ack", "topic": "t", "partition": -1, "offset": 0}', "invalid_field"),
        ('{"type": "ack", "topic": "t", "partition": 0, "offset": 1.5}', "invalid_field"),
        ('{"type": "credit", "credit": 0}', "invalid_field"),
        (json.dumps(SUBSCRIBE), "already_subscribed"),
    ],
)
def test_an_invalid_later_frame_ends_the_connection_and_not_the_subscription(
    broker: Broker, topic: str, unique: Unique, frame: str, code: str
) -> None:
    name = unique("later")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic)
        one.socket.send(frame)
        assert one.hear_of("error")["code"] == code
    with subscriber(broker.http_url) as one:
        assert one.subscribe(name, topic, take_over=True)["resumed"] is True


@pytest.mark.parametrize("offset", [3, 4, 2**62])
def test_an_ack_of_an_unsent_message_is_an_error_and_acks_nothing(
    broker: Broker, topic: str, unique: Unique, offset: int
) -> None:
    name = unique("liar")
    produce(broker.bootstrap_servers, topic, range(10))
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True, credit=3)
        one.take(3)
        one.say(type="ack", topic=topic, partition=0, offset=offset)
        assert one.hear_of("error")["code"] == "not_sent"
    with subscriber(broker.http_url) as one:
        assert one.subscribe(name, topic, take_over=True)["positions"][0]["offset"] == 0


def test_acks_of_partitions_outside_the_subscription_are_ignored(
    broker: Broker, topic: str, unique: Unique
) -> None:
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("stranger"), topic)
        one.say(type="ack", topic="another-topic", partition=99, offset=5)
        one.say(type="ping")
        assert one.hear()["type"] == "pong"


# --- too much


def test_a_frame_that_is_too_long_is_refused(broker: Broker, topic: str, unique: Unique) -> None:
    with subscriber(broker.http_url) as one:
        one.socket.send(json.dumps({**SUBSCRIBE, "topics": ["x" * 600_000]}))
        assert one.hear()["code"] == "frame_too_large"
    assert still_serves(broker, topic, unique)


def test_a_websocket_message_above_the_limit_ends_the_connection(
    broker: Broker, topic: str, unique: Unique
) -> None:
    with subscriber(broker.http_url) as one:
        one.socket.send("x" * (websocket_protocol.MAX_MESSAGE_BYTES + 1))
        assert one.closed()[0] == 1009
    assert still_serves(broker, topic, unique)


def test_a_message_of_endless_empty_fragments_ends_the_connection(
    broker: Broker, topic: str, unique: Unique
) -> None:
    """On a plain socket: a client library may drop the close frame when its own sending breaks off."""
    first, more = (bytes([opcode, 0x80]) + bytes(4) for opcode in (0x01, 0x00))
    with upgraded(broker) as raw:
        raw.sendall(first + more * websocket_protocol.MAX_FRAGMENTS)
        assert close_code(raw) == 1009
    assert still_serves(broker, topic, unique)


def test_text_that_is_not_utf8_ends_the_connection_without_a_traceback(
    broker: Broker, topic: str, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    with upgraded(broker) as raw:
        raw.sendall(bytes([0x81, 0x82]) + bytes(4) + b"\xc3\x28")
        assert close_code(raw) == 1007
    assert still_serves(broker, topic, unique)
    assert not [line for line in caplog.records if line.exc_info]


def test_the_frames_of_one_read_are_parsed_in_slices(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand empty pings come in a few reads, and would hold the event loop for seconds."""
    parsed: dict[object, list[int]] = {}
    parse = WebSocketsSansIOProtocol.data_received

    def counting(self: WebSocketsSansIOProtocol, data: bytes) -> None:
        if self.handshake_initiated:
            parsed.setdefault(self, []).append(len(data))
        parse(self, data)

    monkeypatch.setattr(WebSocketsSansIOProtocol, "data_received", counting)
    empty, last = bytes([0x89, 0x80]) + bytes(4), bytes([0x89, 0x84]) + bytes(4) + b"last"
    with upgraded(broker) as raw:
        raw.sendall(empty * 20_000 + last)
        received = b""
        while not received.endswith(b"last"):
            received = received[-4:] + raw.recv(65536)
    mine = max(parsed.values(), key=sum)  # a connection of the test before may end now
    assert sum(mine) == 20_000 * len(empty) + len(last)
    assert max(mine) <= websocket_protocol.SLICE_BYTES


def test_every_message_of_one_read_is_handled(broker: Broker, topic: str, unique: Unique) -> None:
    subscribe = {**SUBSCRIBE, "subscription": unique("many"), "topics": [topic]}
    frames = [json.dumps(subscribe).encode(), *[b'{"type": "ping"}'] * 500]
    with upgraded(broker) as raw:
        raw.sendall(b"".join(Frame(Opcode.TEXT, frame).serialize(mask=True) for frame in frames))
        received = b""
        while received.count(b"pong") < 500:
            part = raw.recv(65536)
            assert part
            received += part


def test_unread_pongs_do_not_fill_memory(broker: Broker, topic: str, unique: Unique) -> None:
    """Megabytes of pings from a client that does not read the pongs."""
    ping = bytes([0x89, 0x80 | 125]) + bytes(4) + bytes(125)
    with upgraded(broker) as raw:
        raw.settimeout(60)
        for _ in range(1000):
            raw.sendall(ping * 100)
        assert still_serves(broker, topic, unique)
        service: Any = broker._thread.service
        held = [
            one.transport.get_write_buffer_size() for one in service._web._server.server_state.connections
        ]
        assert 0 < max(held) < 1024 * 1024  # the limit, plus what one read of the socket adds


def test_a_flood_of_frames_is_read_slowly_and_the_others_are_served(
    broker: Broker, topic: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "FRAMES_PER_SECOND", 50)
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("flood"), topic)
        for _ in range(80):
            one.say(type="ping")
        assert still_serves(broker, topic, unique)
        for _ in range(80):  # each of its frames is answered in the end
            one.hear_of("pong")


def test_a_subscriber_that_does_not_read_is_disconnected_after_a_timeout() -> None:
    name, topic = "deaf", "t"
    with (
        Broker(limits=Limits(slow_drain_timeout_ms=300)) as broker,
        subscriber(broker.http_url, max_queue=1) as one,
    ):
        create(broker.bootstrap_servers, topic)
        one.subscribe(name, topic, credit=100_000)
        produce(broker.bootstrap_servers, topic, ["x" * 20_000] * 1000)
        while True:  # until it is disconnected, another subscriber is refused
            with subscriber(broker.http_url) as other:
                told = other.subscribe(name, topic)
                if told["type"] == "subscribed":
                    break
                assert told["code"] == "already_active"
    assert told["positions"][0]["offset"] == 0


def test_a_subscriber_that_does_not_read_can_be_taken_over_at_once(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("stuck")
    with subscriber(broker.http_url, max_queue=1) as stuck, subscriber(broker.http_url) as other:
        stuck.subscribe(name, topic, credit=100_000)
        produce(broker.bootstrap_servers, topic, ["x" * 20_000] * 1000)
        assert other.subscribe(name, topic, take_over=True)["type"] == "subscribed"
        assert other.take(1)[0]["offset"] == 0


def test_a_stopping_broker_says_so_before_it_closes(unique: Unique) -> None:
    with Broker() as stopping, ExitStack() as stack:
        create(stopping.bootstrap_servers, "t")
        crowd = [stack.enter_context(subscriber(stopping.http_url)) for _ in range(3)]
        for one in crowd:
            one.subscribe(unique("told"), "t")
        stopping.close()
        assert [one.closed()[0] for one in crowd] == [1012] * 3


# --- before the upgrade


def upgraded(broker: Broker) -> socket.socket:
    """A WebSocket on a plain socket, without a client library."""
    where = urlsplit(broker.http_url)
    raw = socket.create_connection((where.hostname, where.port), 60)
    raw.sendall(
        f"GET /v1/push HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += raw.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101")
    return raw


def close_code(raw: socket.socket) -> int:
    """The code of the next close frame."""
    frame = b""
    while len(frame) < 4:
        piece = raw.recv(100)
        assert piece, "closed without a close frame"
        frame += piece
    assert frame[0] == 0x88
    return int(struct.unpack(">H", frame[2:4])[0])


def test_a_frame_that_is_not_masked_ends_the_connection(broker: Broker) -> None:
    with upgraded(broker) as raw:
        raw.sendall(bytes([0x81, 2]) + b"{}")
        assert close_code(raw) == 1002


def test_a_page_of_another_site_may_not_subscribe(
    broker: Broker, topic: str, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    url = push_url(broker.http_url)
    with pytest.raises(InvalidStatus) as refused, connect(url, origin=Origin("http://elsewhere.example")):
        pass
    assert refused.value.response.status_code == 403
    assert json.loads(refused.value.response.body)["error"]["code"] == "foreign_origin"
    with connect(url, origin=Origin(broker.http_url)) as own:  # a page from this port itself
        own.send('{"type": "ping"}')
        assert json.loads(own.recv(60))["code"] == "not_subscribed"
    assert not [row for row in caplog.records if row.levelname == "ERROR"], "it is the page's mistake"


def test_a_plain_request_for_the_push_path_is_answered_with_a_hint(http: httpx.Client) -> None:
    answer = http.get("/v1/push")
    assert answer.status_code == 426
    assert answer.json()["error"]["code"] == "upgrade_required"
