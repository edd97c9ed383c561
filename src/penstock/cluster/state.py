"""The cluster state of one node: the result of all metadata records so far.

State changes only by `apply`. It decides nothing and refuses nothing (that was done before the record was written), so
every node that applies the same records in the same order has the same state. A record that is applied twice in a row
changes nothing the second time, and a snapshot replaces the whole state: a log may be read again from a point before
its snapshot. Otherwise old records must not be applied to a later state: a topic that was deleted since would come
back.

A node never deletes data because the state does not mention it: a topic may be missing here because this node has not
read far enough. `may_discard` says when a replica's data may be deleted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from penstock.cluster.access_state import AccessState
from penstock.cluster.assignments import (
    Assignment,
    Damage,
    adopted,
    after_report,
    as_damaged,
    as_moved,
    as_started,
    with_damage,
)
from penstock.cluster.group_configs import GroupConfigs
from penstock.cluster.nodes import NodeInfo, node_from
from penstock.cluster.quota_state import QuotaState
from penstock.cluster.records import (
    NO_INDEX,
    UNKNOWN_INCARNATION,
    AclsChanged,
    Assignments,
    GroupConfigsChanged,
    LoginSecretSet,
    MetadataRecord,
    MetadataSnapshot,
    MetadataVoters,
    NodeConfigs,
    NodeConfigsChanged,
    NodeDecommissioning,
    NodeEntry,
    NodeFenced,
    NodeRegistered,
    NodeRemoved,
    NodeUnfenced,
    PartitionMoveCancelled,
    PartitionMoved,
    PartitionMoveStarted,
    PartitionsAdded,
    ProducerIdsReserved,
    QuotasChanged,
    ReplicaDamaged,
    RoleChanged,
    RoleGrantsChanged,
    TokensChanged,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
)
from penstock.cluster.topics import Topic, collision_key
from penstock.config import (
    TOPIC_CONFIGS,
    BrokerConfigs,
    ShareGroupConfig,
    ShareGroupSettings,
    TopicConfig,
    resolve,
    share_group_settings,
)
from penstock.types import GroupId, NodeId, Replica, TopicPartition

NO_TOPICS: frozenset[str] = frozenset()


class ClusterState:
    """Topics, nodes, configs, producer ids, users, access rules and quotas. `static_configs` are the configs that this
    node was started with.

    `replica_counts` and `leader_counts` have, per node, the number of partitions that it holds and of those whose
    preferred leader it is, after all moves.
    """

    def __init__(self, node_id: int, static_configs: Mapping[str, str] | None = None) -> None:
        self.node_id = node_id
        self.next_producer_id = 0
        self.partition_count = 0
        self.metadata_voters: tuple[Replica, ...] = ()
        self.replica_counts: dict[int, int] = {}
        self.leader_counts: dict[int, int] = {}
        self.access = AccessState()
        self.quotas = QuotaState()
        self._static = dict(static_configs or {})
        self._nodes: dict[int, NodeInfo] = {}
        self._topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self._collisions: dict[str, str] = {}
        self._node_configs: dict[int | None, dict[str, str]] = {}
        self._group_configs = GroupConfigs(share_group_settings(self._static))
        self._set_broker()

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics by name; always the same object, which changes with the state."""
        return self._topics

    @property
    def node_configs(self) -> Mapping[int | None, Mapping[str, str]]:
        """Configs set at run time, by node id; None is for all nodes."""
        return self._node_configs

    @property
    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        """Configs set for groups, by group id."""
        return self._group_configs.overrides

    @property
    def share_group_settings(self) -> ShareGroupSettings:
        """The defaults and limits of all groups' configs, which this node was started with."""
        return self._group_configs.settings

    def group_config(self, group_id: str) -> ShareGroupConfig:
        """The settings of a group, which need not exist."""
        return self._group_configs.resolved(group_id)

    @property
    def nodes(self) -> Mapping[int, NodeInfo]:
        """All registered nodes. Empty on a single node that never joined others."""
        return self._nodes

    def alive_nodes(self) -> tuple[int, ...]:
        return tuple(sorted(node for node, info in self._nodes.items() if info.alive))

    def usable_nodes(self) -> tuple[int, ...]:
        """Nodes that may get replicas."""
        return tuple(sorted(node for node, info in self._nodes.items() if info.usable))

    def assignment(self, group: GroupId) -> Assignment | None:
        topic = self.topic_by_id(group.topic_id)
        if topic is None or not 0 <= group.partition < topic.partitions:
            return None
        return topic.assignments[group.partition]

    def groups(self) -> Iterator[tuple[Topic, GroupId, Assignment]]:
        """Every partition, by topic and number: decisions about all partitions are made in this order."""
        for name in sorted(self._topics):
            topic = self._topics[name]
            for number, assignment in enumerate(topic.assignments):
                yield topic, GroupId(topic.topic_id, number), assignment

    def partitions_of(self, node_id: int) -> list[TopicPartition]:
        """The partitions of which the node holds a replica, or is to get one."""
        return [
            TopicPartition(topic.name, group.partition)
            for topic, group, assignment in self.groups()
            if node_id in assignment.shown
        ]

    def is_available(self, member: Replica) -> bool:
        info = self._nodes.get(member.node)
        return info is not None and info.alive and member.life_of(info.replica) is not None

    def may_discard(self, group: GroupId, replica: Replica) -> bool:
        """Whether the replica's data may be deleted: the group is known, no move is under way, and its leader has
        reported members without this replica. False for an unknown group."""
        assignment = self.assignment(group)
        if assignment is None or assignment.target is not None or assignment.config_index == NO_INDEX:
            return False
        return replica not in assignment.members

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def colliding_topic(self, name: str) -> str | None:
        """A topic whose name differs from `name` only in '.' and '_', or not at all."""
        return self._collisions.get(collision_key(name))

    def apply(self, record: MetadataRecord) -> frozenset[str]:
        """Applies one record. Returns the topics that were created, deleted or changed."""
        return _APPLY[type(record)](self, record)

    def copy(self) -> "ClusterState":
        """A state to try changes on: the second change of a request must see the result of the first."""
        copy = ClusterState(self.node_id, self._static)
        copy.next_producer_id, copy.partition_count = self.next_producer_id, self.partition_count
        copy._topics, copy._names, copy._collisions = (
            dict(self._topics),
            dict(self._names),
            dict(self._collisions),
        )
        copy._node_configs = dict(self._node_configs)
        copy._group_configs = self._group_configs.copy()
        copy.access = self.access.copy()
        copy.quotas = self.quotas.copy()
        copy._nodes, copy.metadata_voters = dict(self._nodes), self.metadata_voters
        copy.replica_counts, copy.leader_counts = dict(self.replica_counts), dict(self.leader_counts)
        copy._set_broker()
        return copy

    def has_topics_of(self, snapshot: MetadataSnapshot) -> bool:
        """Whether the snapshot has the same topics: a cheap check of a snapshot that should change nothing."""
        topics = snapshot.topics
        return len(topics) == len(self._topics) and all(topic.topic_id in self._names for topic in topics)

    def snapshot(self) -> MetadataSnapshot:
        """The state as one record: any other state of the same node becomes equal to this when it is applied."""
        return MetadataSnapshot(
            topics=[_as_record(topic) for topic in self._topics.values()],
            node_configs=[
                NodeConfigs(node_id=node_id, configs=dict(configs))
                for node_id, configs in self._node_configs.items()
            ],
            next_producer_id=self.next_producer_id,
            nodes=[_as_entry(self._nodes[node_id]) for node_id in sorted(self._nodes)],
            moved=[
                as_moved(group, assignment)
                for _, group, assignment in self.groups()
                if assignment.config_index != NO_INDEX
            ],
            moves=[
                as_started(group, assignment)
                for _, group, assignment in self.groups()
                if assignment.target is not None
            ],
            voters=[(voter.node, voter.incarnation) for voter in self.metadata_voters],
            damaged=[
                as_damaged(group, damage)
                for _, group, assignment in self.groups()
                for damage in assignment.damaged
            ],
            group_configs=self._group_configs.snapshot(),
            access=self.access.snapshot(),
            quotas=self.quotas.snapshot(),
        )

    # --- topics

    def _created(self, record: TopicCreated) -> frozenset[str]:
        if record.topic_id in self._names:
            return NO_TOPICS
        topic = Topic(
            name=record.name,
            topic_id=record.topic_id,
            assignments=self._assignments(record.assignments, record.incarnations),
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
        added = self._assignments(record.assignments, record.incarnations)
        return self._put(replace(topic, assignments=topic.assignments + added))

    def _deleted(self, record: TopicDeleted) -> frozenset[str]:
        topic = self.topic_by_id(record.topic_id)
        if topic is None:
            return NO_TOPICS
        del self._topics[topic.name], self._names[topic.topic_id], self._collisions[collision_key(topic.name)]
        self.partition_count -= topic.partitions
        self._count(topic, -1)
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

    def _group_configs_changed(self, record: GroupConfigsChanged) -> frozenset[str]:
        self._group_configs.put(record.group_id, record.configs)
        return NO_TOPICS

    def _producer_ids_reserved(self, record: ProducerIdsReserved) -> frozenset[str]:
        self.next_producer_id = max(self.next_producer_id, record.end)
        return NO_TOPICS

    # --- users, access rules and quotas

    def _user_changed(self, record: UserChanged) -> frozenset[str]:
        self.access.put_user(record.user, record.passwords)
        return NO_TOPICS

    def _acls_changed(self, record: AclsChanged) -> frozenset[str]:
        self.access.change_acls(record.added, record.removed)
        return NO_TOPICS

    def _login_secret_set(self, record: LoginSecretSet) -> frozenset[str]:
        self.access.login_secret = record.secret
        return NO_TOPICS

    def _tokens_changed(self, record: TokensChanged) -> frozenset[str]:
        self.access.change_tokens(record.added, record.removed)
        return NO_TOPICS

    def _role_changed(self, record: RoleChanged) -> frozenset[str]:
        self.access.put_role(record.name, record.permissions)
        return NO_TOPICS

    def _role_grants_changed(self, record: RoleGrantsChanged) -> frozenset[str]:
        self.access.change_grants(record.added, record.removed)
        return NO_TOPICS

    def _quotas_changed(self, record: QuotasChanged) -> frozenset[str]:
        self.quotas.put(record.entry)
        return NO_TOPICS

    # --- nodes

    def _node_registered(self, record: NodeRegistered) -> frozenset[str]:
        """Registering clears the fence. Decommissioning stays: the operator decided it."""
        before = self._nodes.get(record.node_id)
        leaving = before is not None and before.decommissioning
        self._nodes[record.node_id] = node_from(record, decommissioning=leaving)
        return self._adopt(record.node_id, record.incarnation) if before is None else NO_TOPICS

    def _adopt(self, node_id: int, incarnation: int) -> frozenset[str]:
        """Replicas of a version before incarnations belong to the node that registers first under their id."""
        changed: set[str] = set()
        for topic in list(self._topics.values()):
            assignments = tuple(adopted(each, node_id, incarnation) for each in topic.assignments)
            changed |= self._put(replace(topic, assignments=assignments))
        return frozenset(changed)

    def _node_fenced(self, record: NodeFenced) -> frozenset[str]:
        return self._change_node(record.node_id, fenced=True)

    def _node_unfenced(self, record: NodeUnfenced) -> frozenset[str]:
        return self._change_node(record.node_id, fenced=False)

    def _node_decommissioning(self, record: NodeDecommissioning) -> frozenset[str]:
        return self._change_node(record.node_id, decommissioning=record.on)

    def _change_node(self, node_id: int, **fields: bool) -> frozenset[str]:
        info = self._nodes.get(node_id)
        if info is not None:
            self._nodes[node_id] = replace(info, **fields)
        return NO_TOPICS

    def _node_removed(self, record: NodeRemoved) -> frozenset[str]:
        self._nodes.pop(record.node_id, None)
        return NO_TOPICS

    def _metadata_voters(self, record: MetadataVoters) -> frozenset[str]:
        self.metadata_voters = _as_voters(record.voters)
        return NO_TOPICS

    # --- moves

    def _move_started(self, record: PartitionMoveStarted) -> frozenset[str]:
        incarnations = tuple(record.incarnations) or self._incarnations(record.replicas)
        target = {"target": tuple(record.replicas), "target_incarnations": incarnations}
        return self._change_assignment(record.topic_id, record.partition, lambda now: replace(now, **target))

    def _move_cancelled(self, record: PartitionMoveCancelled) -> frozenset[str]:
        def back(now: Assignment) -> Assignment:
            if now.target is None:
                return now
            return replace(now, target=now.replicas, target_incarnations=now.incarnations)

        return self._change_assignment(record.topic_id, record.partition, back)

    def _moved(self, record: PartitionMoved) -> frozenset[str]:
        incarnations = tuple(record.incarnations) or self._incarnations(record.replicas)
        reported = Assignment(replicas=tuple(record.replicas), incarnations=incarnations)
        return self._change_assignment(
            record.topic_id, record.partition, lambda now: after_report(now, reported, record.index)
        )

    def _replica_damaged(self, record: ReplicaDamaged) -> frozenset[str]:
        damage = Damage(Replica(NodeId(record.node_id), record.incarnation), record.renewal)
        return self._change_assignment(
            record.topic_id, record.partition, lambda now: with_damage(now, damage)
        )

    def _change_assignment(
        self, topic_id: UUID, partition: int, change: Callable[[Assignment], Assignment]
    ) -> frozenset[str]:
        now = self.assignment(GroupId(topic_id, partition))
        topic = self.topic_by_id(topic_id)
        if now is None or topic is None or (changed := change(now)) == now:
            return NO_TOPICS
        # Not by `_put`: a move of ten thousand partitions would count each of them ten thousand times.
        assignments = list(topic.assignments)
        assignments[partition] = changed
        self._topics[topic.name] = replace(topic, assignments=tuple(assignments))
        self._count_one(now, -1)
        self._count_one(changed, +1)
        return frozenset({topic.name})

    # --- snapshot and helpers

    def _restored(self, record: MetadataSnapshot) -> frozenset[str]:
        before = dict(self._topics)
        # In place: other parts of the node hold `topics` itself, and would go on to see the state before the snapshot.
        self._topics.clear()
        self._names, self._collisions = {}, {}
        self.partition_count, self.replica_counts, self.leader_counts = 0, {}, {}
        self._nodes = {
            entry.registered.node_id: node_from(
                entry.registered, fenced=entry.fenced, decommissioning=entry.decommissioning
            )
            for entry in record.nodes
        }
        self.metadata_voters = _as_voters(record.voters)
        self._node_configs = {entry.node_id: dict(entry.configs) for entry in record.node_configs}
        self._group_configs = GroupConfigs(self.share_group_settings, record.group_configs)
        self.access.restore(record.access)
        self.quotas.restore(record.quotas)
        self._set_broker()
        for topic in record.topics:
            self._created(topic)
        for moved in record.moved:
            self._moved(moved)
        for move in record.moves:
            self._move_started(move)
        for damaged in record.damaged:
            self._replica_damaged(damaged)
        self.next_producer_id = record.next_producer_id
        names = before.keys() | self._topics.keys()
        return frozenset(name for name in names if before.get(name) != self._topics.get(name))

    def _put(self, topic: Topic) -> frozenset[str]:
        before = self._topics.get(topic.name)
        if topic == before:
            return NO_TOPICS
        self.partition_count += topic.partitions - (before.partitions if before else 0)
        self._topics[topic.name] = topic
        if before is None or before.assignments != topic.assignments:
            if before is not None:
                self._count(before, -1)
            self._count(topic, +1)
        return frozenset({topic.name})

    def _count(self, topic: Topic, change: int) -> None:
        for assignment in topic.assignments:
            self._count_one(assignment, change)

    def _count_one(self, assignment: Assignment, change: int) -> None:
        replicas = assignment.future
        self.leader_counts[replicas[0]] = self.leader_counts.get(replicas[0], 0) + change
        for node_id in replicas:
            self.replica_counts[node_id] = self.replica_counts.get(node_id, 0) + change

    def _assignments(self, assignments: Assignments, incarnations: Assignments) -> tuple[Assignment, ...]:
        return tuple(
            Assignment(
                replicas=tuple(replicas),
                incarnations=tuple(incarnations[number]) if incarnations else self._incarnations(replicas),
            )
            for number, replicas in enumerate(assignments)
        )

    def _incarnations(self, nodes: Sequence[int]) -> tuple[int, ...]:
        infos = [self._nodes.get(node_id) for node_id in nodes]
        return tuple(UNKNOWN_INCARNATION if info is None else info.incarnation for info in infos)

    def _set_broker(self) -> None:
        self.broker = BrokerConfigs(
            static=self._static,
            all_nodes=self._node_configs.get(None, {}),
            this_node=self._node_configs.get(self.node_id, {}),
        )
        self._topic_defaults = self.broker.topic_defaults()

    def _resolve(self, configs: Mapping[str, str]) -> TopicConfig:
        """A newer node may have committed a config that this version does not know: the rest applies all the same."""
        known = {name: value for name, value in configs.items() if name in TOPIC_CONFIGS}
        return resolve(known, self._topic_defaults)


replace = msgspec.structs.replace

# One entry per record type, so that a record without a handler cannot be overlooked.
_APPLY: dict[type, Callable[[ClusterState, Any], frozenset[str]]] = {
    TopicCreated: ClusterState._created,
    PartitionsAdded: ClusterState._partitions_added,
    TopicDeleted: ClusterState._deleted,
    TopicConfigsChanged: ClusterState._configs_changed,
    NodeConfigsChanged: ClusterState._node_configs_changed,
    ProducerIdsReserved: ClusterState._producer_ids_reserved,
    MetadataSnapshot: ClusterState._restored,
    NodeRegistered: ClusterState._node_registered,
    NodeFenced: ClusterState._node_fenced,
    NodeUnfenced: ClusterState._node_unfenced,
    NodeDecommissioning: ClusterState._node_decommissioning,
    NodeRemoved: ClusterState._node_removed,
    PartitionMoveStarted: ClusterState._move_started,
    PartitionMoved: ClusterState._moved,
    PartitionMoveCancelled: ClusterState._move_cancelled,
    MetadataVoters: ClusterState._metadata_voters,
    ReplicaDamaged: ClusterState._replica_damaged,
    GroupConfigsChanged: ClusterState._group_configs_changed,
    UserChanged: ClusterState._user_changed,
    AclsChanged: ClusterState._acls_changed,
    LoginSecretSet: ClusterState._login_secret_set,
    TokensChanged: ClusterState._tokens_changed,
    RoleChanged: ClusterState._role_changed,
    RoleGrantsChanged: ClusterState._role_grants_changed,
    QuotasChanged: ClusterState._quotas_changed,
}


def _as_voters(voters: Sequence[tuple[int, int]]) -> tuple[Replica, ...]:
    return tuple(Replica(NodeId(node_id), incarnation) for node_id, incarnation in voters)


def _as_entry(info: NodeInfo) -> NodeEntry:
    return NodeEntry(registered=info.as_record(), fenced=info.fenced, decommissioning=info.decommissioning)


def _as_record(topic: Topic) -> TopicCreated:
    return TopicCreated(
        name=topic.name,
        topic_id=topic.topic_id,
        assignments=[list(assignment.replicas) for assignment in topic.assignments],
        configs=dict(topic.configs),
        internal=topic.internal,
        incarnations=[list(assignment.incarnations) for assignment in topic.assignments],
    )
