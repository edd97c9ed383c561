"""Any bytes of a peer decode to a message or a ProtocolViolation, fast and in bounded memory."""

import random
import struct
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from penstock.errors import ProtocolViolation
from penstock.kafka.wire import (
    ApiKey,
    Message,
    decode_message,
    decode_request,
    decode_request_header,
    decode_response,
    encode_message,
    encode_request,
    join,
    request_class,
    response_class,
)
from penstock.kafka.wire.codec import MAX_HEADER_TAGS
from penstock.kafka.wire.consumer_protocol import decode_assignment
from penstock.kafka.wire.decoder import MAX_ELEMENTS
from penstock.kafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.kafka.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from penstock.kafka.wire.messages.describe_groups import DescribeGroupsRequest
from penstock.kafka.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.kafka.wire.messages.fetch import FetchRequest
from penstock.kafka.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsTopic
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.kafka.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.kafka.wire.schema import MAX_STRING_BYTES
from tests.kafka.wire.kio_oracle import kio_bytes, kio_class, kio_versions, random_instance

HUGE_LENGTHS = [
    b"\x7f\xff\xff\xff",  # the largest legacy length
    b"\x80\x00\x00\x00",  # the most negative one
    b"\xff\xff\xff\xfe",  # just below null
    b"\xff\xff\xff\xff\x07",  # the largest compact length
    b"\xff\xff\xff\xff\xff\xff\xff",  # a varint without an end
    b"\x7f\xff",
    b"\x80\x00",
]


def valid_bytes(api_key: int, version: int, direction: str, seed: int) -> bytes:
    return kio_bytes(random_instance(kio_class(api_key, version, direction), random.Random(seed)))


def decode_or_violation(cls: type[Message], version: int, data: bytes) -> ProtocolViolation | Message:
    try:
        return decode_message(cls, version, data)
    except ProtocolViolation as violation:
        return violation


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    st.sampled_from(list(ApiKey)),
    st.sampled_from(["request", "response"]),
    st.integers(0, 2**32),
)
def test_mutated_messages_decode_or_are_refused(api_key: ApiKey, direction: str, seed: int) -> None:
    chance = random.Random(seed)
    version = chance.choice(kio_versions(api_key))
    data = valid_bytes(api_key, version, direction, seed)
    cls = request_class(api_key) if direction == "request" else response_class(api_key)
    for _ in range(20):
        result = decode_or_violation(cls, version, mutated(data, chance))
        if isinstance(result, Message):
            encode_message(result, version)


def mutated(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    piece = chance.choice(HUGE_LENGTHS)
    choices = [
        data[:at],
        data[:at] + piece + data[at:],
        data[:at] + piece + data[at + len(piece) :],
        data[:at] + chance.randbytes(1) + data[at + 1 :],
        data[:at] + chance.randbytes(chance.randrange(20)),
        data + chance.randbytes(1),
    ]
    return chance.choice(choices)


@pytest.mark.parametrize("api_key", list(ApiKey), ids=lambda key: key.name.lower())
def test_every_truncation_is_refused(api_key: ApiKey) -> None:
    version = kio_versions(api_key)[-1]
    for direction, cls in (("request", request_class(api_key)), ("response", response_class(api_key))):
        data = valid_bytes(api_key, version, direction, 1)
        for length in range(0, len(data), max(1, len(data) // 50)):
            violation = decode_or_violation(cls, version, data[:length])
            assert isinstance(violation, ProtocolViolation)
            assert f"{cls.ROOT.title} v{version}" in str(violation)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_frames_never_break_the_header(frame: bytes) -> None:
    try:
        header = decode_request_header(frame)
        decode_request(header, frame)
    except ProtocolViolation:
        pass


def test_huge_lengths_anywhere_cost_neither_memory_nor_time() -> None:
    started = time.process_time()
    tracemalloc.start()
    try:
        for api_key in (
            ApiKey.PRODUCE,
            ApiKey.FETCH,
            ApiKey.METADATA,
            ApiKey.JOIN_GROUP,
            ApiKey.OFFSET_COMMIT,
        ):
            put_huge_lengths_everywhere(api_key)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000
    assert time.process_time() - started < 10


def put_huge_lengths_everywhere(api_key: ApiKey) -> None:
    for version in (kio_versions(api_key)[0], kio_versions(api_key)[-1]):
        for direction, cls in (("request", request_class(api_key)), ("response", response_class(api_key))):
            data = valid_bytes(api_key, version, direction, 5)[:300]
            for at in range(len(data)):
                for piece in HUGE_LENGTHS[:4]:
                    decode_or_violation(cls, version, data[:at] + piece + data[at + len(piece) :])


def violation_of(cls: type[Message], version: int, data: bytes) -> str:
    with pytest.raises(ProtocolViolation) as caught:
        decode_message(cls, version, data)
    return str(caught.value)


def test_a_violation_names_api_version_field_position_and_expectation() -> None:
    request = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"r" * 50)])]
    )
    data = encode_message(request, 7)
    assert violation_of(ProduceRequest, 7, data[:-10]) == (
        "Produce request v7, topic_data.partition_data.records at byte 27: expected 50 bytes, 40 remain"
    )
    assert violation_of(ProduceRequest, 7, data[:4]) == (
        "Produce request v7, acks to topic_data at byte 2: expected more bytes, 2 remain"
    )


def test_null_is_refused_if_the_version_does_not_have_it() -> None:
    null_topics = struct.pack(">i", -1)
    assert "topics at byte 4: expected a value, found null" in violation_of(MetadataRequest, 0, null_topics)
    assert decode_message(MetadataRequest, 1, null_topics).topics is None
    null_name = encode_message(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 10)
    assert decode_message(MetadataRequest, 10, null_name).topics[0].name is None
    assert "topics.name" in violation_of(MetadataRequest, 9, b"\x02\x00\x00\x01\x00\x00\x00")


def test_a_negative_length_other_than_null_is_refused() -> None:
    assert "expected a length or null, found -2" in violation_of(MetadataRequest, 1, struct.pack(">i", -2))


def test_invalid_utf8_is_refused() -> None:
    data = struct.pack(">iih", -1, 1, 2) + b"\xc3\x28" + struct.pack(">i", 0)
    assert "topics.name at byte 10: expected UTF-8" in violation_of(ListOffsetsRequest, 1, data)


def test_strings_end_at_kafkas_limit_in_both_directions() -> None:
    def request(size: int) -> ListOffsetsRequest:
        return ListOffsetsRequest(topics=[ListOffsetsTopic(name="x" * size)])

    for version in (1, 6):
        longest = request(MAX_STRING_BYTES)
        assert decode_message(ListOffsetsRequest, version, encode_message(longest, version)) == longest
        with pytest.raises((ValueError, struct.error)):
            encode_message(request(MAX_STRING_BYTES + 1), version)
    too_long = b"\x00\x00\x00\x00\x00\x02\x81\x80\x02" + b"x" * (MAX_STRING_BYTES + 1) + b"\x01\x00\x00"
    assert "expected a string of at most 32767 bytes, found 32768" in violation_of(
        ListOffsetsRequest, 6, too_long
    )


def test_a_message_with_too_many_elements_is_refused() -> None:
    groups = [""] * MAX_ELEMENTS
    data = encode_message(DescribeGroupsRequest(groups=groups), 5)
    assert len(decode_message(DescribeGroupsRequest, 5, data).groups) == MAX_ELEMENTS
    data = encode_message(DescribeGroupsRequest(groups=[*groups, ""]), 5)
    assert f"expected at most {MAX_ELEMENTS} more elements" in violation_of(DescribeGroupsRequest, 5, data)


def test_elements_of_all_arrays_of_a_message_count_together() -> None:
    half = b"\x00\x00\x00\x00" * (MAX_ELEMENTS // 2)
    topic = b"\x00\x00" + struct.pack(">i", MAX_ELEMENTS // 2) + half
    data = struct.pack(">hqhi", 0, 1, 1, 2) + topic * 2
    assert "topics.partitions" in violation_of(AddPartitionsToTxnRequest, 0, data)


def test_tagged_fields_count_as_elements() -> None:
    tags = b"\x64\x00" * (MAX_ELEMENTS + 1)
    data = b"\x01\x00" + b"\xa1\x8d\x06" + tags
    assert f"expected at most {MAX_ELEMENTS} more elements" in violation_of(DescribeGroupsRequest, 5, data)


def test_unknown_tagged_fields_are_skipped() -> None:
    data = encode_message(DescribeGroupsRequest(groups=["g"]), 5)
    assert data[-1:] == b"\x00"
    assert decode_message(DescribeGroupsRequest, 5, data[:-1] + b"\x02\x05\x03abc\x81\x01\x00").groups == [
        "g"
    ]


def test_unknown_tagged_fields_are_skipped_among_known_ones() -> None:
    data = encode_message(FetchRequest(cluster_id="c"), 12)
    assert data.endswith(b"\x01\x00\x02\x02c")
    changed = data.removesuffix(b"\x01\x00\x02\x02c") + b"\x02\x09\x03abc\x00\x02\x02c"
    assert decode_message(FetchRequest, 12, changed).cluster_id == "c"


def test_a_tagged_field_must_fill_its_size_and_stay_inside_the_frame() -> None:
    data = encode_message(FetchRequest(cluster_id="c"), 12).removesuffix(b"\x01\x00\x02\x02c")
    too_small = data + b"\x01\x00\x03\x02cc"
    assert "cluster_id" in violation_of(FetchRequest, 12, too_small)
    assert "expected the tagged field to end 1 bytes further" in violation_of(FetchRequest, 12, too_small)
    assert "expected a tagged field of 9 bytes, 2 remain" in violation_of(
        FetchRequest, 12, data + b"\x01\x00\x09\x02c"
    )


def test_a_nullable_structs_mark_is_one_or_minus_one() -> None:
    data = encode_message(ConsumerGroupHeartbeatResponse(), 0)
    assert data.endswith(b"\xff\x00")
    message = violation_of(ConsumerGroupHeartbeatResponse, 0, data[:-2] + b"\x02\x00")
    assert "assignment" in message
    assert "expected 1 (a struct) or -1 (null), found 2" in message
    assert decode_message(DescribeTopicPartitionsRequest, 0, b"\x01\x00\x00\x00\x00\xff\x00").cursor is None


def test_bytes_after_the_message_are_refused() -> None:
    data = encode_message(DescribeGroupsRequest(groups=["g"]), 0)
    assert violation_of(DescribeGroupsRequest, 0, data + b"!!") == (
        "DescribeGroups request v0: expected the end at byte 7, 2 more follow"
    )


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00\x00\x00\x00\x00\x01\x00",
        b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x05abc",
        b"\x00\x03\x00\x00\x00\x00\x00\x01\xff\xfe",
        b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x01\xff",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x00",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x00\x01\x00\x05ab",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x00\x41" + b"\x00\x00" * (MAX_HEADER_TAGS + 1),
    ],
    ids=[
        "empty",
        "cut in the client id's length",
        "cut in the client id",
        "negative client id",
        "client id not UTF-8",
        "no tags",
        "cut in a tag",
        "too many tags",
    ],
)
def test_broken_request_headers_are_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="request header"):
        decode_request_header(frame)


@pytest.mark.parametrize(
    "frame", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x01\x00\x63"]
)
def test_broken_response_headers_are_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="response header"):
        decode_response(ApiKey.METADATA, 12, frame)


@pytest.mark.parametrize(("api_key", "version"), [(4, 0), (-1, 0), (3, 14), (3, -1), (1, 3)])
def test_bodies_of_unknown_apis_and_versions_are_refused(api_key: int, version: int) -> None:
    frame = struct.pack(">hhih", api_key, version, 9, -1)
    header = decode_request_header(frame)
    assert astuple(header)[:3] == (api_key, version, 9)
    with pytest.raises(ProtocolViolation, match="expected an API and version that is known"):
        decode_request(header, frame)
    with pytest.raises(ProtocolViolation, match="expected an API and version that is known"):
        decode_response(api_key, version, frame)


@pytest.mark.parametrize("blob", [b"", b"\x00", b"\xff\xff", b"\x00\x00\x7f\xff\xff\xff", b"\x00\x00\x00"])
def test_broken_assignments_are_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="ConsumerProtocol"):
        decode_assignment(blob)


def test_a_violation_does_not_keep_the_frame() -> None:
    frame = bytearray(join(encode_request(ApiKey.METADATA, 1, 1, "c", MetadataRequest(topics=[])))[4:])
    frame[-1] = 9
    with pytest.raises(ProtocolViolation) as caught:
        decode_request(decode_request_header(frame), frame)
    assert caught.value.__context__ is None
    del caught
    frame.clear()  # would raise BufferError if a view of it were still held
