"""Topics, partitions, groups and the cluster, looked up on behalf of a caller.

Every interface (Kafka, HTTP, WebSocket, other nodes on behalf of a client) finds resources through this object and
through nothing else. So one object, `node.access`, decides what a caller may do, and the audit log hears of
every refusal.

When it says no, a request that names a resource gets the Kafka error for that resource type, before anything tells
whether the resource exists; a listing leaves the resource out.
"""

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from penstock.cluster import ClusterState, Topic
from penstock.config import ConfigEntry, ShareGroupConfig, describe_broker, describe_group, describe_topic
from penstock.errors import ErrorCode, KafkaError
from penstock.node.access import Access
from penstock.node.calls.methods import CHECKED, Needs
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.status.audit import Audit
from penstock.types import BROKER_PRINCIPAL, CLUSTER_NAME, NO_EVENTS, Caller, Operation, ResourceType

ANY_EPOCH = -1
_CHANGES = frozenset(
    {
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
    }
)

_REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_OPERATIONS = {
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
}
"""The operations that each resource type has."""


NO_ID = UUID(int=0)


DATA_OPERATIONS = (Operation.READ, Operation.WRITE)


class Resources:
    """Finds resources for a caller. The caller's operation decides whether it may."""

    def __init__(
        self,
        state: ClusterState,
        partitions: PartitionTable,
        access: Access,
        audit: Audit | None = None,
        protected: Collection[str] = (),
    ) -> None:
        """`protected` topics are the broker's own logs: who changes them must be allowed to change the cluster."""
        self._audit = audit or Audit(NO_EVENTS, lambda: 0.0)
        self._state = state
        self._access = access
        self._is_open = not access.is_required
        self.own_logs = frozenset(protected)
        self._topics = state.topics  # one mapping for the life of the state: `apply` changes it in place
        self._partitions = partitions

    def _allows(self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """The only decision on what a caller may do with a resource."""
        if self._is_open:
            return True
        if name in self.own_logs and resource_type is ResourceType.TOPIC and operation in _CHANGES:
            operation, resource_type, name = Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME
        return self._access.allows(caller, operation, resource_type, name)

    def check(self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raises the authorization error of the resource type unless the caller may do this."""
        if not self._allows(caller, operation, resource_type, name):
            raise self._refusal(caller, operation, resource_type, name)
        if self._audit.samples and operation in DATA_OPERATIONS:
            self._audit.used(caller, operation, resource_type, name)

    def _refusal(
        self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str
    ) -> KafkaError:
        self._audit.refused(caller, operation, resource_type, name)
        kind = resource_type.name.lower()
        message = f"{caller.principal} has no {operation.name} permission on {kind} {name!r}"
        return KafkaError(_REFUSALS[resource_type], message)

    def check_call(self, caller: Caller, needs: Needs, request: object) -> None:
        """Raises unless the caller may have a node do this on its behalf. Every call between nodes is checked, also if
        the node that asks has checked already: one that has not heard of a change yet does not matter then."""
        if needs is CHECKED or caller.principal == BROKER_PRINCIPAL:
            return
        name = needs.name(request)
        if isinstance(name, UUID):
            self.topic_by_id(caller, name, needs.operation)
        elif needs.operation is Operation.CREATE and needs.resource_type is ResourceType.TOPIC:
            self.check_create_topic(caller, name)
        else:
            self.check(caller, needs.operation, needs.resource_type, name)

    def allowed_operations(self, caller: Caller, resource_type: ResourceType, name: str) -> int:
        """A bit field with one bit per operation that the caller may do, as Kafka's responses carry it."""
        return sum(
            1 << operation
            for operation in _OPERATIONS[resource_type]
            if self._allows(caller, operation, resource_type, name)
        )

    def visible(
        self,
        caller: Caller,
        resource_type: ResourceType,
        names: Iterable[str],
        operation: Operation = Operation.DESCRIBE,
    ) -> set[str]:
        """Those of the names that the caller may see. They need not exist."""
        return {name for name in names if self._allows(caller, operation, resource_type, name)}

    def allows_any(self, caller: Caller, resource_type: ResourceType, operation: Operation) -> bool:
        """Whether the caller may do this with any resource of the type that could exist."""
        return self._access.allows_any(caller, operation, resource_type)

    # --- topics

    def topic(self, caller: Caller, name: str, operation: Operation) -> Topic:
        """The topic of this name. KafkaError if the caller may not, or if there is none."""
        if not self._allows(caller, operation, ResourceType.TOPIC, name):
            raise self._refusal(caller, operation, ResourceType.TOPIC, name)
        if self._audit.samples and operation in DATA_OPERATIONS:
            self._audit.used(caller, operation, ResourceType.TOPIC, name)
        topic = self._topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def topic_by_id(self, caller: Caller, topic_id: UUID, operation: Operation) -> Topic:
        """The topic of this id. A refusal does not tell its name."""
        topic = self._state.topic_by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        if not self._allows(caller, operation, ResourceType.TOPIC, topic.name):
            self._audit.refused(caller, operation, ResourceType.TOPIC, topic.name)
            raise KafkaError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                f"{caller.principal} has no {operation.name} permission on the topic with the id {topic_id}",
            )
        if self._audit.samples and operation in DATA_OPERATIONS:
            self._audit.used(caller, operation, ResourceType.TOPIC, topic.name)
        return topic

    def named_topic(self, caller: Caller, name: str | None, topic_id: UUID, operation: Operation) -> Topic:
        """The topic that a request names: newer versions by id, older ones (with the zero id) by name."""
        if topic_id.int:
            return self.topic_by_id(caller, topic_id, operation)
        return self.topic(caller, name or "", operation)

    def topics(self, caller: Caller, operation: Operation = Operation.DESCRIBE) -> list[Topic]:
        """All topics that the caller may see, by name."""
        topics = self._topics
        return [
            topics[name]
            for name in sorted(topics)
            if self._allows(caller, operation, ResourceType.TOPIC, name)
        ]

    def visible_topic(self, caller: Caller, name: str) -> Topic | None:
        """The topic of this name; None if there is none, or if the caller may not describe it."""
        is_visible = self._allows(caller, Operation.DESCRIBE, ResourceType.TOPIC, name)
        return self._topics.get(name) if is_visible else None

    def topic_names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """The names of those topics that still exist, for callers whose permissions are checked by name."""
        topics = map(self._state.topic_by_id, topic_ids)
        return {topic.topic_id: topic.name for topic in topics if topic is not None}

    def exists(self, name: str) -> bool:
        """Whether there is a topic of this name. For the broker's own topics, and for callers that were allowed to name
        it."""
        return name in self._topics

    def partition_count(self, name: str) -> int:
        """How many partitions a topic has, 0 if there is none. For callers that were allowed to name it."""
        topic = self._topics.get(name)
        return 0 if topic is None else topic.partitions

    def topic_configs(
        self, configs: Mapping[str, str], names: Collection[str] | None = None
    ) -> list[ConfigEntry]:
        """A topic's configs as clients see them: `configs` were set for it, the node's defaults supply the rest."""
        return describe_topic(configs, self._state.broker, names)

    def public_configs(self, names: Collection[str]) -> list[ConfigEntry]:
        """Configs of this node that every caller may see."""
        return describe_broker(self._state.broker, names)

    def check_create_topic(self, caller: Caller, name: str) -> None:
        """CREATE on the cluster allows all topics, CREATE on a topic allows that one, as in Kafka."""
        if not self._allows(caller, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
            self.check(caller, Operation.CREATE, ResourceType.TOPIC, name)

    # --- partitions

    def topic_of(self, caller: Caller, topic: str, index: int, operation: Operation) -> Topic:
        """The topic, which has a partition of this index."""
        known = self.topic(caller, topic, operation)
        if not 0 <= index < len(known.assignments):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
        return known

    def partition(
        self,
        caller: Caller,
        name: str | None,
        topic_id: UUID,
        index: int,
        operation: Operation,
        *,
        epoch: int = ANY_EPOCH,
        writes: bool = False,
    ) -> Partition:
        """The partition of the topic that a request names, if this node leads it in the epoch that the client knows.

        As in Kafka, a client with an epoch that is outdated, or not known here yet, hears so even from a node that does
        not lead. `writes`: internal topics are refused, since only the broker itself changes their records.
        """
        if topic_id.int:
            topic = self.topic_by_id(caller, topic_id, operation)
        else:
            topic = self.topic(caller, name or "", operation)
        if writes and topic.internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal: clients may only read it"
            )
        if not 0 <= index < len(topic.assignments):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{index}"
            )
        partition = self._partitions.get(topic.name, index)
        if epoch >= 0:
            partition.check_epoch(epoch)
        if not partition.leads:
            partition.check_leads()
        return partition

    def led_partition(
        self, caller: Caller, topic: str, index: int, operation: Operation, epoch: int = ANY_EPOCH
    ) -> Partition:
        """The same as `partition`, for a topic that is given by its name."""
        return self.partition(caller, topic, NO_ID, index, operation, epoch=epoch)

    # --- groups and queues

    def check_group(self, caller: Caller, group_id: str, operation: Operation) -> None:
        """Raises GROUP_AUTHORIZATION_FAILED unless the caller may do this with the group, or with the queue that is a
        share group of this name."""
        self.check(caller, operation, ResourceType.GROUP, group_id)

    def group_configs(self, caller: Caller, group_id: str, operation: Operation) -> Mapping[str, str]:
        """The configs that were set for a group, which need not exist."""
        self.check(caller, operation, ResourceType.GROUP, group_id)
        return self._state.group_configs.get(group_id, {})

    def queue_config(self, group_id: str) -> ShareGroupConfig:
        """The configs of a queue as the broker uses them. For callers that were allowed to name it."""
        return self._state.group_config(group_id)

    def described_group(
        self, caller: Caller, group_id: str, operation: Operation, names: Collection[str] | None = None
    ) -> list[ConfigEntry]:
        """A group's configs as clients see them."""
        configs = self.group_configs(caller, group_id, operation)
        return describe_group(configs, self._state.share_group_settings, names)

    # --- the cluster

    def check_idempotence(self, caller: Caller) -> None:
        """A caller that may write to at least one topic may use an idempotent producer, as in Kafka since 2.8."""
        if not self.allows_any(caller, ResourceType.TOPIC, Operation.WRITE):
            self.check(caller, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)

    def cluster(self, caller: Caller, operation: Operation) -> ClusterState:
        """The whole cluster's state, for a caller that may do this with the cluster: it sees all topics and nodes."""
        self.check(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME)
        return self._state

    def check_cluster(self, caller: Caller, operation: Operation) -> None:
        """Raises CLUSTER_AUTHORIZATION_FAILED unless the caller may do this with the cluster."""
        self.check(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME)
