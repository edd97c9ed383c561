"""The records of consumer groups are Kafka's, byte by byte, and come back as they were written."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UnknownFormat
from penstock.groups.consumer_member import ClassicFacts, ConsumerMember
from penstock.groups.consumer_storage import (
    ConsumerKey,
    RecordKind,
    decode_consumer_key,
    decode_current,
    decode_epoch,
    decode_member,
    decode_pattern,
    decode_target,
    encode_consumer_key,
    encode_current,
    encode_epoch,
    encode_member,
    encode_pattern,
    encode_target,
)
from penstock.groups.consumer_values import MemberState
from penstock.groups.values import Protocol

TOPIC = UUID(int=7)
TEXT = st.text(max_size=20)
PARTITIONS = st.dictionaries(
    st.tuples(st.builds(UUID, int=st.integers(0, 3)), st.integers(0, 9)), st.integers(0, 99)
)


def test_keys_begin_with_their_kind() -> None:
    assert encode_consumer_key(RecordKind.GROUP, "g") == b"\x00\x03\x00\x01g"
    assert encode_consumer_key(RecordKind.CURRENT, "g", "me") == b"\x00\x08\x00\x01g\x00\x02me"
    assert encode_consumer_key(RecordKind.PATTERN, "g", "a.*") == b"\x00\x10\x00\x01g\x00\x03a.*"


def test_epochs_have_the_layout_of_kafka() -> None:
    assert encode_epoch(5, 0) == b"\x00\x00\x00\x00\x00\x05\x00"
    assert encode_epoch(5, 258) == b"\x00\x00\x00\x00\x00\x05\x01\x00\x08\x00\x00\x00\x00\x00\x00\x01\x02"


def test_a_target_has_the_layout_of_kafka() -> None:
    assert encode_target(frozenset({(TOPIC, 3)})) == (
        b"\x00\x00\x02" + TOPIC.bytes + b"\x02\x00\x00\x00\x03\x00\x00"
    )


def test_a_current_assignment_has_the_layout_of_kafka() -> None:
    member = ConsumerMember("me")
    member.epoch, member.previous_epoch, member.state = 4, 3, MemberState.UNRELEASED_PARTITIONS
    member.assigned = {(TOPIC, 1): 2}
    assigned = b"\x02" + TOPIC.bytes + b"\x02\x00\x00\x00\x01" + b"\x01\x00\x05\x02\x00\x00\x00\x02"
    head = b"\x00\x00\x00\x00\x00\x04\x00\x00\x00\x03\x02"
    assert encode_current(member) == head + assigned + b"\x01\x00"


def test_a_record_of_kafka_without_assignment_epochs_is_read() -> None:
    head = b"\x00\x00\x00\x00\x00\x04\x00\x00\x00\x03\x00"
    member = ConsumerMember("me")
    decode_current(head + b"\x02" + TOPIC.bytes + b"\x02\x00\x00\x00\x01\x00" + b"\x01\x00", member)
    assert member.assigned == {(TOPIC, 1): 0}


@given(st.sampled_from(RecordKind), TEXT, TEXT)
def test_keys_come_back(kind: RecordKind, group_id: str, name: str) -> None:
    decoded = decode_consumer_key(encode_consumer_key(kind, group_id, name))
    assert decoded is not None
    assert encode_consumer_key(decoded.kind, decoded.group_id, decoded.name) == encode_consumer_key(
        kind, group_id, name
    )


@given(TEXT, st.none() | TEXT, st.lists(TEXT).map(tuple), TEXT, st.none() | st.binary(max_size=200))
def test_members_come_back(
    text: str, optional: str | None, topics: tuple[str, ...], pattern: str, metadata: bytes | None
) -> None:
    member = ConsumerMember("me", optional)
    member.client_id = member.client_host = text
    member.rack_id = member.assignor = optional
    member.topics, member.pattern, member.rebalance_timeout_ms = topics, pattern, 5
    if metadata is not None:
        member.classic = ClassicFacts(9, (Protocol("range", metadata), Protocol(text, b"")))
    found = ConsumerMember("me")
    decode_member(encode_member(member), found)
    assert encode_member(found) == encode_member(member)
    assert (found.instance_id, found.rack_id, found.topics) == (optional, optional, topics)
    assert (found.classic is None) == (metadata is None)


@given(PARTITIONS, PARTITIONS)
def test_assignments_come_back(
    assigned: dict[tuple[UUID, int], int], revoking: dict[tuple[UUID, int], int]
) -> None:
    member, found = ConsumerMember("me"), ConsumerMember("me")
    member.assigned, member.revoking = assigned, revoking
    decode_current(encode_current(member), found)
    assert (found.assigned, found.revoking) == (assigned, revoking)
    assert decode_target(encode_target(frozenset(assigned))) == assigned.keys()


def test_epochs_and_patterns_come_back() -> None:
    assert decode_epoch(encode_epoch(7, -3)) == (7, -3)
    assert decode_pattern(encode_pattern(["b", "a"], 1, 2)) == {"a", "b"}


def test_other_keys_are_left_to_others() -> None:
    assert decode_consumer_key(b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00") is None
    assert decode_consumer_key(b"") is None
    assert decode_consumer_key(b"\x00\x04\x00\x01g") == ConsumerKey(
        kind=RecordKind.PARTITION_METADATA, group_id="g"
    )


@given(st.binary(max_size=60))
def test_other_bytes_are_an_unknown_format(data: bytes) -> None:
    for decode in (decode_epoch, decode_target, decode_pattern):
        try:
            decode(data)
        except UnknownFormat:
            continue


def test_a_later_version_is_an_unknown_format() -> None:
    with pytest.raises(UnknownFormat):
        decode_epoch(b"\x00\x01\x00\x00\x00\x05\x00")
    with pytest.raises(UnknownFormat):
        decode_current(b"\x00\x00\x00\x00\x00\x04\x00\x00\x00\x03\x09\x01\x01\x00", ConsumerMember("me"))
