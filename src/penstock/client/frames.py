"""The frames of /v1/push and /v1/work. docs/push.md and docs/queues.md describe the protocols.

The client ignores frames of a type that it does not know: a newer broker may send them.
"""

from struct import Struct
from typing import Final

import msgspec

from penstock.client.errors import Garbled
from penstock.client.received_record import OffsetRanges

PUSH_PATH: Final = "/v1/push"
WORK_PATH: Final = "/v1/work"
MAX_FRAME_BYTES: Final = 128 << 20
"""The largest frame that the client accepts: a broker's largest batch, and a head."""

_LENGTH: Final = Struct(">I")


class Position(msgspec.Struct, frozen=True):
    """The progress in one partition: everything below the offset is done, and these ranges above it."""

    topic: str
    partition: int
    offset: int
    done: OffsetRanges = []

    def covers(self, offset: int) -> bool:
        return offset < self.offset or any(first <= offset <= last for first, last in self.done)


class PartitionUrl(msgspec.Struct, frozen=True):
    """A partition, and the node that serves it; no url while its leader is unknown."""

    topic: str
    partition: int
    url: str | None = None


class Subscribed(msgspec.Struct, frozen=True):
    positions: list[Position] = []
    resumed: bool = False


class Acked(msgspec.Struct, frozen=True):
    positions: list[Position]


class Gone(msgspec.Struct, frozen=True):
    """A topic was deleted."""

    topic: str


class Unsubscribed(msgspec.Struct, frozen=True):
    pass


class Elsewhere(msgspec.Struct, frozen=True):
    url: str


class Inactive(msgspec.Struct, frozen=True):
    message: str = ""


class ErrorFrame(msgspec.Struct, frozen=True):
    code: str
    message: str = ""
    refused: OffsetRanges = []
    """The ranges of a settle frame, as they were sent, that were refused. The others are durable."""


class Working(msgspec.Struct, frozen=True):
    lease_ms: int
    exclusive: bool | None = None
    """Whether the queue is for one consumer at a time; None: an older broker, which does not send this."""
    delivery_limit: int | None = None
    """How often a job is delivered, 0: no limit; None: an older broker, which does not take `failures` either."""
    transactions: bool = False
    """Whether jobs can be settled in transactions."""
    consumer: str = ""
    partitions: list[PartitionUrl] = []
    elsewhere: list[PartitionUrl] = []


class Settled(msgspec.Struct, frozen=True):
    number: int
    error: ErrorFrame | None = None


class Pong(msgspec.Struct, frozen=True):
    pass


class BatchesHead(msgspec.Struct, frozen=True):
    """The head of a binary frame, before the batches: a queue's has `acquired`, a subscription's `offsets`."""

    topic: str
    partition: int
    acquired: list[tuple[int, int, int]] = []
    """First, last, deliveries."""
    announce: OffsetRanges = []
    """Jobs that a clique's worker announces before it begins them."""
    epoch: int = 0
    """Of the table by which a clique's worker gets them; 0: an older broker, which does not send this."""
    offsets: OffsetRanges = []


class Batches(msgspec.Struct, frozen=True):
    head: BatchesHead
    data: bytes


Frame = (
    Subscribed
    | Acked
    | Gone
    | Unsubscribed
    | Elsewhere
    | Inactive
    | ErrorFrame
    | Working
    | Settled
    | Pong
    | Batches
)

_KINDS: Final[dict[str, msgspec.json.Decoder[Frame]]] = {
    "subscribed": msgspec.json.Decoder(Subscribed),
    "acked": msgspec.json.Decoder(Acked),
    "gone": msgspec.json.Decoder(Gone),
    "unsubscribed": msgspec.json.Decoder(Unsubscribed),
    "elsewhere": msgspec.json.Decoder(Elsewhere),
    "inactive": msgspec.json.Decoder(Inactive),
    "error": msgspec.json.Decoder(ErrorFrame),
    "working": msgspec.json.Decoder(Working),
    "settled": msgspec.json.Decoder(Settled),
    "pong": msgspec.json.Decoder(Pong),
}


class _Tag(msgspec.Struct):
    type: str


_tag: Final = msgspec.json.Decoder(_Tag)
_head: Final = msgspec.json.Decoder(BatchesHead)


def parse(frame: str | bytes) -> Frame | None:
    """None if the type is unknown; raises Garbled if it is not a frame."""
    try:
        if isinstance(frame, bytes):
            return _parse_batches(frame)
        decoder = _KINDS.get(_tag.decode(frame).type)
        return None if decoder is None else decoder.decode(frame)
    except msgspec.MsgspecError as problem:
        raise Garbled(
            f"a frame that makes no sense: {problem}: is this address a broker's HTTP port?"
        ) from None


def _parse_batches(frame: bytes) -> Batches:
    if len(frame) < _LENGTH.size:
        raise Garbled(f"a binary frame of {len(frame)} bytes: expected a head")
    end = _LENGTH.size + _LENGTH.unpack_from(frame)[0]
    if end > len(frame):
        raise Garbled(f"a head that ends at byte {end} in a frame of {len(frame)} bytes")
    return Batches(_head.decode(frame[_LENGTH.size : end]), frame[end:])


def compose(kind: str, **fields: object) -> str:
    """A frame that a client sends."""
    return msgspec.json.encode({"type": kind, **fields}).decode()
