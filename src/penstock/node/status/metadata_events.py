"""Changes of the cluster's metadata as events. Only the controller reports them, when they are committed: all other
nodes apply the same records, and every node applies them again when it starts."""

from collections.abc import Sequence
from uuid import UUID

from penstock.cluster import (
    ClusterState,
    GroupConfigsChanged,
    MetadataRecord,
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
    ReplicaDamaged,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
)
from penstock.types import EventSink


def tell_changes(events: EventSink, state: ClusterState, records: Sequence[MetadataRecord]) -> None:
    """`state` is the one after the change."""
    for record in records:
        match record:
            case TopicCreated() | PartitionsAdded() | TopicConfigsChanged() | TopicDeleted():
                _tell_topic(events, record)
            case PartitionMoveStarted() | PartitionMoved() | PartitionMoveCancelled() | ReplicaDamaged():
                _tell_replicas(events, record, _name(state, record.topic_id))
            case GroupConfigsChanged(group_id=group, configs=configs):
                events.tell("group.altered", group=group, configs=configs)
            case _:
                _tell_node(events, record)


def _tell_topic(
    events: EventSink, record: TopicCreated | PartitionsAdded | TopicConfigsChanged | TopicDeleted
) -> None:
    match record:
        case TopicCreated(name=name, assignments=placed, configs=configs):
            events.tell(
                "topic.created",
                topic=name,
                partitions=len(placed),
                replication_factor=len(placed[0]),
                configs=configs or None,
            )
        case PartitionsAdded(name=name, first=first, assignments=placed):
            events.tell("topic.grown", topic=name, partitions=first + len(placed))
        case TopicConfigsChanged(name=name, configs=configs):
            events.tell("topic.altered", topic=name, configs=configs)
        case TopicDeleted(name=name):
            events.tell("topic.deleted", topic=name)


def _tell_replicas(
    events: EventSink,
    record: PartitionMoveStarted | PartitionMoved | PartitionMoveCancelled | ReplicaDamaged,
    topic: str,
) -> None:
    place = {"topic": topic, "partition": record.partition}
    match record:
        case PartitionMoveStarted(replicas=replicas):
            events.tell("replica.move_started", **place, replicas=replicas)
        case PartitionMoved(replicas=replicas):
            events.tell("replica.moved", **place, replicas=replicas)
        case PartitionMoveCancelled():
            events.tell("replica.move_cancelled", **place)
        case ReplicaDamaged(node_id=node):
            events.tell("replica.damaged", **place, node=node)


def _tell_node(events: EventSink, record: MetadataRecord) -> None:
    """Records that are no events: reserved producer ids, snapshots and voters, which mean nothing to users."""
    match record:
        case NodeRegistered(node_id=node, kafka=kafka, rack=rack, version=version):
            events.tell("node.joined", node=node, address=str(kafka), rack=rack, version=version)
        case NodeFenced(node_id=node):
            events.tell("node.fenced", node=node)
        case NodeUnfenced(node_id=node):
            events.tell("node.unfenced", node=node)
        case NodeDecommissioning(node_id=node, on=on):
            events.tell("node.leaving" if on else "node.staying", node=node)
        case NodeRemoved(node_id=node):
            events.tell("node.left", node=node)
        case NodeConfigsChanged(node_id=some, configs=configs):
            events.tell("node.altered", node=some, configs=configs)


def _name(state: ClusterState, topic_id: UUID) -> str:
    topic = state.topic_by_id(topic_id)
    return topic.name if topic is not None else str(topic_id)
