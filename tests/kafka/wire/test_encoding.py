"""Encoding of records, of null, and of fields that a version does not have."""

import struct

import pytest

from penstock.kafka.wire import ApiKey, decode_message, decode_request, encode_message, encode_response, join
from penstock.kafka.wire.codec import decode_request_header, encode_request
from penstock.kafka.wire.encoder import COPY_BELOW_BYTES
from penstock.kafka.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from penstock.kafka.wire.messages.join_group import JoinGroupResponse
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from penstock.kafka.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.kafka.wire.schema import Records

LARGE = memoryview(b"r" * COPY_BELOW_BYTES)


def fetch_response(*records: Records | None) -> FetchResponse:
    partitions = [PartitionData(partition_index=i, records=part) for i, part in enumerate(records)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_large_records_are_passed_on_without_a_copy(version: int) -> None:
    pieces = encode_response(ApiKey.FETCH, version, 1, fetch_response(LARGE, LARGE))
    assert sum(piece is LARGE for piece in pieces) == 2
    assert len(pieces) <= 5


@pytest.mark.parametrize("version", [4, 12])
def test_small_records_are_copied_into_one_piece(version: int) -> None:
    small = bytes(LARGE[:-1])
    pieces = encode_response(
        ApiKey.FETCH, version, 1, fetch_response(small, [small[:5], small[5:]], None, b"")
    )
    assert len(pieces) == 1
    assert join(pieces).count(small) == 2


@pytest.mark.parametrize("version", [4, 12])
def test_records_in_several_buffers_are_the_same_bytes_as_in_one(version: int) -> None:
    one = encode_message(fetch_response(bytes(LARGE) * 2), version)
    assert encode_message(fetch_response([LARGE, bytes(LARGE)]), version) == one
    assert encode_message(fetch_response((bytearray(LARGE), LARGE)), version) == one


@pytest.mark.parametrize("version", [3, 9])
def test_produced_records_are_a_writable_view_of_the_frame(version: int) -> None:
    partition = PartitionProduceData(index=1, records=b"abcdef")
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    frame = bytearray(join(encode_request(ApiKey.PRODUCE, version, 1, None, request))[4:])
    decoded = decode_request(decode_request_header(frame), memoryview(frame))
    assert isinstance(decoded, ProduceRequest)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[:3] = b"XYZ"
    assert b"XYZdef" in frame


def test_fields_that_a_version_does_not_have_are_omitted() -> None:
    response = MetadataResponse(cluster_id="c", controller_id=1, throttle_time_ms=5)
    assert encode_message(response, 0) == struct.pack(">ii", 0, 0)


def test_none_is_encoded_as_empty_if_a_version_has_no_null() -> None:
    assert decode_message(JoinGroupResponse, 6, encode_message(JoinGroupResponse(), 6)).protocol_name == ""
    assert decode_message(JoinGroupResponse, 7, encode_message(JoinGroupResponse(), 7)).protocol_name is None
    assert encode_message(MetadataRequest(topics=None), 0) == struct.pack(">i", 0)
    response = MetadataResponse(topics=[MetadataResponseTopic()])
    assert decode_message(MetadataResponse, 11, encode_message(response, 11)).topics[0].name == ""


def test_tagged_structs_are_absent_at_their_default_and_none_when_absent() -> None:
    def encoded(epoch: EpochEndOffset | None) -> bytes:
        response = FetchResponse(
            responses=[FetchableTopicResponse(partitions=[PartitionData(diverging_epoch=epoch)])]
        )
        return encode_message(response, 12)

    assert encoded(EpochEndOffset()) == encoded(None)
    decoded = decode_message(FetchResponse, 12, encoded(None))
    assert decoded.responses[0].partitions[0].diverging_epoch is None
    decoded = decode_message(FetchResponse, 12, encoded(EpochEndOffset(epoch=3)))
    assert decoded.responses[0].partitions[0].diverging_epoch == EpochEndOffset(epoch=3)


def test_a_class_has_no_codec_outside_its_versions() -> None:
    with pytest.raises(ValueError, match="MetadataRequest has no version 14"):
        encode_message(MetadataRequest(), 14)
    with pytest.raises(ValueError, match="PartitionData has no version 4"):
        encode_message(PartitionData(), 4)


def test_a_value_that_does_not_fit_its_field_raises() -> None:
    with pytest.raises(struct.error):
        encode_message(MetadataResponse(controller_id=1 << 31), 1)
