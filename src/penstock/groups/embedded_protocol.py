"""The formats that consumers of the classic protocol put into JoinGroup and SyncGroup, byte by byte. The broker reads
and writes them only for groups that move between the protocols; `subscription.py` reads the names alone.

    subscription   int16 version | array of str topics | bytes? user data
                   | from version 1: array of (str topic, array of int32 partitions) that it owns | more
    assignment     int16 version | array of (str topic, array of int32 partitions) | bytes? user data

An array is an int32 count and its elements; `bytes?` has length -1 for null. Later versions append fields.
"""

import struct
from collections.abc import Iterable

import msgspec

from penstock.errors import UnknownFormat
from penstock.record_fields import FieldReader, string
from penstock.types import TopicPartition

VERSION = 0
"""Every consumer understands an assignment of version 0."""
OWNED_SINCE_VERSION = 1
NO_USER_DATA = struct.pack(">i", -1)


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription that a member sends when it joins. With an eager assignor it owns nothing then."""

    topics: tuple[str, ...]
    owned: frozenset[TopicPartition]


def decode_subscription(data: bytes) -> Subscription | None:
    """None if it cannot be read."""
    reader = FieldReader(data, "a subscription")
    try:
        version = reader.int16()
        topics = tuple(reader.string() for _ in range(reader.int32()))
        _skip_user_data(reader)
        owned = _partitions(reader) if version >= OWNED_SINCE_VERSION else frozenset()
    except UnknownFormat:
        return None
    return Subscription(topics=topics, owned=owned) if version >= 0 else None


def decode_assignment(data: bytes) -> frozenset[TopicPartition] | None:
    """None if it cannot be read. A member without an assignment has no bytes."""
    if not data:
        return frozenset()
    reader = FieldReader(data, "an assignment")
    try:
        return _partitions(reader) if reader.int16() >= 0 else None
    except UnknownFormat:
        return None


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    rows = (
        string(topic) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        for topic, indexes in topics.items()
    )
    return struct.pack(">hi", VERSION, len(topics)) + b"".join(rows) + NO_USER_DATA


def _partitions(reader: FieldReader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(reader.int32()):
        topic = reader.string()
        found.update(TopicPartition(topic, reader.int32()) for _ in range(reader.int32()))
    return frozenset(found)


def _skip_user_data(reader: FieldReader) -> None:
    size = reader.int32()
    if size >= 0:
        reader.raw(size)
