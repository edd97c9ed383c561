"""Frames byte by byte, where the oracle does not apply: response headers, Produce 0-2, group blobs."""

import struct
import uuid

import pytest
from msgspec.structs import astuple

from penstock.kafka.wire import (
    NO_UUID,
    ApiKey,
    decode_message,
    decode_request,
    decode_request_header,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
    join,
)
from penstock.kafka.wire.consumer_protocol import decode_assignment
from penstock.kafka.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.kafka.wire.messages.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from penstock.kafka.wire.messages.fetch import FetchRequest, FetchTopic
from penstock.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)


def frame_of(pieces: list) -> bytes:
    """The frame without its length, which must be right."""
    whole = join(pieces)
    assert struct.unpack_from(">i", whole)[0] == len(whole) - 4
    return whole[4:]


@pytest.mark.parametrize("version", range(5))
def test_a_request_comes_back_from_its_frame(version: int) -> None:
    sent = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    frame = frame_of(encode_request(ApiKey.HEARTBEAT, version, 5, "client", sent))
    header = decode_request_header(frame)
    assert astuple(header)[:4] == (ApiKey.HEARTBEAT, version, 5, "client")
    assert decode_request(header, frame) == sent


@pytest.mark.parametrize("version", range(5))
def test_a_response_comes_back_from_its_frame(version: int) -> None:
    frame = frame_of(encode_response(ApiKey.HEARTBEAT, version, 5, HeartbeatResponse(error_code=27)))
    assert decode_response(ApiKey.HEARTBEAT, version, frame) == (5, HeartbeatResponse(error_code=27))


def test_response_headers_have_tags_in_flexible_versions_only() -> None:
    assert frame_of(encode_response(ApiKey.HEARTBEAT, 0, 5, HeartbeatResponse())) == b"\0\0\0\5\0\0"
    flexible = b"\0\0\0\5" + b"\0" + b"\0\0\0\0\0\0" + b"\0"
    assert frame_of(encode_response(ApiKey.HEARTBEAT, 4, 5, HeartbeatResponse())) == flexible


@pytest.mark.parametrize("version", range(5))
def test_an_api_versions_response_never_has_header_tags(version: int) -> None:
    sent = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=4)])
    frame = frame_of(encode_response(ApiKey.API_VERSIONS, version, 5, sent))
    assert frame[:6] == b"\0\0\0\5" + b"\0\x23"
    assert decode_response(ApiKey.API_VERSIONS, version, frame) == (5, sent)


def test_the_header_of_an_unknown_newer_version_can_be_read() -> None:
    frame = bytearray(frame_of(encode_request(ApiKey.API_VERSIONS, 4, 5, "new", ApiVersionsRequest())))
    frame[3] = 99
    assert astuple(decode_request_header(frame))[:4] == (ApiKey.API_VERSIONS, 99, 5, "new")


PRODUCE_V0 = (
    struct.pack(">hi", -1, 1500)  # acks, timeout_ms; no transactional id before version 3
    + struct.pack(">ih", 1, 1)
    + b"t"
    + struct.pack(">iii", 1, 7, 3)
    + b"abc"
)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_requests_before_version_3_can_be_read_to_be_refused(version: int) -> None:
    request = decode_message(ProduceRequest, version, PRODUCE_V0)
    partition = PartitionProduceData(index=7, records=b"abc")
    assert request == ProduceRequest(
        acks=-1, timeout_ms=1500, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )


def test_produce_responses_before_version_3_grow_as_kafkas_did() -> None:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="t",
                partition_responses=[PartitionProduceResponse(index=7, error_code=35, base_offset=-1)],
            )
        ],
        throttle_time_ms=6,
    )
    version_0 = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iihq", 1, 7, 35, -1)
    assert encode_message(response, 0) == version_0
    assert encode_message(response, 1) == version_0 + struct.pack(">i", 6)
    assert encode_message(response, 2) == version_0 + struct.pack(">qi", -1, 6)


def test_a_zero_topic_id_decodes_to_no_uuid() -> None:
    topics = [FetchTopic(), FetchTopic(topic_id=uuid.UUID(int=9))]
    decoded = decode_message(FetchRequest, 13, encode_message(FetchRequest(topics=topics), 13))
    assert decoded.topics[0].topic_id is NO_UUID
    assert decoded.topics[1].topic_id == uuid.UUID(int=9)


def test_assignments_are_read_in_every_version() -> None:
    partitions = [TopicPartition(topic="t", partitions=[0, 2])]
    assignment = ConsumerProtocolAssignment(assigned_partitions=partitions, user_data=b"u")
    for version in range(4):
        blob = struct.pack(">h", version) + encode_message(assignment, version)
        assert decode_assignment(blob) == assignment


def test_group_blobs_of_newer_versions_are_read_as_the_newest_known() -> None:
    blob = struct.pack(">h", 9) + encode_message(ConsumerProtocolAssignment(user_data=b"u"), 3) + b"more"
    assert decode_assignment(blob).user_data == b"u"
