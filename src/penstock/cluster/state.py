"""The cluster as one node sees it: the sum of all metadata records so far.

`apply` is the only way in. It decides nothing and refuses nothing (that was done before the record was
written), so every node that applies the same records in the same order has the same state. A record that is
applied twice in order, as it happens when a log is read again from a point before a snapshot, changes nothing
the second time.
"""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from penstock.cluster.records import (
    Assignments,
    MetadataRecord,
    NodeConfigs,
    NodeConfigsChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    Snapshot,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
)
from penstock.cluster.topics import Assignment, Topic, collision_key
from penstock.config import BrokerConfigs, TopicConfig, resolve

NO_TOPICS: frozenset[str] = frozenset()


class ClusterState:
    """Topics, configs and producer ids. `static_configs` is what this node was started with."""

    def __init__(self, node_id: int, static_configs: Mapping[str, str] | None = None) -> None:
        self.node_id = node_id
        self.next_producer_id = 0
        self.partition_count = 0
        self._static = dict(static_configs or {})
        self._topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self._collisions: dict[str, str] = {}
        self._node_configs: dict[int | None, dict[str, str]] = {}
        self._set_broker()

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._topics

    @property
    def node_configs(self) -> Mapping[int | None, Mapping[str, str]]:
        """What was set at run time, by node id; None is for all nodes."""
        return self._node_configs

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def colliding_topic(self, name: str) -> str | None:
        """A topic whose name differs from `name` only in '.' and '_', or not at all."""
        return self._collisions.get(collision_key(name))

    def apply(self, record: MetadataRecord) -> frozenset[str]:
        """Takes in one record.

        Returns the topics that came, went or changed, for whoever runs their partitions.
        """
        return _APPLY[type(record)](self, record)

    def copy(self) -> "ClusterState":
        """A state to try things on: what a request's first wish decides, its second one must see."""
        twin = ClusterState(self.node_id, self._static)
        twin.next_producer_id, twin.partition_count = self.next_producer_id, self.partition_count
        twin._topics, twin._names, twin._collisions = (
            dict(self._topics),
            dict(self._names),
            dict(self._collisions),
        )
        twin._node_configs = dict(self._node_configs)
        twin._set_broker()
        return twin

    def snapshot(self) -> Snapshot:
        """The state as one record: applied to any other state of the same node, it makes that one equal to this."""
        return Snapshot(
            topics=[_as_record(topic) for topic in self._topics.values()],
            node_configs=[
                NodeConfigs(node_id=node_id, configs=dict(configs))
                for node_id, configs in self._node_configs.items()
            ],
            next_producer_id=self.next_producer_id,
        )

    def _created(self, record: TopicCreated) -> frozenset[str]:
        if record.topic_id in self._names:
            return NO_TOPICS
        topic = Topic(
            name=record.name,
            topic_id=record.topic_id,
            assignments=_assignments(record.assignments),
            configs=dict(record.configs),
            config=self._resolve(record.configs),
            internal=record.internal,
        )
        self._names[topic.topic_id] = topic.name
        self._collisions[collision_key(topic.name)] = topic.name
        return self._put(topic)

    def _partitions_added(self, record: PartitionsAdded) -> frozenset[str]:
        topic = self.topic_by_id(record.topic_id)
        if topic is None or topic.partitions != record.first:
            return NO_TOPICS
        return self._put(replace(topic, assignments=topic.assignments + _assignments(record.assignments)))

    def _deleted(self, record: TopicDeleted) -> frozenset[str]:
        topic = self.topic_by_id(record.topic_id)
        if topic is None:
            return NO_TOPICS
        del self._topics[topic.name], self._names[topic.topic_id], self._collisions[collision_key(topic.name)]
        self.partition_count -= topic.partitions
        return frozenset({topic.name})

    def _configs_changed(self, record: TopicConfigsChanged) -> frozenset[str]:
        topic = self.topic_by_id(record.topic_id)
        if topic is None:
            return NO_TOPICS
        return self._put(replace(topic, configs=dict(record.configs), config=self._resolve(record.configs)))

    def _node_configs_changed(self, record: NodeConfigsChanged) -> frozenset[str]:
        self._node_configs[record.node_id] = dict(record.configs)
        if not record.configs:
            del self._node_configs[record.node_id]
        self._set_broker()
        changed: set[str] = set()
        for topic in list(self._topics.values()):
            changed |= self._put(replace(topic, config=self._resolve(topic.configs)))
        return frozenset(changed)

    def _producer_ids_reserved(self, record: ProducerIdsReserved) -> frozenset[str]:
        self.next_producer_id = max(self.next_producer_id, record.end)
        return NO_TOPICS

    def _restored(self, record: Snapshot) -> frozenset[str]:
        before = dict(self._topics)
        self._topics, self._names, self._collisions = {}, {}, {}
        self.partition_count = 0
        self._node_configs = {entry.node_id: dict(entry.configs) for entry in record.node_configs}
        self._set_broker()
        for topic in record.topics:
            self._created(topic)
        self.next_producer_id = record.next_producer_id
        names = before.keys() | self._topics.keys()
        return frozenset(name for name in names if before.get(name) != self._topics.get(name))

    def _put(self, topic: Topic) -> frozenset[str]:
        before = self._topics.get(topic.name)
        if topic == before:
            return NO_TOPICS
        self.partition_count += topic.partitions - (before.partitions if before else 0)
        self._topics[topic.name] = topic
        return frozenset({topic.name})

    def _set_broker(self) -> None:
        self.broker = BrokerConfigs(
            static=self._static,
            all_nodes=self._node_configs.get(None, {}),
            this_node=self._node_configs.get(self.node_id, {}),
        )
        self._topic_defaults = self.broker.topic_defaults()

    def _resolve(self, configs: Mapping[str, str]) -> TopicConfig:
        return resolve(configs, self._topic_defaults)


replace = msgspec.structs.replace

# One entry per record, so that a record without a handler cannot be overlooked.
_APPLY: dict[type, Callable[[ClusterState, Any], frozenset[str]]] = {
    TopicCreated: ClusterState._created,
    PartitionsAdded: ClusterState._partitions_added,
    TopicDeleted: ClusterState._deleted,
    TopicConfigsChanged: ClusterState._configs_changed,
    NodeConfigsChanged: ClusterState._node_configs_changed,
    ProducerIdsReserved: ClusterState._producer_ids_reserved,
    Snapshot: ClusterState._restored,
}


def _assignments(assignments: Assignments) -> tuple[Assignment, ...]:
    return tuple(Assignment(replicas=tuple(replicas)) for replicas in assignments)


def _as_record(topic: Topic) -> TopicCreated:
    return TopicCreated(
        name=topic.name,
        topic_id=topic.topic_id,
        assignments=[list(assignment.replicas) for assignment in topic.assignments],
        configs=dict(topic.configs),
        internal=topic.internal,
    )
