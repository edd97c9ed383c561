"""The messages between replicas of a group, as MessagePack arrays: [tag, field, ...].

The frame around a message has the group and the identities of both replicas. The transport must guarantee that a
message comes from the replica that the frame names as its sender, and that it reaches exactly the incarnation that it
is for.

A message is a claim of a peer. `decode` checks that all fields exist and are in range; the core compares their content
with its log.
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
    """The leader itself asked this candidate to campaign: leases do not prevent votes for it."""


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
    """The first offset that readers of the leader see. Followers adopt it, so that it never goes back with a new
    leader."""
    entries: bytes = b""


class AppendReply(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """How much of the leader's log the follower has: flushed below `match_index`, written below `received_index`.

    A rejection names the `prev_index` that did not fit, and the greatest index below it at which the logs may agree.
    """

    term: TermField
    match_index: IndexField
    received_index: IndexField
    rejected_index: Annotated[int, msgspec.Meta(ge=NONE, le=MAX_INDEX)] = NONE
    hint_index: IndexField = 0
    hint_term: TermField = NONE
    refused_index: Annotated[int, msgspec.Meta(ge=NONE, le=MAX_INDEX)] = NONE
    """The follower refused entries at this index, because a checksum, an offset or a term is wrong. They are damaged on
    the leader's disk or were changed on the way; only the leader can tell which."""


class InstallPrefix(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The follower must start its log again at `first_index`: the leader has deleted the entries below it."""

    term: TermField
    first_index: IndexField
    prefix_term: TermField
    """The term of the last deleted entry."""
    config: GroupConfig
    """The configuration at `first_index`; its own entry may be deleted too."""
    prefix: bytes
    """The other facts about the deleted entries, in the log's own encoding."""


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The leader asks its successor to campaign at once."""

    term: TermField


class Heartbeat:
    """A leader's heartbeat to all its peers; the frames of heartbeats.py carry it.

    The object stays the same until a field changes: compare by identity."""

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
    """Raises ProtocolViolation for bytes that are not a message within its limits."""
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
