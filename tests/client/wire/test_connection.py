"""One connection: versions, order, limits, and misbehaving peers."""

import signal
import socket
import struct
import threading

import pytest

from penstock import Broker
from penstock.client import Garbled, Refused, Unreachable
from penstock.client.wire import Connection
from penstock.errors import ErrorCode, ProtocolViolation
from penstock.kafka.wire import ApiKey, join
from penstock.kafka.wire.codec import encode_response
from penstock.kafka.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.client.wire.conftest import impatient
from tests.client.wire.fake import (
    HANG_UP,
    PATIENCE_SECONDS,
    SILENCE,
    Answer,
    FakeBroker,
    Raw,
    Request,
    frame_of,
    in_turn,
    versions,
)

ASK = MetadataRequest(topics=[], allow_auto_topic_creation=False)
ASK_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")


def open_to(address: str, **changes: int) -> Connection:
    host, port = address.rsplit(":", 1)
    return Connection(host, int(port), impatient(address, **changes))


def test_answers_come_in_the_order_of_the_requests(broker: Broker) -> None:
    connection = open_to(broker.bootstrap_servers)
    connection.send(ApiKey.METADATA, ASK)
    connection.send(ApiKey.METADATA, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    connection.send(ApiKey.API_VERSIONS, ASK_VERSIONS)
    assert connection.outstanding == 3
    first, second, third = (connection.receive() for _ in range(3))
    assert isinstance(first, MetadataResponse)
    assert not first.topics
    assert isinstance(second, MetadataResponse)
    assert isinstance(third, ApiVersionsResponse)
    assert connection.outstanding == 0
    connection.close()


def test_a_call_keeps_earlier_responses_for_their_receivers(broker: Broker) -> None:
    connection = open_to(broker.bootstrap_servers)
    connection.send(ApiKey.API_VERSIONS, ASK_VERSIONS)
    assert isinstance(connection.call(ApiKey.METADATA, ASK), MetadataResponse)
    assert connection.outstanding == 1
    assert isinstance(connection.receive(), ApiVersionsResponse)
    connection.close()


def test_the_highest_version_that_both_know_is_used() -> None:
    with FakeBroker({ApiKey.API_VERSIONS: lambda _: versions(metadata=(3, 6), fetch=(90, 99))}) as fake:
        connection = open_to(fake.address)
        assert connection.version_of(ApiKey.METADATA) == 6
        assert connection.version_of(ApiKey.METADATA, at_most=4) == 4
        with pytest.raises(Refused, match="versions 3 to 6") as too_old:
            connection.version_of(ApiKey.METADATA, at_least=7)
        assert too_old.value.code == ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(Refused, match="versions 90 to 99"):
            connection.version_of(ApiKey.FETCH)
        connection.close()


def test_a_broker_that_refuses_our_api_versions_is_asked_in_version_0() -> None:
    own = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=0)]
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
    with _RefusingBroker(refusal) as fake:
        opened = open_to(fake.address)
        assert opened.version_of(ApiKey.METADATA) == 5
        assert [request.version for request in fake.asked(ApiKey.API_VERSIONS)] == [5, 0]
        opened.close()


class _RefusingBroker(FakeBroker):
    """Answers an ApiVersions request that is too new as Kafka does: in version 0, on the same connection."""

    def __init__(self, refusal: ApiVersionsResponse) -> None:
        super().__init__({ApiKey.API_VERSIONS: self._answer})
        self._refusal = refusal

    def _answer(self, request: Request) -> Answer:
        if request.version == 0:
            return ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=0, max_version=5)])
        self.send_raw(join(encode_response(request.api, 0, request.correlation_id, self._refusal)))
        return SILENCE


def test_an_api_versions_error_ends_the_connection() -> None:
    bad = ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    with FakeBroker({ApiKey.API_VERSIONS: lambda _: bad}) as fake, pytest.raises(Refused, match="INVALID_R"):
        open_to(fake.address)


def test_a_connection_that_ends_within_a_response_is_an_error() -> None:
    def half(request: Request) -> Answer:
        whole = frame_of(request, fake.metadata())
        return Raw(whole[: len(whole) // 2])

    with FakeBroker({ApiKey.METADATA: half}) as fake:
        connection = open_to(fake.address)
        with pytest.raises(Unreachable, match=rf"{fake.address}.*closed the connection.*METADATA") as lost:
            connection.call(ApiKey.METADATA, ASK)
        assert lost.value.retriable
        assert connection.closed
        with pytest.raises(Unreachable, match="is closed"):
            connection.call(ApiKey.METADATA, ASK)


def _garbage(request: Request) -> Answer:
    return Raw(b"\0\0\0\x14" + struct.pack(">i", request.correlation_id) + b"\xff" * 16)


def _other_id(request: Request) -> Answer:
    return Raw(frame_of(request, MetadataResponse(), correlation_id=request.correlation_id + 1))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_garbage, "METADATA: response header, tagged fields"),
        (_other_id, "correlation id 3, expected 2"),
        (lambda _: Raw(b"\0\0\0\2xx"), "2 bytes"),
        (lambda _: Raw(b"\x7f\xff\xff\xff"), "2147483647 bytes.*max_response_bytes"),
        (lambda _: Raw(b"\xff\xff\xff\xff"), "a length of -1"),
        (lambda _: Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "another service"),
    ],
)
def test_a_response_that_is_not_kafka_closes_the_connection(answer: object, reason: str) -> None:
    with FakeBroker({ApiKey.METADATA: answer}) as fake:  # type: ignore[dict-item]
        connection = open_to(fake.address)
        with pytest.raises(Garbled, match=reason) as garbled:
            connection.call(ApiKey.METADATA, ASK)
        assert isinstance(garbled.value, ProtocolViolation)
        assert not garbled.value.retriable
        assert connection.closed


def test_an_answer_above_the_limit_is_refused_before_it_is_read() -> None:
    def large(request: Request) -> Answer:
        return Raw((5_000).to_bytes(4, "big"))

    with FakeBroker({ApiKey.METADATA: large}) as fake:
        connection = open_to(fake.address, max_response_bytes=4_999)
        with pytest.raises(Garbled, match=r"5000 bytes.*4999"):
            connection.call(ApiKey.METADATA, ASK)


def test_a_request_without_a_response_times_out() -> None:
    with FakeBroker({ApiKey.METADATA: lambda _: SILENCE}) as fake:
        connection = open_to(fake.address, request_timeout_ms=2000)  # the handshake has to be done by then
        with pytest.raises(Unreachable, match=r"no answer within 2000 ms.*METADATA"):
            connection.call(ApiKey.METADATA, ASK)
        assert connection.closed


def test_a_peer_that_does_not_read_times_out_while_sending() -> None:
    done = threading.Event()

    def busy(_: Request) -> Answer:
        done.wait(PATIENCE_SECONDS)
        return HANG_UP

    with FakeBroker({ApiKey.METADATA: busy}) as fake:
        connection = open_to(fake.address, request_timeout_ms=2000)  # as above
        connection.send(ApiKey.METADATA, ASK)
        large = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 30_000)] * 1_000)
        with pytest.raises(Unreachable, match="no answer within 2000 ms while sending"):
            connection.send(ApiKey.METADATA, large)
        assert connection.closed
        done.set()


def test_the_timeout_covers_a_whole_slow_response() -> None:
    done = threading.Event()

    def trickle(_: Request) -> Answer:
        fake.send_raw(b"\0\0\3\xe8")
        while not done.wait(0.01):
            fake.send_raw(b"x")
        return HANG_UP

    with FakeBroker({ApiKey.METADATA: trickle}) as fake:
        connection = open_to(fake.address, request_timeout_ms=2000)  # as above
        with pytest.raises(Unreachable, match="no answer within 2000 ms"):
            connection.call(ApiKey.METADATA, ASK)
        done.set()


class _Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


def test_an_interrupt_in_the_middle_of_an_answer_closes_the_connection() -> None:
    def interrupt(_: Request) -> Answer:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return SILENCE

    def raise_it(*_: object) -> None:
        raise _Interrupt

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with FakeBroker({ApiKey.METADATA: interrupt}) as fake:
            connection = open_to(fake.address)
            with pytest.raises(_Interrupt):
                connection.call(ApiKey.METADATA, ASK)
            assert connection.closed
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_silent_peer_times_out_while_connecting() -> None:
    with (
        FakeBroker({ApiKey.API_VERSIONS: in_turn(SILENCE)}) as fake,
        pytest.raises(Unreachable, match="50 ms"),
    ):
        open_to(fake.address, request_timeout_ms=50)


def test_a_peer_that_closes_at_once_is_unreachable() -> None:
    with (
        FakeBroker({ApiKey.API_VERSIONS: in_turn(HANG_UP)}) as fake,
        pytest.raises(Unreachable, match="closed"),
    ):
        open_to(fake.address)


def test_a_refused_connection_is_reported_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        Unreachable, match=f"127.0.0.1:{port}: Connection refused.*check that the broker runs"
    ):
        open_to(f"127.0.0.1:{port}")


def test_a_name_that_does_not_exist_is_final() -> None:
    with pytest.raises(
        Unreachable, match=r"no-such-host.invalid:9092: the host name cannot be resolved"
    ) as lost:
        open_to("no-such-host.invalid:9092")
    assert "check bootstrap_servers" in str(lost.value)


def test_receiving_without_a_request_is_a_bug_of_the_caller(broker: Broker) -> None:
    connection = open_to(broker.bootstrap_servers)
    with pytest.raises(RuntimeError, match="expected a request"):
        connection.receive()
    connection.close()
    connection.close()
    assert connection.closed
