"""Hostile or broken clients: they get an error or a closed connection, and other clients are not affected."""

import random
import struct
from collections.abc import Callable

import pytest

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message, encode_request, join
from penstock.kafka.wire.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.kafka.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.kafka.wire.messages.delete_groups import DeleteGroupsRequest
from penstock.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from penstock.kafka.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.kafka.wire.messages.describe_groups import DescribeGroupsRequest
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.kafka.raw import RawClient, frame

Unique = Callable[[str], str]

SOFTWARE = ApiVersionsRequest(client_software_name="test", client_software_version="1")
API_VERSIONS_HEADER = struct.Struct(">hhih")


@pytest.fixture
def bystander(broker: Broker) -> RawClient:
    """Another client, connected all the time: it must still be served after the test."""
    return RawClient(broker)


@pytest.fixture(autouse=True)
def _others_are_still_served(bystander: RawClient) -> object:
    yield
    with bystander:
        answer = bystander.call(ApiKey.API_VERSIONS, 3, SOFTWARE)
        assert isinstance(answer, ApiVersionsResponse)
        assert answer.error_code == ErrorCode.NONE


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> str:
    """An auto-created topic."""
    name = unique("bad")
    with RawClient(broker) as client:
        answer = client.call(ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
        assert isinstance(answer, MetadataResponse)
        assert answer.topics[0].error_code == ErrorCode.NONE
    return name


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
        b"\x7f\xff\xff\xff" + b"\0" * 100,
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        frame(b"\0"),
        frame(b"\x7f\xff" * 20),
        frame(API_VERSIONS_HEADER.pack(3, 9, 1, -1), b"\0", b"\xff\xff\xff\xff\x0f"),
        frame(API_VERSIONS_HEADER.pack(3, 1, 1, -1), b"\x7f\xff\xff\xff"),
    ],
    ids=["http", "tls", "2 GB", "negative", "empty", "one byte", "noise", "huge compact array", "huge array"],
)
def test_bytes_that_are_not_the_protocol_close_the_connection(broker: Broker, garbage: bytes) -> None:
    with RawClient(broker) as client:
        client.send(garbage)
        assert client.is_closed_by_broker()


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (-1, 0), (0, 99), (3, 14), (4, 0)])
def test_an_unknown_api_or_version_closes_the_connection(broker: Broker, api_key: int, version: int) -> None:
    with RawClient(broker) as client:
        client.send(frame(API_VERSIONS_HEADER.pack(api_key, version, 7, -1), b"\0" * 8))
        assert client.is_closed_by_broker()


def test_a_newer_api_versions_is_answered_in_version_0_with_the_known_range(broker: Broker) -> None:
    with RawClient(broker) as client:
        client.send(frame(API_VERSIONS_HEADER.pack(ApiKey.API_VERSIONS, 99, 7, -1), b"\0\0\0\0"))
        correlation, answer = client.answer(ApiKey.API_VERSIONS, 0)
        assert isinstance(answer, ApiVersionsResponse)
        assert correlation == 7
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(18, 0, 5)]


def test_a_frame_in_single_bytes_is_answered_like_any_other(broker: Broker) -> None:
    request = join(encode_request(ApiKey.API_VERSIONS, 0, 5, "slow", ApiVersionsRequest()))
    with RawClient(broker) as client:
        for index in range(len(request)):
            client.send(request[index : index + 1])
        assert client.answer(ApiKey.API_VERSIONS, 0)[0] == 5


def test_pipelined_requests_are_answered_in_order(broker: Broker, topic: str) -> None:
    with RawClient(broker) as client:
        for number in range(200):
            if number % 3 == 0:
                client.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            else:
                client.request(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
        for number in range(200):
            api = (ApiKey.API_VERSIONS, 0) if number % 3 == 0 else (ApiKey.PRODUCE, 9)
            assert client.answer(*api)[0] == number + 1


def batch(count: int = 3) -> bytearray:
    return bytearray(build_batch([Record(i, 1_700_000_000_000, b"k", b"v" * 50, ()) for i in range(count)]))


def produce_request(topic: str, records: bytes | bytearray | None, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def produce(client: RawClient, topic: str, records: bytes | bytearray | None, acks: int = -1) -> int:
    answer = client.call(ApiKey.PRODUCE, 9, produce_request(topic, records, acks))
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


def test_a_wrong_checksum_is_refused_and_the_next_batch_is_not(broker: Broker, topic: str) -> None:
    wrong = batch()
    wrong[-1] ^= 1
    with RawClient(broker) as client:
        assert produce(client, topic, wrong) == ErrorCode.CORRUPT_MESSAGE
        assert produce(client, topic, batch()) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (b"\0" * 10, ErrorCode.CORRUPT_MESSAGE),
        (b"\0" * 100, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["null", "empty", "short", "magic 0", "two batches", "cut"],
)
def test_records_that_are_not_one_whole_batch_are_refused(
    broker: Broker, topic: str, records: bytes | None, code: ErrorCode
) -> None:
    with RawClient(broker) as client:
        assert produce(client, topic, records) == code
        assert produce(client, topic, batch()) == ErrorCode.NONE


def test_unknown_acks_are_refused(broker: Broker, topic: str) -> None:
    with RawClient(broker) as client:
        assert produce(client, topic, batch(), acks=2) == ErrorCode.INVALID_REQUIRED_ACKS


def test_an_error_with_acks_0_closes_the_connection_because_there_is_no_response(broker: Broker) -> None:
    with RawClient(broker) as client:
        client.request(ApiKey.PRODUCE, 9, produce_request("no-such-topic", batch(), acks=0))
        assert client.is_closed_by_broker()


LONGEST = "n" * 32_767
"""The longest string that Kafka's protocol has; with a sentence around it, it does not fit a response."""


@pytest.mark.parametrize(
    ("api_key", "version", "request_of_it"),
    [
        (ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=[LONGEST])),
        (ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[CreatableTopic(name=LONGEST)])),
        (
            ApiKey.CREATE_PARTITIONS,
            2,
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=LONGEST, count=2)]),
        ),
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=2, resource_name=LONGEST)]
            ),
        ),
        (ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[LONGEST])),
        (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, AlterShareGroupOffsetsRequest(group_id=LONGEST)),
        (ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[LONGEST])),
        (ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[LONGEST])),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
def test_an_error_about_the_longest_name_is_answered(
    broker: Broker, api_key: ApiKey, version: int, request_of_it: Message
) -> None:
    with RawClient(broker) as client:
        client.call(api_key, version, request_of_it)


@pytest.mark.parametrize("offset", [-1, 4, 2**62])
def test_an_offset_outside_the_log_is_out_of_range(broker: Broker, topic: str, offset: int) -> None:
    with RawClient(broker) as client:
        assert produce(client, topic, batch()) == ErrorCode.NONE
        answer = client.call(ApiKey.FETCH, 11, fetch_request(topic, offset))
        assert isinstance(answer, FetchResponse)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def fetch_request(topic: str, offset: int, max_bytes: int = 1 << 20) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )


def test_an_unknown_fetch_session_is_refused(broker: Broker, topic: str) -> None:
    request = fetch_request(topic, 0)
    request.session_id, request.session_epoch = 77, 3
    with RawClient(broker) as client:
        answer = client.call(ApiKey.FETCH, 11, request)
        assert isinstance(answer, FetchResponse)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_batch_larger_than_the_fetch_limit_is_still_delivered(broker: Broker, topic: str) -> None:
    with RawClient(broker) as client:
        large = batch(1000)
        assert produce(client, topic, large) == ErrorCode.NONE
        answer = client.call(ApiKey.FETCH, 11, fetch_request(topic, 500, max_bytes=100))
        assert isinstance(answer, FetchResponse)
        assert len(answer.responses[0].partitions[0].records or b"") == len(large)


def test_random_mutations_of_real_requests_do_no_harm(broker: Broker, topic: str) -> None:
    chance = random.Random(20_261_115)
    originals = [
        join(encode_request(ApiKey.PRODUCE, 9, 1, "fuzz", produce_request(topic, batch()))),
        join(encode_request(ApiKey.FETCH, 12, 1, "fuzz", fetch_request(topic, 0))),
        join(encode_request(ApiKey.METADATA, 12, 1, "fuzz", MetadataRequest(topics=None))),
        join(encode_request(ApiKey.API_VERSIONS, 3, 1, "fuzz", SOFTWARE)),
    ]
    for _ in range(300):
        mutant = bytearray(chance.choice(originals))
        for _ in range(chance.randint(1, 4)):
            mutant[chance.randrange(4, len(mutant))] = chance.randrange(256)
        with RawClient(broker) as client:
            client.send(mutant)


def test_a_client_that_disconnects_before_its_response_leaves_nothing_behind(
    broker: Broker, topic: str
) -> None:
    waiting = fetch_request(topic, 0)
    waiting.max_wait_ms = 2**31 - 1
    for _ in range(20):
        with RawClient(broker) as client:
            client.request(ApiKey.METADATA, 9, MetadataRequest(topics=None))
            client.request(ApiKey.FETCH, 11, waiting)
