"""Decisions on topics: functions take the state and a request, and return records or raise KafkaError.

They change nothing. The caller writes the records to the metadata log and applies them once they are durable; for a
request with `validate_only` it drops them.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from penstock.cluster.placement import PlacementRules, incarnations_of, place
from penstock.cluster.records import (
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)
from penstock.cluster.state import ClusterState
from penstock.cluster.topics import INTERNAL_CONFIGS, INTERNAL_TOPICS, Topic, check_name
from penstock.config import Limits, parse_overrides, resolve
from penstock.errors import ErrorCode, KafkaError

DEFAULT = -1
"""A client sends it as partition count or replication factor to leave the choice to the broker."""

PRODUCER_ID_BLOCK = 1000
"""Producer ids reserved at once: one record per thousand producers; a crash wastes the rest of a block."""


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that a client wants to create.

    `assignments` maps partition to replicas and excludes the two counts.
    """

    name: str
    topic_id: UUID
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] = {}
    configs: Mapping[str, str | None] = {}


def create_topic(state: ClusterState, new_topic: NewTopic, rules: PlacementRules) -> list[MetadataRecord]:
    """A new topic for a client."""
    check_name(new_topic.name)
    if new_topic.name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{new_topic.name} is internal: the broker creates it itself"
        )
    return _create(state, new_topic, rules, internal=False)


def create_internal_topic(
    state: ClusterState, name: str, topic_id: UUID, partitions: int, rules: PlacementRules
) -> list[MetadataRecord]:
    """A new topic for the broker itself, with the configs that its use needs; nothing if it exists."""
    if name in state.topics:
        return []
    new_topic = NewTopic(name=name, topic_id=topic_id, partitions=partitions, configs=INTERNAL_CONFIGS[name])
    return _create(state, new_topic, rules, internal=True)


def delete_topic(state: ClusterState, name: str) -> list[MetadataRecord]:
    topic = known_topic(state, name)
    if topic.internal:
        message = f"{name} is internal: its content (such as committed offsets) would be lost"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    return [TopicDeleted(name=name, topic_id=topic.topic_id)]


def create_partitions(
    state: ClusterState,
    name: str,
    count: int,
    rules: PlacementRules,
    assignments: Sequence[Sequence[int]] | None = None,
) -> list[MetadataRecord]:
    """`count` partitions in total; `assignments`, if given, are the replicas of the added ones."""
    topic = known_topic(state, name)
    if topic.internal:
        message = (
            f"{name} is internal: the broker finds keys by its number of partitions, which cannot change"
        )
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    _check_growth(topic, count)
    added = count - topic.partitions
    _check_limits(state, rules.limits, count, added)
    manual = None if assignments is None else dict(enumerate(assignments))
    if manual is not None and len(manual) != added:
        message = f"{name}: {added} partitions would be added, but {len(manual)} are assigned"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    present = [assignment.future for assignment in topic.assignments]
    placed = place(state, added, topic.replication_factor, manual, rules, present=present)
    return [
        PartitionsAdded(
            name=name,
            topic_id=topic.topic_id,
            first=topic.partitions,
            assignments=placed,
            incarnations=incarnations_of(state, placed),
        )
    ]


def reserve_producer_ids(state: ClusterState, node_id: int) -> list[MetadataRecord]:
    """A block of producer ids for one node."""
    first = state.next_producer_id
    return [ProducerIdsReserved(node_id=node_id, first=first, end=first + PRODUCER_ID_BLOCK)]


def known_topic(state: ClusterState, name: str) -> Topic:
    topic = state.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topic


def _create(
    state: ClusterState, new_topic: NewTopic, rules: PlacementRules, *, internal: bool
) -> list[MetadataRecord]:
    _check_free(state, new_topic.name)
    partitions, factor = _counts(new_topic, rules)
    if len(state.topics) >= rules.limits.max_topics:
        message = f"the cluster has {len(state.topics)} topics, and limits.max_topics allows no more"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    _check_limits(state, rules.limits, partitions, partitions)
    configs = parse_overrides(new_topic.configs)
    if resolve(configs, state.broker.topic_defaults()).memory:
        factor = _memory_factor(new_topic, factor)
    assignments = place(state, partitions, factor, new_topic.assignments or None, rules)
    return [
        TopicCreated(
            name=new_topic.name,
            topic_id=new_topic.topic_id,
            assignments=assignments,
            configs=configs,
            internal=internal,
            incarnations=incarnations_of(state, assignments),
        )
    ]


def _memory_factor(new_topic: NewTopic, factor: int) -> int:
    """One copy: a replica that loses its log with every restart could elect a leader without acknowledged records."""
    if new_topic.replication_factor == DEFAULT and not new_topic.assignments:
        return 1
    most = max((len(replicas) for replicas in new_topic.assignments.values()), default=factor)
    check_memory_factor(new_topic.name, most)
    return factor


def check_memory_factor(topic: str, factor: int) -> None:
    if factor > 1:
        message = f"{topic}: replication factor {factor}; a topic with penstock.storage=memory has one copy"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _check_free(state: ClusterState, name: str) -> None:
    if name in state.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    other = state.colliding_topic(name)
    if other is not None:
        message = f"topic {name!r} collides with {other!r}: '.' and '_' count as the same character"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _counts(new_topic: NewTopic, rules: PlacementRules) -> tuple[int, int]:
    """The number of partitions and of replicas, with defaults."""
    if new_topic.assignments:
        if new_topic.partitions != DEFAULT or new_topic.replication_factor != DEFAULT:
            message = f"{new_topic.name}: with replica assignments, both counts must be -1"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return len(new_topic.assignments), DEFAULT
    partitions = rules.default_partitions if new_topic.partitions == DEFAULT else new_topic.partitions
    factor = (
        rules.default_replication_factor
        if new_topic.replication_factor == DEFAULT
        else new_topic.replication_factor
    )
    if partitions < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"{new_topic.name}: {partitions} partitions; at least 1 is needed"
        )
    return partitions, factor


def _check_growth(topic: Topic, count: int) -> None:
    if count == topic.partitions:
        problem = f"has {count} partitions already"
    elif count < topic.partitions:
        problem = f"has {topic.partitions} partitions, and partitions cannot be removed: {count} is fewer"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{topic.name} {problem}")


def _check_limits(state: ClusterState, limits: Limits, in_topic: int, added: int) -> None:
    if in_topic > limits.max_partitions_per_topic:
        message = (
            f"{in_topic} partitions; limits.max_partitions_per_topic is {limits.max_partitions_per_topic}"
        )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    if state.partition_count + added > limits.max_partitions:
        message = (
            f"the cluster has {state.partition_count} partitions and would get {added} more; "
            f"limits.max_partitions is {limits.max_partitions}"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
