"""Records and snapshots round-trip, and the same records give the same state."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster import (
    ClusterState,
    Endpoint,
    MetadataRecord,
    MetadataVoters,
    NodeConfigsChanged,
    NodeDecommissioning,
    NodeFenced,
    NodeRegistered,
    NodeRemoved,
    NodeUnfenced,
    PartitionMoveCancelled,
    PartitionMoved,
    PartitionMoveStarted,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from penstock.errors import UnknownFormat

TOPICS = [
    ("a", UUID(int=1)),
    ("a", UUID(int=2)),
    ("b.c", UUID(int=3)),
    ("b_c", UUID(int=4)),
    ("d", UUID(int=5)),
]
CONFIGS = st.dictionaries(st.sampled_from(["retention.ms", "segment.ms"]), st.sampled_from(["1", "2"]))
NODE_CONFIGS = st.dictionaries(
    st.sampled_from(["log.retention.ms", "log.roll.ms"]), st.sampled_from(["3", "4"])
)
ASSIGNMENTS = st.lists(st.just([1, 2]), min_size=1, max_size=3)


def topic_record(
    kind: str, topic: tuple[str, UUID], assignments: list[list[int]], configs: dict[str, str]
) -> MetadataRecord:
    name, topic_id = topic
    if kind == "create":
        return TopicCreated(name=name, topic_id=topic_id, assignments=assignments, configs=configs)
    if kind == "grow":
        return PartitionsAdded(name=name, topic_id=topic_id, first=len(assignments), assignments=assignments)
    if kind == "alter":
        return TopicConfigsChanged(name=name, topic_id=topic_id, configs=configs)
    return TopicDeleted(name=name, topic_id=topic_id)


NODE_IDS = st.integers(1, 3)
TOPIC_IDS = st.sampled_from([topic_id for _, topic_id in TOPICS])
MEMBERS = st.sampled_from([([1, 2], [101, 102]), ([2, 1], [102, 101]), ([2, 3], [202, 103]), ([1, 2], [])])
NODE_RECORDS = st.one_of(
    st.builds(
        NodeRegistered,
        node_id=NODE_IDS,
        incarnation=st.sampled_from([101, 202]),
        kafka=st.just(Endpoint("h", 1)),
        cluster=st.just(Endpoint("h", 2)),
        http=st.sampled_from([None, Endpoint("h", 3)]),
        rack=st.sampled_from([None, "a"]),
    ),
    st.builds(NodeFenced, node_id=NODE_IDS),
    st.builds(NodeUnfenced, node_id=NODE_IDS),
    st.builds(NodeDecommissioning, node_id=NODE_IDS, on=st.booleans()),
    st.builds(NodeRemoved, node_id=NODE_IDS),
    st.builds(MetadataVoters, voters=st.lists(st.tuples(NODE_IDS, st.just(101)))),
)


def move_record(
    kind: type[PartitionMoveStarted] | type[PartitionMoved],
    topic_id: UUID,
    partition: int,
    members: tuple[list[int], list[int]],
) -> MetadataRecord:
    replicas, incarnations = members
    return kind(topic_id=topic_id, partition=partition, replicas=replicas, incarnations=incarnations)


MOVE_RECORDS = st.one_of(
    st.builds(
        move_record,
        st.sampled_from([PartitionMoveStarted, PartitionMoved]),
        TOPIC_IDS,
        st.integers(0, 2),
        MEMBERS,
    ),
    st.builds(PartitionMoveCancelled, topic_id=TOPIC_IDS, partition=st.integers(0, 2)),
)
RECORDS = st.one_of(
    NODE_RECORDS,
    MOVE_RECORDS,
    st.builds(
        topic_record,
        st.sampled_from(["create", "grow", "alter", "delete"]),
        st.sampled_from(TOPICS),
        ASSIGNMENTS,
        CONFIGS,
    ),
    st.builds(NodeConfigsChanged, node_id=st.sampled_from([None, 1, 2]), configs=NODE_CONFIGS),
    st.builds(ProducerIdsReserved, node_id=st.just(1), first=st.just(0), end=st.integers(1, 9000)),
)


def nonzero(counts: dict[int, int]) -> dict[int, int]:
    return {node: count for node, count in counts.items() if count}


def possible(state: ClusterState, record: MetadataRecord) -> bool:
    """Whether the decisions could have made this record: a name that is taken is not given again."""
    return not isinstance(record, TopicCreated) or state.colliding_topic(record.name) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(RECORDS, max_size=20), st.integers(0, 20))
def test_the_same_records_give_the_same_state_with_or_without_a_snapshot(
    records: list[MetadataRecord], snapshot_after: int
) -> None:
    state, from_snapshot = ClusterState(1), ClusterState(1)
    for number, record in enumerate(records):
        if not possible(state, record):
            continue
        stored = decode_record(encode_record(record))
        assert stored == record
        before = dict(state.topics)
        changed = state.apply(stored)
        assert changed == {
            n for n in before.keys() | state.topics.keys() if before.get(n) != state.topics.get(n)
        }
        if number == snapshot_after:
            from_snapshot = ClusterState(1)
            from_snapshot.apply(decode_record(encode_record(state.snapshot())))
        else:
            from_snapshot.apply(stored)
    assert from_snapshot.snapshot() == state.snapshot()
    assert from_snapshot.topics == state.topics
    assert from_snapshot.nodes == state.nodes
    assert from_snapshot.metadata_voters == state.metadata_voters
    assert nonzero(from_snapshot.replica_counts) == nonzero(state.replica_counts)
    assert nonzero(from_snapshot.leader_counts) == nonzero(state.leader_counts)
    assert state.partition_count == sum(topic.partitions for topic in state.topics.values())
    assert all(state.topic_by_id(topic.topic_id) is topic for topic in state.topics.values())


def test_a_snapshot_replaces_the_whole_state() -> None:
    state = ClusterState(1)
    state.apply(TopicCreated(name="old", topic_id=UUID(int=1), assignments=[[1]], configs={}))
    assert state.apply(ClusterState(1).snapshot()) == {"old"}
    assert not state.topics
    assert state.colliding_topic("old") is None


def test_a_view_of_the_topics_shows_what_a_snapshot_restores() -> None:
    """Parts of a node hold the mapping itself: a node that starts from a snapshot must show them its topics."""
    source, state = ClusterState(1), ClusterState(1)
    source.apply(TopicCreated(name="orders", topic_id=UUID(int=1), assignments=[[1]], configs={}))
    view = state.topics
    state.apply(source.snapshot())
    assert list(view) == list(source.topics) != []


def test_the_layout_on_disk_is_the_documented_one() -> None:
    record = TopicDeleted(name="a", topic_id=UUID(int=1))
    assert encode_record(record) == b"\x93\x03\xa1a\xc4\x10" + UUID(int=1).bytes


def test_records_of_the_first_version_are_read_as_before() -> None:
    created = [1, "a", UUID(int=1).bytes, [[1], [1]], {"retention.ms": "5"}, False]
    added = [2, "a", UUID(int=1).bytes, 2, [[1]]]
    snapshot = [7, [created], [[None, {"log.roll.ms": "3"}]], 2000]
    state = ClusterState(1)
    for old in (created, added, snapshot):
        state.apply(decode_record(msgspec.msgpack.encode(old)))
    topic = state.topics["a"]
    assert (topic.partitions, topic.config.retention_ms, state.next_producer_id) == (2, 5, 2000)
    assert not state.nodes


def test_a_node_s_layout_on_disk_is_the_documented_one() -> None:
    record = NodeRegistered(
        node_id=1, incarnation=5, kafka=Endpoint("h", 1), cluster=Endpoint("h", 2), rack="a", version="v"
    )
    assert msgspec.msgpack.decode(encode_record(record)) == [
        8,
        1,
        5,
        ["h", 1],
        ["h", 2],
        None,
        "a",
        "v",
        {},
        False,
        None,
    ]
    assert decode_record(msgspec.msgpack.encode([8, 1, 5, ["h", 1], ["h", 2], None, "a", "v"])) == record
    moved = PartitionMoved(topic_id=UUID(int=1), partition=0, replicas=[1, 2], incarnations=[5, 6], index=9)
    assert msgspec.msgpack.decode(encode_record(moved)) == [14, UUID(int=1).bytes, 0, [1, 2], [5, 6], 9]


@pytest.mark.parametrize("data", [b"", b"\x91\x63", b"\x93\x03\xa1a", b"\xff", b"\x91\x01", b"\x90"])
def test_bytes_that_are_no_record_of_this_version_are_refused(data: bytes) -> None:
    with pytest.raises(UnknownFormat, match="start the version that wrote it"):
        decode_record(data)
