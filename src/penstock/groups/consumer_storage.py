"""The records of consumer groups (KIP-848) in the offsets topic, byte by byte: Kafka's own layout, as in `storage.py`.

Keys begin with their kind, an int16; `str` is an int16 length and UTF-8 bytes:

     3 | str group                     the group's epoch
     4 | str group                     written by Kafka before 4.1 only; read and ignored
     5 | str group | str member        what a member has said about itself
     6 | str group                     the epoch of the target assignment
     7 | str group | str member        a member's target assignment
     8 | str group | str member        a member's epoch, and the partitions in its hands
    16 | str group | str pattern       the topics that match a regular expression of a member

Values are flexible: `cstr` is a compact string, `cstr?` the same with a varint of 0 for null, `array` a varint of the
number of elements plus one, and `tags` are as in `record_fields.py`:

     3  int16 0 | int32 epoch | tags       tag 0: int64 a hash of the topics that the group reads
     5  int16 0 | cstr? instance | cstr? rack | cstr client | cstr host | array of cstr topics | cstr? pattern
        | int32 rebalance timeout (ms) | cstr? assignor | tags      tag 0: a member of the classic protocol:
          int8 1 | int32 session timeout (ms) | array of protocols | tags;  protocol: cstr name | compact bytes | tags
     6  int16 0 | int32 epoch | tags       tag 0: int64 when it was computed (ms)
     7  int16 0 | array of topics | tags;  topic: 16 bytes id | array of int32 partitions | tags
     8  int16 0 | int32 epoch | int32 previous epoch | int8 state | array of topics (assigned)
        | array of topics (to be revoked) | tags
                                           tag 0 of a topic: array of int32, the epoch in which it got each partition
    16  int16 0 | array of cstr topics | int64 version of the metadata | int64 time (ms) | tags

A null value deletes the key.
"""

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TypeVar
from uuid import UUID

import msgspec

from penstock.errors import UnknownFormat
from penstock.groups.consumer_member import ClassicFacts, ConsumerMember, Epochs
from penstock.groups.consumer_values import Assignment, MemberState, TopicIdPartition
from penstock.groups.values import Protocol
from penstock.record_fields import FieldReader, compact_string, string, tagged_fields, varint

VALUE_VERSION = 0
UUID_BYTES = 16
NO_TAGS = b"\0"
FIRST_TAG = 0

T = TypeVar("T")


class RecordKind(IntEnum):
    """The first field of a key."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    PATTERN = 16


NAMED = frozenset({RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT, RecordKind.PATTERN})
"""The kinds of which a group has many: one for each member or pattern."""


class ConsumerKey(msgspec.Struct, frozen=True, kw_only=True):
    """Names one record of a group. `name` is a member's id or a pattern."""

    kind: RecordKind
    group_id: str
    name: str = ""


# Keys


def encode_consumer_key(kind: RecordKind, group_id: str, name: str = "") -> bytes:
    key = struct.pack(">h", kind) + string(group_id)
    return key + string(name) if kind in NAMED else key


def decode_consumer_key(key: bytes) -> ConsumerKey | None:
    """None for a key of another kind."""
    reader = _reader(key)
    try:
        kind = RecordKind(reader.int16())
    except (ValueError, UnknownFormat):
        return None
    group_id = reader.string()
    decoded = ConsumerKey(kind=kind, group_id=group_id, name=reader.string() if kind in NAMED else "")
    reader.finish()
    return decoded


# The group


def encode_epoch(epoch: int, tag: int) -> bytes:
    """Values of the kinds 3 and 6. A tag of 0 is the default, which is not written."""
    tags = {FIRST_TAG: struct.pack(">q", tag)} if tag else {}
    return struct.pack(">hi", VALUE_VERSION, epoch) + tagged_fields(tags)


def decode_epoch(value: bytes) -> tuple[int, int]:
    reader = _value(value)
    epoch, tags = reader.int32(), reader.tags()
    reader.finish()
    tag = tags.get(FIRST_TAG)
    return epoch, 0 if tag is None else _reader(tag).whole_int64()


# Members


def encode_member(member: ConsumerMember) -> bytes:
    tags = {} if member.classic is None else {FIRST_TAG: _classic(member.classic)}
    parts = (
        struct.pack(">h", VALUE_VERSION),
        _nullable(member.instance_id),
        _nullable(member.rack_id),
        compact_string(member.client_id),
        compact_string(member.client_host),
        _array(map(compact_string, member.topics)),
        _nullable(member.pattern or None),
        struct.pack(">i", member.rebalance_timeout_ms),
        _nullable(member.assignor),
        tagged_fields(tags),
    )
    return b"".join(parts)


def decode_member(value: bytes, member: ConsumerMember) -> None:
    """Sets what the record says; the rest of the member stays."""
    reader = _value(value)
    member.instance_id, member.rack_id = reader.nullable_compact_string(), reader.nullable_compact_string()
    member.client_id, member.client_host = reader.compact_string(), reader.compact_string()
    member.topics = tuple(_read_array(reader, reader.compact_string))
    member.pattern = reader.nullable_compact_string() or ""
    member.rebalance_timeout_ms = reader.int32()
    member.assignor = reader.nullable_compact_string()
    classic = reader.tags().get(FIRST_TAG)
    reader.finish()
    member.classic = None if classic is None else _read_classic(_reader(classic))


def _classic(facts: ClassicFacts) -> bytes:
    rows = (
        compact_string(protocol.name) + varint(len(protocol.metadata) + 1) + protocol.metadata + NO_TAGS
        for protocol in facts.protocols
    )
    return b"\x01" + struct.pack(">i", facts.session_timeout_ms) + _array(rows) + NO_TAGS


def _read_classic(reader: FieldReader) -> ClassicFacts | None:
    if reader.int8() < 0:
        return None
    facts = ClassicFacts(reader.int32(), tuple(_read_array(reader, lambda: _read_protocol(reader))))
    reader.tags()
    reader.finish()
    return facts


def _read_protocol(reader: FieldReader) -> Protocol:
    protocol = Protocol(reader.compact_string(), reader.raw(reader.varint() - 1))
    reader.tags()
    return protocol


# Assignments


def encode_target(target: Assignment) -> bytes:
    topics = (_topic(topic_id, indexes, NO_TAGS) for topic_id, indexes in _by_topic(target).items())
    return struct.pack(">h", VALUE_VERSION) + _array(topics) + NO_TAGS


def decode_target(value: bytes) -> Assignment:
    reader = _value(value)
    found = frozenset(_read_topics(reader))
    reader.tags()
    reader.finish()
    return found


def encode_current(member: ConsumerMember) -> bytes:
    head = struct.pack(">hiib", VALUE_VERSION, member.epoch, member.previous_epoch, member.state)
    return head + _epochs(member.assigned) + _epochs(member.revoking) + NO_TAGS


def decode_current(value: bytes, member: ConsumerMember) -> None:
    reader = _value(value)
    member.epoch, member.previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    try:
        member.state = MemberState(state)
    except ValueError:
        raise reader.unknown(f"a member in state {state}") from None
    member.assigned, member.revoking = _read_topics(reader), _read_topics(reader)
    reader.tags()
    reader.finish()


def _epochs(partitions: Epochs) -> bytes:
    def topic(topic_id: UUID, indexes: list[int]) -> bytes:
        epochs = _array(struct.pack(">i", partitions[topic_id, index]) for index in indexes)
        return _topic(topic_id, indexes, tagged_fields({FIRST_TAG: epochs}))

    return _array(topic(topic_id, indexes) for topic_id, indexes in _by_topic(partitions).items())


def _topic(topic_id: UUID, indexes: list[int], tags: bytes) -> bytes:
    return topic_id.bytes + _array(struct.pack(">i", index) for index in indexes) + tags


def _by_topic(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return topics


def _read_topics(reader: FieldReader) -> Epochs:
    """Epochs are 0 in records of Kafka before 4.3, which has none: commits of any epoch are accepted then."""
    found: Epochs = {}
    for _ in range(reader.varint() - 1):
        topic_id = UUID(bytes=reader.raw(UUID_BYTES))
        indexes = _read_array(reader, reader.int32)
        tag = reader.tags().get(FIRST_TAG)
        epochs = [0] * len(indexes) if tag is None else _read_ints(_reader(tag))
        if len(epochs) != len(indexes):
            raise reader.unknown(f"{len(epochs)} epochs for {len(indexes)} partitions")
        found |= {(topic_id, index): epoch for index, epoch in zip(indexes, epochs, strict=True)}
    return found


def _read_ints(reader: FieldReader) -> list[int]:
    numbers = _read_array(reader, reader.int32)
    reader.finish()
    return numbers


# Patterns


def encode_pattern(topics: Iterable[str], version: int, now_ms: int) -> bytes:
    head = struct.pack(">h", VALUE_VERSION) + _array(map(compact_string, sorted(topics)))
    return head + struct.pack(">qq", version, now_ms) + NO_TAGS


def decode_pattern(value: bytes) -> frozenset[str]:
    reader = _value(value)
    topics = frozenset(_read_array(reader, reader.compact_string))
    reader.int64()
    reader.int64()
    reader.tags()
    reader.finish()
    return topics


# Fields


def _nullable(text: str | None) -> bytes:
    return varint(0) if text is None else compact_string(text)


def _array(elements: Iterable[bytes]) -> bytes:
    rows = list(elements)
    return varint(len(rows) + 1) + b"".join(rows)


def _read_array(reader: FieldReader, read: Callable[[], T]) -> list[T]:
    return [read() for _ in range(reader.varint() - 1)]


def _value(data: bytes) -> FieldReader:
    reader = _reader(data)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise reader.unknown(f"value version {version} of a consumer group")
    return reader


def _reader(data: bytes) -> FieldReader:
    return FieldReader(data, "the offsets topic")
