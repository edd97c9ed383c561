"""Raft messages between nodes: packed messages are unpacked unchanged, and other bytes are refused."""

import asyncio
from random import Random
from typing import cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.node.membership.no_network import NoNetwork
from penstock.node.peers.transport import Body
from penstock.node.replication.hard_states import HardStates
from penstock.node.replication.multi_raft import FRAME_MESSAGES, MultiRaft, Posted, pack, unpack
from penstock.node.scheduling.clock import SystemClock
from penstock.raft import (
    Append,
    AppendReply,
    GroupConfig,
    InstallPrefix,
    Message,
    RaftSettings,
    RequestVote,
    TimeoutNow,
)
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


class Recorder(NoNetwork):
    """Keeps the frames that are sent."""

    def __init__(self) -> None:
        self.frames: list[memoryview] = []

    def send(self, node: NodeId, kind: int, body: Body) -> bool:
        pieces = body if isinstance(body, list) else [body]
        self.frames.append(memoryview(b"".join(bytes(piece) for piece in pieces)))
        return True


def test_a_frame_has_a_bounded_number_of_messages_and_all_arrive_in_order() -> None:
    """The peer handles a frame without a pause."""

    async def scenario() -> Recorder:
        network = Recorder()
        raft = MultiRaft(
            me=Replica(NodeId(1), 1),
            transport=network,
            hard_states=cast(HardStates, None),
            settings=RaftSettings(),
            clock=SystemClock(),
            random=Random(1),
        )
        for number in range(250):
            raft.post(TO, GroupId(UUID(int=5), number), RequestVote(5, 12, 4, True))
        await asyncio.sleep(0)
        return network

    frames = [unpack(frame) for frame in asyncio.run(scenario()).frames]
    assert [len(envelopes) for envelopes in frames] == [FRAME_MESSAGES, FRAME_MESSAGES, 50]
    assert [one.partition for envelopes in frames for one in envelopes] == list(range(250))
