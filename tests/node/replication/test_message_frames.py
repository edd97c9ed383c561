"""Raft messages between nodes: packed messages are unpacked unchanged, and other bytes are refused."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.node.replication.multi_raft import Posted, pack, unpack
from penstock.raft import Append, AppendReply, GroupConfig, InstallPrefix, Message, RequestVote, TimeoutNow
from penstock.types import GroupId, NodeId, Replica

TO = Replica(NodeId(2), 77)
GROUP = GroupId(UUID(int=5), 3)

MESSAGES: list[Message] = [
    Append(4, 10, 3, 12, 9, 0, b"entries of two batches"),
    AppendReply(4, 12, 12),
    Append(4, 12, 4, 12, 12, 0),
    InstallPrefix(4, 7, 2, GroupConfig(voters=(TO,)), b"prefix"),
    RequestVote(5, 12, 4, True),
    Append(4, 12, 4, 13, 12, 0, b"more"),
    TimeoutNow(4),
]


def packed(*messages: Message) -> memoryview:
    return memoryview(b"".join(bytes(piece) for piece in pack(Posted(TO, GROUP, one) for one in messages)))


def plain(message: Message) -> Message:
    """Entries come out as views of the frame."""
    if isinstance(message, Append):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        return Append(**{**fields, "entries": bytes(message.entries)})
    return message


@given(st.lists(st.sampled_from(MESSAGES), max_size=6))
def test_messages_are_unpacked_unchanged(messages: list[Message]) -> None:
    envelopes = unpack(packed(*messages))
    assert [plain(envelope.message) for envelope in envelopes] == messages
    assert all(
        (one.topic_id, one.partition, one.incarnation)
        == (GROUP.topic_id.bytes, GROUP.partition, TO.incarnation)
        for one in envelopes
    )


def test_entries_are_not_copied() -> None:
    frame = packed(MESSAGES[0])
    [envelope] = unpack(frame)
    assert isinstance(envelope.message, Append)
    assert isinstance(envelope.message.entries, memoryview)
    assert envelope.message.entries.obj is frame.obj


@given(st.binary(max_size=200))
def test_garbage_raises_only_a_violation(body: bytes) -> None:
    try:
        unpack(memoryview(body))
    except ProtocolViolation:
        return
    assert len(body) >= 5  # a length and at least an empty list


@given(st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_frame_is_a_violation_or_still_valid(position: int, value: int) -> None:
    frame = bytearray(packed(*MESSAGES))
    frame[position % len(frame)] = value
    try:
        envelopes = unpack(memoryview(frame))
    except ProtocolViolation:
        return
    for envelope in envelopes:
        if isinstance(envelope.message, Append):
            assert len(envelope.message.entries) == envelope.entries_bytes


def test_a_truncated_frame_is_refused() -> None:
    frame = packed(MESSAGES[0])
    for size in range(len(frame)):
        with pytest.raises(ProtocolViolation):
            unpack(frame[:size])


def test_entries_before_their_own_beginning_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="entries from 10 to 4"):
        unpack(packed(Append(4, 10, 3, 4, 9, 0)))
