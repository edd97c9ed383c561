"""What replicas of a group say to each other, as MessagePack arrays: [tag, field, ...].

The group and both replicas' identities stand outside, in the frame: whoever carries a message must see to it that it
comes from the replica that is named as its sender, and reaches the very incarnation that it was meant for.

A message is a claim of a peer. `decode` proves that the fields are there and in range; what they mean for the log is
checked against the log.
"""

from typing import Annotated

import msgspec

from penstock.errors import ProtocolViolation
from penstock.raft.config import GroupConfig
from penstock.raft.settings import MAX_INDEX, MAX_TERM

MAX_MESSAGE_BYTES = 128 << 20
"""An append carries at least one whole entry, and a batch may have 100 MiB, the largest request that is taken."""

TermField = Annotated[int, msgspec.Meta(ge=-1, le=MAX_TERM)]
IndexField = Annotated[int, msgspec.Meta(ge=0, le=MAX_INDEX)]
NONE = -1


class RequestVote(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Asks for a vote in `term`, or whether there would be one (`pre`)."""

    term: TermField
    end_index: IndexField
    last_term: TermField
    pre: bool
    transfer: bool = False
    """The leader itself sent this candidate ahead: leases do not hold it up."""


class VoteReply(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """`term` is the one asked for if granted, else the replier's own."""

    term: TermField
    granted: bool
    pre: bool


class Append(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Entries that follow `prev_index`, where the sender's log has `prev_term`; they end at `end_index`."""

    term: TermField
    prev_index: IndexField
    prev_term: TermField
    end_index: IndexField
    commit_index: IndexField
    start_offset: IndexField
    """Where the leader's log starts for readers, so that no reader sees it go back when the leader changes."""
    entries: bytes = b""


class AppendReply(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What of the leader's log is here: flushed below `match_index`, written below `received_index`.

    A rejection names the `prev_index` that did not fit, and the greatest place below it at which the logs may agree.
    """

    term: TermField
    match_index: IndexField
    received_index: IndexField
    rejected_index: Annotated[int, msgspec.Meta(ge=NONE, le=MAX_INDEX)] = NONE
    hint_index: IndexField = 0
    hint_term: TermField = NONE
    refused_index: Annotated[int, msgspec.Meta(ge=NONE, le=MAX_INDEX)] = NONE
    """Entries came that follow here, and are not what a log may hold: a checksum is wrong, or an offset, or a term.
    They rotted on the leader's disk or were changed on the way, and only the leader can tell which."""


class InstallPrefix(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Begin your log anew at `first_index`: what you lack below it is no longer anywhere."""

    term: TermField
    first_index: IndexField
    prefix_term: TermField
    """The term of the last entry that is gone."""
    config: GroupConfig
    """What held at `first_index`; the entry that brought it may be gone with the rest."""
    prefix: bytes
    """What else the log must know, as the log itself has written it."""


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The leader asks its successor to campaign at once."""

    term: TermField


class Beat:
    """What a leader tells all its peers all the time; it travels in the frames of beats.py.

    One object until something changes: compare by identity."""

    __slots__ = ("commit_index", "start_offset", "term")

    def __init__(self, term: int, commit_index: int, start_offset: int) -> None:
        self.term = term
        self.commit_index = commit_index
        self.start_offset = start_offset


Message = RequestVote | VoteReply | Append | AppendReply | InstallPrefix | TimeoutNow

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(body: bytes | memoryview) -> Message:
    """Raises ProtocolViolation for whatever is not a message within its limits."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(f"a message of {len(body)} bytes: expected at most {MAX_MESSAGE_BYTES}")
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"a message that does not parse: {problem}") from problem
    check(message)
    return message


def check(message: Message) -> None:
    """Raises ProtocolViolation for fields that are in range each and make no sense together."""
    if isinstance(message, Append) and message.end_index < message.prev_index:
        raise ProtocolViolation(f"entries from {message.prev_index} to {message.end_index}")
    if isinstance(message, InstallPrefix):
        message.config.validate()
