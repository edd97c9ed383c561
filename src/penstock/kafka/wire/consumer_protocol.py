"""The assignment that a member of a classic group gets from its leader, through the coordinator.

A blob is an int16 version and the message in that version. A version newer than ours is read as the newest
that we know, and bytes after the message are let be: both are how Kafka's own consumers stay compatible.
Any client may put anything into these blobs, so a ProtocolViolation here means "opaque", not a broken peer.
"""

import struct
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.kafka.wire.codec import decode_message
from penstock.kafka.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from penstock.kafka.wire.schema import Buffer

PROTOCOL_TYPE: Final = "consumer"
"""The group protocol whose assignments have this form."""

_VERSION: Final = struct.Struct(">h")


def decode_assignment(blob: Buffer) -> ConsumerProtocolAssignment:
    root = ConsumerProtocolAssignment.ROOT
    assert root is not None
    if len(blob) < _VERSION.size:
        raise ProtocolViolation(f"ConsumerProtocolAssignment: expected a version, found {len(blob)} bytes")
    (version,) = _VERSION.unpack_from(blob)
    if version < 0:
        raise ProtocolViolation(f"ConsumerProtocolAssignment: expected a version from 0 on, found {version}")
    body = memoryview(blob)[_VERSION.size :]
    return decode_message(ConsumerProtocolAssignment, min(version, root.last), body, whole=False)
