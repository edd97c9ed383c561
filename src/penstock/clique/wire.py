"""What workers of a clique tell each other on carriers that forward: frames, several in one message of the carrier.

    Forward      a message or request for the owner of its slot; the sender keeps it until one of the next three comes
    Done         it is handled, or a dead letter: the sender may acknowledge it
    GaveBack     it was not handled here: the receiver does not own the slot any more, or not yet
    Busy         the receiver has no room for it: send it again in a moment
    Handover     where the sequences of slots are that the receiver gets next (ordering.py)
    HandedOver   the answer to it

    _clique.NAME.to.ADDRESS     the subject of a worker. Its address is the part of its member id before the dash: a
                                worker that was fenced has another member id, and the same address
    _clique.replies.ADDRESS     responses to the requests of a process, whether it is a worker or not

A message of the carrier is a msgpack array of frames, each an array that begins with its type. A receiver ignores what
it cannot read: the sender sends it again, and finally elsewhere."""

from typing import Final

import msgspec

from penstock.clique.errors import Undecodable
from penstock.clique.ordering import SequenceState

ORDER_HEADER: Final = "penstock-clique-order"
DEADLINE_HEADER: Final = "penstock-clique-deadline-ms"
"""Milliseconds since 1970: a request does not begin after it."""
CALL_HEADER: Final = "penstock-call-id"
ERROR_HEADER: Final = "penstock-reply-error"

FRAMES_BYTES_MAX: Final = 512 * 1024
"""Frames are put into one message of the carrier up to this size, if the carrier takes so much."""
FORWARD_BYTES_MAX: Final = 4 * 1024
"""The most that forwarding adds to a message. So a message that is only just small enough for a carrier could not be
forwarded."""


class Forward(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    forward_id: int
    """Unique among those of the sender."""
    sender: str
    """Its address."""
    stream: str
    data: bytes
    headers: dict[str, str]
    reply: str | None
    """Where the response to a request goes."""
    identity: str
    """The same for every copy of a message, as far as that can be known."""
    hops: int
    """How often it has been forwarded, this time included."""
    attempts: int
    """How often a handler has failed with it."""


class Done(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    forward_id: int


class GaveBack(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    forward_id: int
    attempts: int


class Busy(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    forward_id: int


class Handover(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    handover_id: int
    sender: str
    states: tuple[SequenceState, ...]


class HandedOver(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    handover_id: int


Frame = Forward | Done | GaveBack | Busy | Handover | HandedOver

_frames: Final = msgspec.msgpack.Decoder(list[Frame])


def encode_frame(frame: Frame) -> bytes:
    return msgspec.msgpack.encode(frame)


def join_frames(encoded: list[bytes]) -> bytes:
    """One message of the carrier."""
    return msgspec.msgpack.encode([msgspec.Raw(one) for one in encoded])


def decode_frames(data: bytes) -> list[Frame]:
    """Raises Undecodable."""
    try:
        return _frames.decode(data)
    except msgspec.MsgspecError as problem:
        raise Undecodable(f"not frames of a clique: {problem}") from None


def worker_subject(clique: str, address: str) -> str:
    return f"_clique.{clique}.to.{address}"


def reply_subject(address: str) -> str:
    return f"_clique.replies.{address}"


def address_of(member_id: str) -> str:
    return member_id.partition("-")[0]
