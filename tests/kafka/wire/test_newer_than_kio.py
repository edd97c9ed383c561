"""Versions that Kafka has added since kio was made: our bytes are those that Kafka's Java classes (4.4.0) wrote."""

from uuid import UUID

import pytest

from penstock.kafka.wire import Message, decode_message, encode_message
from penstock.kafka.wire.messages import api_versions, delete_groups
from penstock.kafka.wire.messages import txn_offset_commit as committing

TOPIC_ID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")

MESSAGES = {
    "ApiVersions 5": (
        5,
        api_versions.ApiVersionsRequest(
            client_software_name="test", client_software_version="1", cluster_id="abc", node_id=7
        ),
        "05746573740231046162630000000700",
    ),
    "ApiVersions 5 without a destination": (
        5,
        api_versions.ApiVersionsRequest(client_software_name="test", client_software_version="1"),
        "0574657374023100ffffffff00",
    ),
    "DeleteGroups 3": (
        3,
        delete_groups.DeleteGroupsResponse(
            throttle_time_ms=5,
            results=[
                delete_groups.DeletableGroupResult(group_id="g", error_code=68, error_message="busy"),
                delete_groups.DeletableGroupResult(group_id="h"),
            ],
        ),
        "00000005030267004405627573790002680000000000",
    ),
    "TxnOffsetCommit 6": (
        6,
        committing.TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            producer_id=9,
            producer_epoch=2,
            generation_id_or_member_epoch=3,
            member_id="m",
            topics=[
                committing.TxnOffsetCommitRequestTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        committing.TxnOffsetCommitRequestPartition(
                            partition_index=1,
                            committed_offset=42,
                            committed_leader_epoch=6,
                            committed_metadata="x",
                        )
                    ],
                )
            ],
        ),
        "027402670000000000000009000200000003026d0002"
        "0102030405060708090a0b0c0d0e0f100200000001000000000000002a000000060278000000",
    ),
    "TxnOffsetCommit 6, the response": (
        6,
        committing.TxnOffsetCommitResponse(
            topics=[
                committing.TxnOffsetCommitResponseTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        committing.TxnOffsetCommitResponsePartition(partition_index=1, error_code=100)
                    ],
                )
            ]
        ),
        "00000000020102030405060708090a0b0c0d0e0f1002000000010064000000",
    ),
}


@pytest.mark.parametrize(("version", "message", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_messages_have_kafkas_bytes(version: int, message: Message, expected: str) -> None:
    assert encode_message(message, version).hex() == expected
    assert decode_message(type(message), version, bytes.fromhex(expected)) == message
