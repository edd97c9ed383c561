"""Everything that a peer controls has a limit; these tests exceed each one at the Kafka port."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.kafka.server.connection import Connection
from penstock.kafka.wire import ApiKey, Message, encode_request, join
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from penstock.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.kafka.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.kafka.raw import PATIENCE_SECONDS, RawClient

RECORD_BYTES = 900_000


def hangs_up(client: RawClient) -> bool:
    """Whether the broker resets the connection, seen without reading a byte."""
    poll = select.poll()
    poll.register(client.socket, select.POLLHUP | select.POLLERR)
    return bool(poll.poll(PATIENCE_SECONDS * 1000))


def tight(**limits: int) -> Broker:
    return Broker(http=None, limits=Limits(**limits))


def create(client: RawClient, name: str, partitions: int = 1) -> int:
    topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)]
    answer = client.call(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics))
    assert isinstance(answer, CreateTopicsResponse)
    return answer.topics[0].error_code


def fill(client: RawClient, topic: str, batches: int) -> None:
    for _ in range(batches):
        batch = bytearray(build_batch([Record(0, 1_700_000_000_000, None, b"x" * RECORD_BYTES, ())]))
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        client.call(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data]))


def fetch_all(topic: str) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=topics)


@pytest.fixture
def impatient() -> Iterator[Broker]:
    with tight(slow_drain_timeout_ms=300, fetch_max_bytes=4_000_000) as broker:
        yield broker


def test_a_reader_that_never_drains_is_closed_and_the_others_are_served(impatient: Broker) -> None:
    with RawClient(impatient) as writer, RawClient(impatient, receive_buffer=4096) as sleeper:
        create(writer, "big")
        fill(writer, "big", 8)
        with suppress(ConnectionError):  # it may be closed before it has sent all
            for _ in range(50):
                sleeper.request(ApiKey.FETCH, 11, fetch_all("big"))
        assert hangs_up(sleeper)
        fill(writer, "big", 1)


def test_for_a_reader_that_never_drains_the_broker_holds_one_response_and_not_all() -> None:
    limit_bytes = 4_000_000
    with (
        tight(fetch_max_bytes=limit_bytes) as broker,
        RawClient(broker) as writer,
        RawClient(broker, receive_buffer=4096) as sleeper,
    ):
        create(writer, "big")
        fill(writer, "big", 8)
        for _ in range(50):
            sleeper.request(ApiKey.FETCH, 11, fetch_all("big"))
        stuck = wait_for_stuck_connection(broker)
        fill(writer, "big", 8)
        assert 0 < stuck.held_bytes < 2 * limit_bytes  # all fifty responses would be 180 MB


def wait_for_stuck_connection(broker: Broker) -> Connection:
    """The connection whose client does not read; polled in the broker, since its client sees nothing."""
    listener = broker._thread.service._listener
    assert listener is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for connection in list(listener._connections):
            if connection.stuck_since:
                return connection
    raise AssertionError("no connection is stuck")


def test_one_fetch_never_answers_more_than_the_brokers_limit() -> None:
    with tight(fetch_max_bytes=4_000_000) as broker, RawClient(broker) as client:
        create(client, "big")
        fill(client, "big", 8)
        client.request(ApiKey.FETCH, 11, fetch_all("big"))
        assert RECORD_BYTES < len(client.read_frame()) < 4_000_000 + 1000


def test_an_idle_connection_is_closed() -> None:
    with tight(idle_timeout_ms=300) as broker, RawClient(broker) as client:
        assert client.is_closed_by_broker()


def test_a_connection_above_the_limit_is_closed_and_the_others_stay() -> None:
    with tight(max_connections=3) as broker:
        clients = [RawClient(broker) for _ in range(3)]
        for client in clients:
            client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        with RawClient(broker) as extra:
            assert extra.is_closed_by_broker()
        for client in clients:
            client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        clients.pop().socket.close()
        with RawClient(broker) as late:
            late.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        for client in clients:
            client.socket.close()


def test_connections_whose_partial_frames_exceed_the_memory_limit_are_closed() -> None:
    with tight(max_client_memory_bytes=2 << 20) as broker:
        hogs = [RawClient(broker) for _ in range(8)]
        for hog in hogs:
            with suppress(ConnectionError):  # it may be closed while it sends
                hog.send((50_000_000).to_bytes(4, "big") + b"x" * 1_000_000)
        readable, _, _ = select.select([hog.socket for hog in hogs], [], [], PATIENCE_SECONDS)
        assert readable
        assert all(hog.is_closed_by_broker() for hog in hogs if hog.socket in readable)
        with RawClient(broker) as client:
            client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        for hog in hogs:
            hog.socket.close()


def test_a_frame_over_the_limit_is_closed_at_its_length() -> None:
    with tight(max_request_bytes=10_000) as broker, RawClient(broker) as client:
        client.send((10_001).to_bytes(4, "big"))
        assert client.is_closed_by_broker()


def test_endless_pipelined_requests_are_no_longer_read() -> None:
    with tight(max_in_flight_requests_per_connection=4) as broker, RawClient(broker) as client:
        create(client, "t")
        waiting = fetch_all("t")
        waiting.max_wait_ms = 20_000
        client.request(ApiKey.FETCH, 11, waiting)
        client.socket.settimeout(1.0)
        big = MetadataRequest(
            topics=[MetadataRequestTopic(name="x" * 30_000)], allow_auto_topic_creation=False
        )
        with pytest.raises(socket.timeout):  # the socket's buffers fill up, the broker's memory does not
            flood(client, big)


def test_a_client_id_over_the_limit_is_closed() -> None:
    with tight(max_client_id_bytes=10) as broker, RawClient(broker) as client:
        client.send(join(encode_request(ApiKey.API_VERSIONS, 0, 1, "x" * 11, ApiVersionsRequest())))
        assert client.is_closed_by_broker()


def flood(client: RawClient, request: Message) -> None:
    for _ in range(2000):
        client.request(ApiKey.METADATA, 4, request)


def test_topics_and_partitions_have_limits_that_are_named() -> None:
    with (
        tight(max_topics=2, max_partitions_per_topic=5, max_partitions=7) as broker,
        RawClient(broker) as client,
    ):
        assert create(client, "wide", 6) == ErrorCode.INVALID_PARTITIONS
        assert create(client, "one", 5) == ErrorCode.NONE
        assert create(client, "two", 3) == ErrorCode.POLICY_VIOLATION
        assert create(client, "two", 2) == ErrorCode.NONE
        assert create(client, "three") == ErrorCode.POLICY_VIOLATION
        request = MetadataRequest(topics=[MetadataRequestTopic(name="auto")])
        answer = client.call(ApiKey.METADATA, 4, request)
        assert isinstance(answer, MetadataResponse)
        assert answer.topics[0].error_code == ErrorCode.POLICY_VIOLATION


def test_a_client_that_does_not_read_does_not_keep_the_broker_from_stopping() -> None:
    broker = tight()
    with RawClient(broker) as writer, RawClient(broker, receive_buffer=4096) as sleeper:
        create(writer, "big")
        fill(writer, "big", 8)
        sleeper.request(ApiKey.FETCH, 11, fetch_all("big"))
        wait_for_stuck_connection(broker)
        broker.close()
