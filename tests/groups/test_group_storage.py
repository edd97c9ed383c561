"""The offsets topic's bytes: Kafka's layout, and all other bytes are refused."""

import io
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster import offsets_partition
from penstock.errors import UnknownFormat
from penstock.groups import CommittedOffset
from penstock.groups.storage import (
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from penstock.groups.subscription import subscribed_topics
from penstock.types import TopicPartition
from tests.groups.group_harness import subscription

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
UNSIGNED_OFFSETS = st.builds(
    CommittedOffset,
    offset=INT64,
    leader_epoch=INT32,
    metadata=TEXT,
    commit_timestamp_ms=INT64,
    expire_timestamp_ms=st.just(-1),
)
SIGNED_OFFSETS = st.builds(
    CommittedOffset,
    offset=INT64,
    leader_epoch=INT32,
    metadata=st.text(max_size=200),
    commit_timestamp_ms=INT64,
    expire_timestamp_ms=st.just(-1) | st.integers(0, 2**63 - 1),
    topic_id=st.uuids(),
    topics_version=st.integers(0, 2**63 - 1),
)
OFFSETS = UNSIGNED_OFFSETS | SIGNED_OFFSETS
MEMBERS = st.builds(
    StoredMember,
    member_id=TEXT,
    instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=INT32,
    session_timeout_ms=INT32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
GROUPS = st.builds(
    StoredGroup,
    protocol_type=TEXT,
    generation=INT32,
    protocol_name=st.none() | TEXT,
    leader=st.none() | TEXT,
    state_timestamp_ms=INT64,
    members=st.lists(MEMBERS, max_size=3).map(tuple),
)


def test_an_offset_has_kafkas_layout() -> None:
    """Version 4, with the topic's id as its first tagged field; the second is ours."""
    topic_id = UUID(int=5)
    offset = CommittedOffset(
        offset=7, leader_epoch=2, metadata="m", commit_timestamp_ms=9, topic_id=topic_id, topics_version=11
    )
    assert encode_offset(offset) == (
        b"\x00\x04"
        + struct.pack(">qi", 7, 2)
        + b"\x02m"
        + struct.pack(">q", 9)
        + b"\x02"
        + b"\x00\x10"
        + topic_id.bytes
        + b"\xe8\x07\x08"
        + struct.pack(">q", 11)
    )


def test_an_offset_with_tags_of_a_later_version_is_refused() -> None:
    known = encode_offset(
        CommittedOffset(offset=7, commit_timestamp_ms=9, topic_id=UUID(int=5), topics_version=1)
    )
    at = known.index(b"\x02\x00\x10")
    with pytest.raises(UnknownFormat, match=r"tags \[77\]"):
        decode_offset(known[:at] + b"\x03" + known[at + 1 :] + b"\x4d\x01x")


def test_an_offset_without_a_topic_id_has_kafkas_layout() -> None:
    key = encode_offset_key("g", TopicPartition("to", 258))
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x02to" + b"\x00\x00\x01\x02"
    value = encode_offset(CommittedOffset(offset=7, leader_epoch=2, metadata="m", commit_timestamp_ms=9))
    assert value == b"\x00\x03" + struct.pack(">qi", 7, 2) + b"\x00\x01m" + struct.pack(">q", 9)


def test_an_offset_with_an_expiry_of_its_own_has_kafkas_layout() -> None:
    offset = CommittedOffset(offset=7, metadata="m", commit_timestamp_ms=9, expire_timestamp_ms=11)
    assert encode_offset(offset) == b"\x00\x01" + struct.pack(">q", 7) + b"\x00\x01m" + struct.pack(
        ">qq", 9, 11
    )
    assert decode_offset(encode_offset(offset)) == offset


def test_a_group_has_kafkas_layout() -> None:
    assert encode_group_key("g") == b"\x00\x02" + b"\x00\x01g"
    member = StoredMember(
        member_id="m1",
        instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=5,
        session_timeout_ms=6,
        subscription=b"ss",
        assignment=b"",
    )
    group = StoredGroup(
        protocol_type="consumer",
        generation=3,
        protocol_name="range",
        leader="m1",
        state_timestamp_ms=8,
        members=(member,),
    )
    assert encode_group(group) == (
        b"\x00\x03"
        + b"\x00\x08consumer"
        + struct.pack(">i", 3)
        + b"\x00\x05range"
        + b"\x00\x02m1"
        + struct.pack(">qi", 8, 1)
        + b"\x00\x02m1\xff\xff\x00\x01c\x00\x02/h"
        + struct.pack(">ii", 5, 6)
        + b"\x00\x00\x00\x02ss\x00\x00\x00\x00"
    )


@given(TEXT, TEXT, INT32, OFFSETS, GROUPS)
def test_records_round_trip(
    group_id: str, topic: str, partition: int, offset: CommittedOffset, group: StoredGroup
) -> None:
    topic_partition = TopicPartition(topic, partition)
    key = OffsetKey(group_id=group_id, topic_partition=topic_partition)
    assert decode_key(encode_offset_key(group_id, topic_partition)) == key
    assert decode_key(encode_group_key(group_id)) == GroupKey(group_id=group_id)
    assert decode_offset(encode_offset(offset)) == offset
    assert decode_group(encode_group(group)) == group


@given(GROUPS, OFFSETS, st.data())
def test_truncated_or_extended_bytes_are_refused(
    group: StoredGroup, offset: CommittedOffset, data: st.DataObject
) -> None:
    for decode, whole in ((decode_group, encode_group(group)), (decode_offset, encode_offset(offset))):
        length = data.draw(st.integers(0, len(whole) - 1))
        with pytest.raises(UnknownFormat, match="start the version that wrote it"):
            decode(whole[:length])
        with pytest.raises(UnknownFormat):
            decode(whole + b"\0")


@pytest.mark.parametrize(
    "key", [b"", b"\x00", b"\x00\x03\x00\x01g", b"\xff\xff", b"\x00\x02\xff\xff", b"\x00\x02\x00\x01\xff"]
)
def test_unknown_keys_are_refused(key: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_key(key)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_one_kind_of_error(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        try:
            decode(data)
        except UnknownFormat:
            continue
    subscribed_topics(data)


@pytest.mark.parametrize(
    ("group_id", "partition"),
    # Java's String.hashCode: "hello" 99162322, "Hello World" -862545276, "Ea" 2236, "polygenelubricants" the
    # smallest int, which Kafka makes 0; the last is two UTF-16 units, 31 * 0xD83D + 0xDE00.
    [
        ("", 0),
        ("a", 47),
        ("hello", 22),
        ("Hello World", 26),
        ("Ea", 36),
        ("polygenelubricants", 0),
        ("😀", 49),
    ],
)
def test_a_group_maps_to_the_same_partition_as_in_kafka(group_id: str, partition: int) -> None:
    assert offsets_partition(group_id, 50) == partition


def test_subscriptions_of_kafka_clients_are_read() -> None:
    from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription, TopicPartition
    from kio.schema.types import TopicName
    from kio.serial import entity_writer
    from kio.static.primitive import i16, i32

    written = io.BytesIO()
    value = ConsumerProtocolSubscription(
        topics=("a", "längst"),
        user_data=b"whatever",
        owned_partitions=(TopicPartition(topic=TopicName("a"), partitions=(i32(1),)),),
        generation_id=i32(4),
        rack_id="r",
    )
    entity_writer(ConsumerProtocolSubscription)(written, value)
    metadata = struct.pack(">h", i16(3)) + written.getvalue()
    assert subscribed_topics(metadata) == {"a", "längst"}


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0\0",
        subscription("orders")[:9],
        b"\xff\xff\0\0\0\0",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
    ],
)
def test_subscriptions_that_cannot_be_read_are_unknown(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None
