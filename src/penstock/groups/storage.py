"""The records of the offsets topic, byte by byte: Kafka's own layout, so that tools which read that topic
understand it.

All numbers are big-endian. `str` is an int16 length and UTF-8 bytes, `str?` the same with length -1 for null,
`bytes` an int32 length and the bytes.

A committed offset (one record per group, topic and partition):

    key     int16 1 | str group | str topic | int32 partition
    value   int16 4 | int64 offset | int32 leader epoch | compact str metadata | int64 commit time (ms) | tags
    tags    varint number of tags | tags in ascending order, each varint tag | varint size | value
               0   16 bytes: the topic's id
            1000   int64: the version of the metadata by which the offset was accepted
            1001   int64: the expiry time (ms), when the client asked for one of its own
                   the last two are our own: Kafka's tools step over tags that they do not know

`varint` is seven bits per byte, the lowest first, the top bit set in all but the last; `compact str` is a varint of the
length plus one, and UTF-8 bytes. Earlier versions of Penstock wrote offsets without a topic's id, which are still read:

    value   int16 3 | int64 offset | int32 leader epoch | str metadata | int64 commit time (ms)
            int16 1 | int64 offset | str metadata | int64 commit time | int64 expiry time
                      the second when the client asked for an expiry of its own; it has no leader epoch

A group's generation (one record per group, written when an assignment is made, when a static member changes
its member id, and when the last member goes):

    key     int16 2 | str group
    value   int16 3 | str protocol type | int32 generation | str? protocol | str? leader
            | int64 time of the last state change (ms) | int32 number of members | members
    member  str member id | str? instance id | str client id | str client host | int32 rebalance timeout (ms)
            | int32 session timeout (ms) | bytes subscription | bytes assignment

A share group: `share_storage.py`.

Offsets that were committed within a transaction are the same records, in transactional batches of the producer; the
transaction's marker tells whether they count (`open_transactions.py`).

A null value deletes the key. The topic is compacted, so a reader applies records in order and the
last one of each key wins. Other bytes were written by a later version: UnknownFormat, never a silent skip.
"""

import struct
from functools import lru_cache
from uuid import UUID

import msgspec

from penstock.groups.values import NO_VERSION, CommittedOffset
from penstock.record_fields import FieldReader, blob, compact_string, string, tagged_fields
from penstock.types import TopicPartition

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION = 3
EXPIRING_VALUE_VERSION = 1
TAGGED_VALUE_VERSION = 4

TOPIC_ID_TAG = 0
TOPICS_VERSION_TAG = 1000
EXPIRY_TAG = 1001

UUID_BYTES = 16
KNOWN_TOPIC_IDS = 4096
"""How many topic ids are cached, so that equal ids are one object: most offsets of a group are of a few topics, and a
coordinator may hold a million offsets."""


class OffsetKey(msgspec.Struct, frozen=True, kw_only=True):
    """Names one committed offset."""

    group_id: str
    topic_partition: TopicPartition


class GroupKey(msgspec.Struct, frozen=True, kw_only=True):
    """Names one group's generation."""

    group_id: str


class StoredMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a stored generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's generation as it is stored."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]


NEVER_USED = StoredGroup(
    protocol_type="", generation=0, protocol_name=None, leader=None, state_timestamp_ms=0, members=()
)
"""A group that has no stored generation."""


def encode_offset_key(group_id: str, partition: TopicPartition) -> bytes:
    return b"".join(
        (
            struct.pack(">h", OFFSET_KEY_VERSION),
            string(group_id),
            string(partition.topic),
            struct.pack(">i", partition.partition),
        )
    )


def encode_offset(offset: CommittedOffset) -> bytes:
    if offset.topic_id is not None:
        return _encode_tagged_offset(offset, offset.topic_id)
    metadata = string(offset.metadata)
    if offset.expire_timestamp_ms >= 0:
        head = struct.pack(">hq", EXPIRING_VALUE_VERSION, offset.offset)
        return head + metadata + struct.pack(">qq", offset.commit_timestamp_ms, offset.expire_timestamp_ms)
    head = struct.pack(">hqi", VALUE_VERSION, offset.offset, offset.leader_epoch)
    return head + metadata + struct.pack(">q", offset.commit_timestamp_ms)


def _encode_tagged_offset(offset: CommittedOffset, topic_id: UUID) -> bytes:
    tags = {TOPIC_ID_TAG: topic_id.bytes, TOPICS_VERSION_TAG: struct.pack(">q", offset.topics_version)}
    if offset.expire_timestamp_ms >= 0:
        tags[EXPIRY_TAG] = struct.pack(">q", offset.expire_timestamp_ms)
    return b"".join(
        (
            struct.pack(">hqi", TAGGED_VALUE_VERSION, offset.offset, offset.leader_epoch),
            compact_string(offset.metadata),
            struct.pack(">q", offset.commit_timestamp_ms),
            tagged_fields(tags),
        )
    )


def encode_group_key(group_id: str) -> bytes:
    return struct.pack(">h", GROUP_KEY_VERSION) + string(group_id)


def encode_group(group: StoredGroup) -> bytes:
    parts = [
        struct.pack(">h", VALUE_VERSION),
        string(group.protocol_type),
        struct.pack(">i", group.generation),
        string(group.protocol_name),
        string(group.leader),
        struct.pack(">qi", group.state_timestamp_ms, len(group.members)),
    ]
    for member in group.members:
        parts += (
            string(member.member_id),
            string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            blob(member.subscription),
            blob(member.assignment),
        )
    return b"".join(parts)


def decode_key(data: bytes) -> OffsetKey | GroupKey:
    reader = _reader(data)
    version = reader.int16()
    if version in (0, OFFSET_KEY_VERSION):
        group_id = reader.string()
        key = OffsetKey(group_id=group_id, topic_partition=TopicPartition(reader.string(), reader.int32()))
        reader.finish()
        return key
    if version == GROUP_KEY_VERSION:
        group_key = GroupKey(group_id=reader.string())
        reader.finish()
        return group_key
    raise reader.unknown(f"key version {version}")


def decode_offset(data: bytes) -> CommittedOffset:
    reader = _reader(data)
    version = reader.int16()
    if version == TAGGED_VALUE_VERSION:
        return _decode_tagged_offset(reader)
    if version not in (EXPIRING_VALUE_VERSION, VALUE_VERSION):
        raise reader.unknown(f"offset value version {version}")
    offset = CommittedOffset(
        offset=reader.int64(),
        leader_epoch=reader.int32() if version == VALUE_VERSION else -1,
        metadata=reader.string(),
        commit_timestamp_ms=reader.int64(),
        expire_timestamp_ms=reader.int64() if version == EXPIRING_VALUE_VERSION else -1,
    )
    reader.finish()
    return offset


def _decode_tagged_offset(reader: FieldReader) -> CommittedOffset:
    offset, leader_epoch = reader.int64(), reader.int32()
    metadata, commit_timestamp_ms = reader.compact_string(), reader.int64()
    tags = reader.tags()
    topic_id = tags.pop(TOPIC_ID_TAG, None)
    topics_version = tags.pop(TOPICS_VERSION_TAG, None)
    expiry = tags.pop(EXPIRY_TAG, None)
    if tags:
        raise reader.unknown(f"offsets with tags {sorted(tags)}")
    reader.finish()
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_timestamp_ms,
        expire_timestamp_ms=-1 if expiry is None else _reader(expiry).whole_int64(),
        topic_id=None if topic_id is None else _topic_id(topic_id),
        topics_version=NO_VERSION if topics_version is None else _reader(topics_version).whole_int64(),
    )


def decode_group(data: bytes) -> StoredGroup:
    reader = _reader(data)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise reader.unknown(f"group value version {version}")
    group = StoredGroup(
        protocol_type=reader.string(),
        generation=reader.int32(),
        protocol_name=reader.nullable_string(),
        leader=reader.nullable_string(),
        state_timestamp_ms=reader.int64(),
        members=tuple(_read_member(reader) for _ in range(reader.int32())),
    )
    reader.finish()
    return group


def _read_member(reader: FieldReader) -> StoredMember:
    return StoredMember(
        member_id=reader.string(),
        instance_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        rebalance_timeout_ms=reader.int32(),
        session_timeout_ms=reader.int32(),
        subscription=reader.blob(),
        assignment=reader.blob(),
    )


@lru_cache(maxsize=KNOWN_TOPIC_IDS)
def _topic_id(data: bytes) -> UUID:
    if len(data) != UUID_BYTES:
        raise _reader(data).unknown(f"a topic id of {len(data)} bytes")
    return UUID(bytes=data)


def _reader(data: bytes) -> FieldReader:
    return FieldReader(data, "the offsets topic")
