"""Messages between the members of a classic group, through the coordinator, which does not read them.

A blob is an int16 version and the message in that version. As in Kafka's own consumers, a newer version than this
codec knows is read as the newest one that it knows, and bytes after the message are ignored.
Clients may put any bytes into these blobs, so a ProtocolViolation here means "opaque" and does not end the connection.
"""

import struct
from typing import Final, TypeVar

from penstock.errors import ProtocolViolation
from penstock.kafka.wire.codec import decode_message, encode_message
from penstock.kafka.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from penstock.kafka.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from penstock.kafka.wire.schema import Buffer, Message

PROTOCOL_TYPE: Final = "consumer"
"""The group protocol whose metadata and assignments have this form."""

_VERSION: Final = struct.Struct(">h")
M = TypeVar("M", bound=Message)


def decode_subscription(blob: Buffer) -> ConsumerProtocolSubscription:
    return _decode(ConsumerProtocolSubscription, blob)


def decode_assignment(blob: Buffer) -> ConsumerProtocolAssignment:
    return _decode(ConsumerProtocolAssignment, blob)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = 3) -> bytes:
    return _VERSION.pack(version) + encode_message(subscription, version)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = 3) -> bytes:
    return _VERSION.pack(version) + encode_message(assignment, version)


def _decode(cls: type[M], blob: Buffer) -> M:
    assert cls.ROOT is not None
    if len(blob) < _VERSION.size:
        raise ProtocolViolation(f"{cls.__name__}: expected a version, found {len(blob)} bytes")
    (version,) = _VERSION.unpack_from(blob)
    if version < 0:
        raise ProtocolViolation(f"{cls.__name__}: expected a version of 0 or more, found {version}")
    known = min(version, cls.ROOT.last)
    return decode_message(cls, known, memoryview(blob)[_VERSION.size :], whole=False)
