"""Topics are created, grown and deleted by Kafka's rules."""

from uuid import UUID

import pytest

from penstock.cluster import (
    OFFSETS_TOPIC,
    ClusterState,
    NewTopic,
    PlacementRules,
    ProducerIdsReserved,
    TopicCreated,
    decisions,
)
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError

ONE_NODE = PlacementRules(nodes=(1,))
THREE_NODES = PlacementRules(nodes=(3, 1, 2), default_partitions=2, default_replication_factor=2)


def uuid(number: int) -> UUID:
    return UUID(int=number)


def state_with(*names: str, rules: PlacementRules = ONE_NODE, **new_topic: object) -> ClusterState:
    state = ClusterState(node_id=1)
    for number, name in enumerate(names, 1):
        create(state, name, rules=rules, topic_id=uuid(number), **new_topic)
    return state


def create(state: ClusterState, name: str, *, rules: PlacementRules = ONE_NODE, **new_topic: object) -> None:
    fields = {"topic_id": uuid(99), **new_topic}
    for record in decisions.create_topic(state, NewTopic(name=name, **fields), rules):  # type: ignore[arg-type]
        state.apply(record)


def refused(code: ErrorCode, part: str = "") -> "pytest.RaisesExc[KafkaError]":
    return pytest.raises(KafkaError, check=lambda error: error.code is code and part in error.message)


def test_a_created_topic_is_found_by_name_and_by_id() -> None:
    state = state_with("orders", partitions=3, configs={"retention.ms": "5"})
    topic = state.topics["orders"]
    assert state.topic_by_id(uuid(1)) is topic
    assert state.topic_by_id(uuid(2)) is None
    assert (topic.partitions, topic.replication_factor, topic.internal) == (3, 1, False)
    assert (topic.configs, topic.config.retention_ms) == ({"retention.ms": "5"}, 5)
    assert topic.assignments[0].replicas == topic.assignments[0].isr == (1,)
    assert topic.assignments[0].leader == 1


def test_omitted_counts_are_the_brokers_defaults() -> None:
    topic = state_with("orders", rules=THREE_NODES).topics["orders"]
    assert (topic.partitions, topic.replication_factor) == (2, 2)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250, "a\0"])
def test_names_that_kafka_refuses_are_refused(name: str) -> None:
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION):
        create(ClusterState(node_id=1), name)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_names_that_kafka_accepts_are_accepted(name: str) -> None:
    assert name in state_with(name).topics


def test_a_name_is_used_once() -> None:
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        create(state_with("orders"), "orders")


@pytest.mark.parametrize(("old", "new"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_names_that_differ_only_in_dots_and_underscores_collide(old: str, new: str) -> None:
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"collides with {old!r}"):
        create(state_with(old), new)


def test_a_deleted_topic_s_name_is_free_again_and_so_are_its_neighbours() -> None:
    state = state_with("a.b")
    for record in decisions.delete_topic(state, "a.b"):
        assert state.apply(record) == {"a.b"}
    assert not state.topics
    assert state.topic_by_id(uuid(1)) is None
    create(state, "a_b")


def test_deleting_a_missing_topic_is_refused() -> None:
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        decisions.delete_topic(ClusterState(node_id=1), "orders")


@pytest.mark.parametrize("factor", [0, -2, 2])
def test_a_too_high_replication_factor_is_refused_with_the_number_of_nodes(factor: int) -> None:
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR, "the cluster has 1 node"):
        create(ClusterState(node_id=1), "orders", replication_factor=factor)


@pytest.mark.parametrize("count", [0, -2])
def test_a_topic_needs_a_partition(count: int) -> None:
    with refused(ErrorCode.INVALID_PARTITIONS):
        create(ClusterState(node_id=1), "orders", partitions=count)


def test_partitions_of_a_topic_are_spread_over_the_nodes() -> None:
    topic = state_with("orders", rules=THREE_NODES, partitions=3, replication_factor=2).topics["orders"]
    assert [assignment.replicas for assignment in topic.assignments] == [(1, 2), (3, 1), (2, 3)]


def test_a_manual_assignment_is_kept() -> None:
    topic = state_with("orders", rules=THREE_NODES, assignments={1: [2, 3], 0: [3, 1]}).topics["orders"]
    assert [assignment.replicas for assignment in topic.assignments] == [(3, 1), (2, 3)]


@pytest.mark.parametrize(
    ("assignments", "part"),
    [
        ({1: [1]}, "numbered from 0"),
        ({0: []}, "no replicas"),
        ({0: [1, 1]}, "twice"),
        ({0: [1, 2], 1: [1]}, "has 1 replicas"),
        ({0: [4]}, "names nodes [4]"),
    ],
)
def test_an_invalid_manual_assignment_is_refused(assignments: dict[int, list[int]], part: str) -> None:
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, part):
        create(ClusterState(node_id=1), "orders", rules=THREE_NODES, assignments=assignments)


def test_counts_and_a_manual_assignment_exclude_each_other() -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        create(ClusterState(node_id=1), "orders", assignments={0: [1]}, partitions=1)


def test_configs_are_checked_before_anything_is_recorded() -> None:
    with refused(ErrorCode.INVALID_CONFIG, "retention.ms"):
        create(ClusterState(node_id=1), "orders", configs={"retention.ms": "soon"})


def test_partitions_can_be_added() -> None:
    state = state_with("orders", partitions=2)
    (record,) = decisions.create_partitions(state, "orders", 5, ONE_NODE)
    assert state.apply(record) == {"orders"}
    assert (state.topics["orders"].partitions, state.partition_count) == (5, 5)


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_partitions_are_never_removed(count: int) -> None:
    with refused(ErrorCode.INVALID_PARTITIONS):
        decisions.create_partitions(state_with("orders", partitions=2), "orders", count, ONE_NODE)


def test_added_partitions_can_be_assigned_by_hand() -> None:
    state = state_with("orders", rules=THREE_NODES, partitions=1, replication_factor=2)
    (record,) = decisions.create_partitions(state, "orders", 2, THREE_NODES, [[3, 2]])
    state.apply(record)
    assert state.topics["orders"].assignments[1].replicas == (3, 2)
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 partitions would be added, but 1"):
        decisions.create_partitions(state, "orders", 4, THREE_NODES, [[1, 2]])


def test_internal_topics_cannot_be_changed_by_clients() -> None:
    state = ClusterState(node_id=1)
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "internal"):
        create(state, OFFSETS_TOPIC)
    for record in decisions.create_internal_topic(state, OFFSETS_TOPIC, uuid(1), 50, ONE_NODE):
        state.apply(record)
    topic = state.topics[OFFSETS_TOPIC]
    assert (topic.internal, topic.partitions, topic.config.cleanup_compact) == (True, 50, True)
    assert decisions.create_internal_topic(state, OFFSETS_TOPIC, uuid(2), 50, ONE_NODE) == []
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "internal"):
        decisions.delete_topic(state, OFFSETS_TOPIC)
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "internal"):
        decisions.create_partitions(state, OFFSETS_TOPIC, 51, ONE_NODE)


def test_exceeded_limits_on_topics_and_partitions_are_named() -> None:
    limits = Limits(max_topics=2, max_partitions_per_topic=3, max_partitions=5)
    rules = PlacementRules(nodes=(1,), limits=limits)
    state = ClusterState(node_id=1)
    with refused(ErrorCode.INVALID_PARTITIONS, "limits.max_partitions_per_topic is 3"):
        create(state, "wide", rules=rules, partitions=4)
    create(state, "a", rules=rules, partitions=3, topic_id=uuid(1))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_partitions is 5"):
        create(state, "b", rules=rules, partitions=3)
    create(state, "b", rules=rules, partitions=1, topic_id=uuid(2))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_topics"):
        create(state, "c", rules=rules)
    with refused(ErrorCode.INVALID_PARTITIONS, "limits.max_partitions_per_topic"):
        decisions.create_partitions(state, "b", 4, rules)
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_partitions is 5"):
        decisions.create_partitions(state, "b", 3, rules)


def test_producer_ids_are_reserved_in_blocks_that_never_overlap() -> None:
    state = ClusterState(node_id=1)
    blocks = []
    for node_id in (1, 2, 1):
        (record,) = decisions.reserve_producer_ids(state, node_id)
        assert isinstance(record, ProducerIdsReserved)
        state.apply(record)
        blocks.append(range(record.first, record.end))
    assert len({number for block in blocks for number in block}) == 3000


def test_decisions_do_not_change_the_state() -> None:
    state = state_with("orders")
    before = state.snapshot()
    decisions.create_topic(state, NewTopic(name="new", topic_id=uuid(5)), ONE_NODE)
    decisions.delete_topic(state, "orders")
    decisions.create_partitions(state, "orders", 9, ONE_NODE)
    decisions.reserve_producer_ids(state, 1)
    assert state.snapshot() == before


def test_changes_of_a_copy_do_not_change_the_state() -> None:
    state = state_with("orders", rules=THREE_NODES)
    before, twin = state.snapshot(), state.copy()
    assert twin.snapshot() == before
    assert twin.topics == state.topics
    create(twin, "a.b")
    twin.apply(decisions.delete_topic(twin, "orders")[0])
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "collides"):
        create(twin, "a_b", topic_id=uuid(98))
    assert state.snapshot() == before
    assert (state.partition_count, twin.partition_count) == (2, 1)
    create(state, "a_b")


def test_a_record_applied_again_changes_nothing() -> None:
    state = state_with("orders")
    created = TopicCreated(name="orders", topic_id=uuid(1), assignments=[[1], [1]], configs={})
    (grown,) = decisions.create_partitions(state, "orders", 2, ONE_NODE)
    state.apply(grown)
    before = state.snapshot()
    assert state.apply(created) == state.apply(grown) == frozenset()
    assert state.snapshot() == before


def test_a_topic_in_memory_has_one_copy() -> None:
    state = ClusterState(1)
    configs = {"penstock.storage": "memory"}
    new_topic = NewTopic(name="fast", topic_id=uuid(1), configs=configs)
    [record] = decisions.create_topic(state, new_topic, THREE_NODES)
    assert isinstance(record, TopicCreated)
    assert [len(replicas) for replicas in record.assignments] == [1, 1]
    for wrong in (
        NewTopic(name="fast", topic_id=uuid(1), configs=configs, replication_factor=3),
        NewTopic(name="fast", topic_id=uuid(1), configs=configs, assignments={0: [1, 2]}),
    ):
        with pytest.raises(KafkaError, match="memory has one copy"):
            decisions.create_topic(state, wrong, THREE_NODES)


def test_a_reference_to_the_topics_shows_those_of_a_snapshot() -> None:
    """Lookups keep such a reference, and a node that starts reads a snapshot."""
    empty = ClusterState(node_id=1)
    topics = empty.topics
    empty.apply(state_with("orders").snapshot())
    assert list(topics) == ["orders"]
