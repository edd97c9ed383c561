"""Whether a change of topics may happen: takes the state and a wish, returns records or raises KafkaError.

Nothing is changed here. The caller writes the records to the metadata log and applies them once they are
durable; a request with `validate_only` simply drops them.
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
"""What a client sends for the partition count or replication factor to leave the choice to the broker."""

PRODUCER_ID_BLOCK = 1000
"""Producer ids reserved at once: one record per thousand producers; a crash wastes the rest of a block."""


class TopicWish(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as a client asks for it.

    `assignments` maps partition to replicas and excludes the two counts.
    """

    name: str
    topic_id: UUID
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] = {}
    configs: Mapping[str, str | None] = {}


def create_topic(state: ClusterState, wish: TopicWish, rules: PlacementRules) -> list[MetadataRecord]:
    """A new topic for a client."""
    check_name(wish.name)
    if wish.name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{wish.name} is internal: the broker creates it itself"
        )
    return _create(state, wish, rules, internal=False)


def create_internal_topic(
    state: ClusterState, name: str, topic_id: UUID, partitions: int, rules: PlacementRules
) -> list[MetadataRecord]:
    """A new topic for the broker itself, with the configs that its use needs; nothing if it exists."""
    if name in state.topics:
        return []
    wish = TopicWish(name=name, topic_id=topic_id, partitions=partitions, configs=INTERNAL_CONFIGS[name])
    return _create(state, wish, rules, internal=True)


def delete_topic(state: ClusterState, name: str) -> list[MetadataRecord]:
    topic = known_topic(state, name)
    if topic.internal:
        message = f"{name} is internal: what it holds (committed offsets, for one) would be lost"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    return [TopicDeleted(name=name, topic_id=topic.topic_id)]


def create_partitions(
    state: ClusterState,
    name: str,
    count: int,
    rules: PlacementRules,
    assignments: Sequence[Sequence[int]] | None = None,
) -> list[MetadataRecord]:
    """`count` partitions in all; `assignments`, when given, place the added ones."""
    topic = known_topic(state, name)
    if topic.internal:
        message = f"{name} is internal: keys are found in it by its number of partitions, which cannot change"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    _check_growth(topic, count)
    added = count - topic.partitions
    _check_room(state, rules.limits, count, added)
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
    state: ClusterState, wish: TopicWish, rules: PlacementRules, *, internal: bool
) -> list[MetadataRecord]:
    _check_free(state, wish.name)
    partitions, factor = _counts(wish, rules)
    if len(state.topics) >= rules.limits.max_topics:
        message = f"the cluster has {len(state.topics)} topics, and limits.max_topics allows no more"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    _check_room(state, rules.limits, partitions, partitions)
    configs = parse_overrides(wish.configs)
    if resolve(configs, state.broker.topic_defaults()).memory:
        factor = _memory_factor(wish, factor)
    assignments = place(state, partitions, factor, wish.assignments or None, rules)
    return [
        TopicCreated(
            name=wish.name,
            topic_id=wish.topic_id,
            assignments=assignments,
            configs=configs,
            internal=internal,
            incarnations=incarnations_of(state, assignments),
        )
    ]


def _memory_factor(wish: TopicWish, factor: int) -> int:
    """One copy: a replica that forgets its log with every restart could elect a leader that lacks what it
    acknowledged."""
    if wish.replication_factor == DEFAULT and not wish.assignments:
        return 1
    most = max((len(replicas) for replicas in wish.assignments.values()), default=factor)
    check_memory_factor(wish.name, most)
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


def _counts(wish: TopicWish, rules: PlacementRules) -> tuple[int, int]:
    """How many partitions and replicas are really meant."""
    if wish.assignments:
        if wish.partitions != DEFAULT or wish.replication_factor != DEFAULT:
            message = f"{wish.name}: with replica assignments, both counts must be -1"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return len(wish.assignments), DEFAULT
    partitions = rules.default_partitions if wish.partitions == DEFAULT else wish.partitions
    factor = (
        rules.default_replication_factor if wish.replication_factor == DEFAULT else wish.replication_factor
    )
    if partitions < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"{wish.name}: {partitions} partitions; at least 1 is needed"
        )
    return partitions, factor


def _check_growth(topic: Topic, count: int) -> None:
    if count == topic.partitions:
        problem = f"has {count} partitions already"
    elif count < topic.partitions:
        problem = f"has {topic.partitions} partitions, and a partition cannot be taken away: {count} is fewer"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{topic.name} {problem}")


def _check_room(state: ClusterState, limits: Limits, in_topic: int, added: int) -> None:
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
