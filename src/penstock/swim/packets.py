"""Packets: the wire format of gossip, and its authentication.

  byte 0      version of the protocol (1)
  byte 1      0: no tag follows, 1: a tag follows
  16 bytes    the tag: BLAKE2b with the cluster's key over bytes 0 and 1 and the body
  body        MessagePack: Envelope, an array of
                cluster id, sender (node, folder incarnation), receiver (the same, or -1 -1 for any node),
                boot epoch, sequence, messages
  message     an array that begins with its kind: see the classes

Datagrams and the reliable channel use the same format. The tag proves that the sender has the key; the receiver's name
prevents that a packet is replayed to another node; epoch and sequence prevent that it is accepted twice (`replay.py`).
Gossip is not secret, so it is not encrypted.

The rules of a receiver, cited in the tests:

1. Bytes from outside raise PacketError and nothing else, whatever they are.
2. The tag is checked before anything is decoded: a sender without the key reaches no parser.
3. A node with a key accepts no packet without a tag, and a node without a key no packet with one.
4. Sizes, counts, numbers and texts are bounded here, so no peer can exhaust memory.
"""

import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw

from penstock.errors import ProtocolViolation
from penstock.swim.values import MAX_META_BYTES, Incarnation, MemberMeta, Refusal, State
from penstock.types import NodeId, Replica

VERSION: Final = 1
UNTAGGED: Final = 0
TAGGED: Final = 1
TAG_BYTES: Final = 16
"""Forging one takes 2^127 tries on average; a longer tag would cost space without a benefit."""
MAX_RELIABLE_BYTES = 8 * 1024 * 1024
"""A table of 10,000 members with metadata of the greatest size is 5.3 MB."""
MAX_MESSAGES = 512
"""The smallest claim has 5 bytes, so no valid packet has more; a packet of empty arrays is refused early."""
MAX_ROWS = 10_000
MAX_ALIVE_BYTES = MAX_META_BYTES + 16
"""Metadata, and around it kind, incarnation and array head."""
FIXED_BYTES = 2 + TAG_BYTES + 1 + 3 + 2 * 19 + 9 + 9 + 3
"""The size of a packet without its cluster id and its messages, with every number at its longest."""

ANY_RECEIVER = Replica(NodeId(-1), -1)
"""The receiver's name in a packet to a seed, of which only the address is known."""

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T")


class PacketError(ProtocolViolation):
    """The packet is dropped, and counted under `reason`."""

    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The receiver answers at once with an Ack of the same number, to the source of the packet."""

    number: Number


class IndirectPing(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Asks the receiver to ping `target`. It answers with Ack or, if it gets none in time, with Nack: that proves to
    the asker that its own connection works. The helper looks up the address itself: a peer must not choose where it
    sends."""

    number: Number
    target: Replica


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=2):
    number: Number


class Nack(msgspec.Struct, frozen=True, array_like=True, tag=3):
    number: Number


class Alive(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A member is present, and this is its metadata. Only the member makes it; all others forward it."""

    incarnation: Incarnation
    meta: MemberMeta

    @property
    def subject(self) -> Replica:
        return self.meta.replica


class Suspect(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """`by` had no answer from the member. Different accusers are independent confirmations."""

    incarnation: Incarnation
    subject: Replica
    by: NodeId


class Dead(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The member did not refute the suspicion in time."""

    incarnation: Incarnation
    subject: Replica


class Left(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The member itself announced that it leaves."""

    incarnation: Incarnation
    subject: Replica


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One member in a table."""

    state: State
    incarnation: Incarnation
    meta: MemberMeta


class Table(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """All members that the sender knows. If it is no reply, it asks for the receiver's table."""

    is_reply: bool
    rows: Annotated[tuple[Row, ...], Meta(max_length=MAX_ROWS)]


Claim = Alive | Suspect | Dead | Left
Message = Ping | IndirectPing | Ack | Nack | Claim | Table


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """Sender, receiver, and the number of the packet in the sender's count."""

    cluster_id: Annotated[str, Meta(max_length=64)]
    sender: Replica
    receiver: Replica
    epoch: Number
    sequence: Number
    messages: Annotated[tuple[Raw, ...], Meta(max_length=MAX_MESSAGES)]


_ENVELOPE = msgspec.msgpack.Decoder(Envelope)
_MESSAGE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_ENCODER = msgspec.msgpack.Encoder()


def encode_message(message: Message) -> bytes:
    """One message, ready to be put into any number of packets."""
    return _ENCODER.encode(message)


def decode_messages(envelope: Envelope) -> list[Message]:
    """PacketError if one is malformed: a packet is accepted as a whole or not at all."""
    return [_decode(_MESSAGE, raw) for raw in envelope.messages]


class Seal:
    """Seals and opens packets with the cluster's key, or without one."""

    def __init__(self, key: bytes | None) -> None:
        # Derives a key of 32 bytes from a key of any length; other uses of the same key material derive other keys.
        self._key = blake2b(key, digest_size=32, person=b"penstock gossip").digest() if key else None

    def close(self, envelope: Envelope) -> bytes:
        body = _ENCODER.encode(envelope)
        if self._key is None:
            return bytes((VERSION, UNTAGGED)) + body
        head = bytes((VERSION, TAGGED))
        return head + self._tag(head, body) + body

    def open(self, data: bytes, max_bytes: int) -> Envelope:
        """The envelope of a sender that has the key; else PacketError."""
        if not 2 <= len(data) <= max_bytes:
            raise PacketError(Refusal.MALFORMED, f"a packet of {len(data)} bytes")
        if data[0] != VERSION:
            raise PacketError(Refusal.VERSION, f"version {data[0]}, and this node has {VERSION}")
        return _decode(_ENVELOPE, self._checked_body(data))

    def _checked_body(self, data: bytes) -> bytes:
        if self._key is None:
            if data[1] != UNTAGGED:
                raise PacketError(Refusal.KEY, "it has a tag, and this node has no cluster key")
            return data[2:]
        head, tag, body = data[:2], data[2 : 2 + TAG_BYTES], data[2 + TAG_BYTES :]
        if head[1] != TAGGED or not hmac.compare_digest(tag, self._tag(head, body)):
            raise PacketError(Refusal.KEY, "its tag was not made with this cluster's key")
        return body

    def _tag(self, head: bytes, body: bytes) -> bytes:
        assert self._key is not None
        digest = blake2b(head, digest_size=TAG_BYTES, key=self._key)
        digest.update(body)
        return digest.digest()


def pack(messages: Sequence[bytes]) -> tuple[Raw, ...]:
    return tuple(Raw(message) for message in messages)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes | Raw) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise PacketError(Refusal.MALFORMED, str(problem)) from None
