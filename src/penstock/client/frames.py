"""Frames of /v1/push and /v1/work: what a broker says, typed, and what it is told. docs/push.md and docs/queues.md have
the protocols.

A frame of a kind that is not known here is left alone: a newer broker may say more.
"""

from struct import Struct
from typing import Final

import msgspec

from penstock.client.errors import Garbled
from penstock.client.received import Runs

PUSH_PATH: Final = "/v1/push"
WORK_PATH: Final = "/v1/work"
MAX_FRAME_BYTES: Final = 128 << 20
"""The largest message that is taken from a broker: its largest batch, and a head."""

_LENGTH: Final = Struct(">I")


class Position(msgspec.Struct, frozen=True):
    """How far one partition is: everything below the offset is done, and these runs above it."""

    topic: str
    partition: int
    offset: int
    done: Runs = []

    def covers(self, offset: int) -> bool:
        return offset < self.offset or any(first <= offset <= last for first, last in self.done)


class Lead(msgspec.Struct, frozen=True):
    """A partition, and where it is served if not here; no url while nobody knows."""

    topic: str
    partition: int
    url: str | None = None


class Subscribed(msgspec.Struct, frozen=True):
    positions: list[Position] = []
    resumed: bool = False


class Acked(msgspec.Struct, frozen=True):
    positions: list[Position]


class Unsubscribed(msgspec.Struct, frozen=True):
    pass


class Elsewhere(msgspec.Struct, frozen=True):
    url: str


class Inactive(msgspec.Struct, frozen=True):
    message: str = ""


class Trouble(msgspec.Struct, frozen=True):
    code: str
    message: str = ""
    refused: Runs = []
    """Of what was settled: the runs, as they were sent, that were not taken. The others are durable."""


class Working(msgspec.Struct, frozen=True):
    lease_ms: int
    exclusive: bool | None = None
    """Whether the queue is for one consumer at a time; None: an older broker does not say."""
    consumer: str = ""
    partitions: list[Lead] = []
    elsewhere: list[Lead] = []


class Settled(msgspec.Struct, frozen=True):
    number: int
    error: Trouble | None = None


class Pong(msgspec.Struct, frozen=True):
    pass


class Head(msgspec.Struct, frozen=True):
    """What stands before the batches of a binary frame: of a queue `acquired`, of a subscription `offsets`."""

    topic: str
    partition: int
    acquired: list[tuple[int, int, int]] = []
    """First, last, deliveries."""
    offsets: Runs = []


class Batches(msgspec.Struct, frozen=True):
    head: Head
    data: bytes


Frame = (
    Subscribed | Acked | Unsubscribed | Elsewhere | Inactive | Trouble | Working | Settled | Pong | Batches
)

_KINDS: Final[dict[str, msgspec.json.Decoder[Frame]]] = {
    "subscribed": msgspec.json.Decoder(Subscribed),
    "acked": msgspec.json.Decoder(Acked),
    "unsubscribed": msgspec.json.Decoder(Unsubscribed),
    "elsewhere": msgspec.json.Decoder(Elsewhere),
    "inactive": msgspec.json.Decoder(Inactive),
    "error": msgspec.json.Decoder(Trouble),
    "working": msgspec.json.Decoder(Working),
    "settled": msgspec.json.Decoder(Settled),
    "pong": msgspec.json.Decoder(Pong),
}


class _Tag(msgspec.Struct):
    type: str


_tag: Final = msgspec.json.Decoder(_Tag)
_head: Final = msgspec.json.Decoder(Head)


def parse(frame: str | bytes) -> Frame | None:
    """None for what is not known; Garbled for what is no frame at all."""
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
