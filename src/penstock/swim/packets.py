"""Packets: the wire format of gossip. `seal.py` encrypts and authenticates them.

  byte 0      version of the protocol (1)
  byte 1      how the body is protected: 0 not at all, 1 by a tag, 2 encrypted (see seal.py)
  body        MessagePack: Envelope, an array of
                cluster id, sender (node, folder incarnation), receiver (the same, or -1 -1 for any node),
                boot epoch, sequence, messages
  message     an array that begins with its kind: see the classes

Datagrams and the reliable channel use the same format. The seal proves that the sender has the key; the receiver's
name prevents that a packet is replayed to another node; epoch and sequence prevent that it is accepted twice
(`replay.py`).

The rules of a receiver, cited in the tests:

1. Bytes from outside raise PacketError and nothing else, whatever they are.
2. The seal is checked before anything is decoded: a sender without the key reaches no parser.
3. A node with a key accepts no packet without a seal, and a node without a key no packet with one.
4. Sizes, counts, numbers and texts are bounded here, so no peer can exhaust memory.
"""

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw

from penstock.errors import ProtocolViolation
from penstock.swim.values import MAX_META_BYTES, Incarnation, MemberMeta, PacketRefusal, State
from penstock.types import NodeId, Replica

SEAL_BYTES: Final = 40
"""What a seal adds to a packet, at most."""
MAX_RELIABLE_BYTES = 8 * 1024 * 1024
"""A table of 10,000 members with metadata of the greatest size is 5.3 MB."""
MAX_MESSAGES = 512
"""The smallest claim has 5 bytes, so no valid packet has more; a packet of empty arrays is refused early."""
MAX_ROWS = 10_000
MAX_ALIVE_BYTES = MAX_META_BYTES + 16
"""Metadata, and around it kind, incarnation and array head."""
FIXED_BYTES = 2 + SEAL_BYTES + 1 + 3 + 2 * 19 + 9 + 9 + 3
"""The size of a packet without its cluster id and its messages, with every number at its longest."""

ANY_RECEIVER = Replica(NodeId(-1), -1)
"""The receiver's name in a packet to a seed, of which only the address is known."""

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T")


class PacketError(ProtocolViolation):
    """The packet is dropped, and counted under `reason`."""

    def __init__(self, reason: PacketRefusal, detail: str) -> None:
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


def encode_envelope(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def decode_envelope(body: bytes) -> Envelope:
    """PacketError if it is malformed."""
    return _decode(_ENVELOPE, body)


def pack(messages: Sequence[bytes]) -> tuple[Raw, ...]:
    return tuple(Raw(message) for message in messages)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes | Raw) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise PacketError(PacketRefusal.MALFORMED, str(problem)) from None
