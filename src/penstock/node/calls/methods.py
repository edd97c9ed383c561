"""All methods that one node can ask of another: the only place that says so.

A row has the method's number on the wire, the types of its request and response, the permission that the caller needs,
and whether it may be repeated: may the request be executed twice without harm? `retry` decides by that. `None` as a
response type means that the response only says that the request was executed.

To add a method, add its messages to `messages` and a row here, and `serve` it in the part of the node that knows the
answer.

Versions. A cluster may run this version of Penstock beside the one before it, so the table may change only in ways that
both understand:
 1. A number is never used for another method.
 2. A new method says in `since` with which version of the inter-node protocol it came. A node that speaks an older
    version is not asked: the request fails with UNSUPPORTED_VERSION.
 3. A message gets new fields only at its end, and with defaults: older nodes ignore them.
Any other change needs another method. It replaces the old one when no supported version uses that any more.
"""

from operator import attrgetter
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from penstock.cluster import NodeRegistered
from penstock.node.calls import polls
from penstock.node.calls.messages.access import (
    CreateToken,
    DeleteRole,
    DeleteUser,
    GrantRole,
    PutRole,
    RevokeRole,
    RevokeToken,
    SetPasswords,
)
from penstock.node.calls.messages.cliques import (
    AskTable,
    CliqueHeartbeat,
    DescribeClique,
    DescribedClique,
    ListCliques,
    ListedCliques,
    TableAnswer,
)
from penstock.node.calls.messages.controller import (
    AwaitLeaders,
    CreateInternalTopic,
    CreateTopic,
    DecommissionNode,
    ProducerIdBlock,
    Rebalance,
    RebalanceStep,
    ReportDamage,
    ReportVoters,
    ReserveProducerIds,
    TransferLeadership,
)
from penstock.node.calls.messages.groups import AckedOffsets, BeginShareGroup, ListAckedOffsets
from penstock.node.calls.messages.kafka import KafkaRequest, KafkaResponse
from penstock.node.calls.messages.queue_state import (
    ClaimedState,
    ClaimState,
    CountedState,
    CountState,
    ListStartOffsets,
    ResetState,
    SaveState,
    SettlementOutcomes,
    StartOffsets,
    StoredSettlement,
    StoreSettlement,
    WatchSettlements,
)
from penstock.node.calls.messages.queues import (
    AcceptRequest,
    CancelReceive,
    DescribedQueue,
    DescribeQueue,
    PeekRequest,
    PeekResult,
    ReceivedBatch,
    ReceiveRequest,
    ReturnRequest,
    ScheduledRequest,
    ScheduledResult,
    SettleRequest,
    SettleResult,
)
from penstock.node.calls.messages.records import AppendBatch
from penstock.node.calls.messages.status import DamagedReplica, LedPartition, ListSamples, Sample
from penstock.node.calls.messages.subscriptions import (
    DeleteSubscription,
    DescribeSubscription,
    ListSubscriptions,
    SubscriptionPage,
)
from penstock.node.calls.messages.transactions import (
    AbortTransaction,
    CommitVersion,
    DecidedVersion,
    JoinedTransaction,
    JoinTransaction,
    LendAttempt,
    LentAttempt,
    RenewAttempts,
    RollbackVersion,
    WriteMarkers,
    WrittenMarkers,
)
from penstock.node.calls.polls import Poll
from penstock.queue import QueueKey
from penstock.ring import HeartbeatReply
from penstock.types import CLUSTER_NAME, Operation, ResourceType

Q = TypeVar("Q")
R = TypeVar("R")

ANSWER_MS = 10_000
"""How long a node may take to answer, beside the time that the request itself may wait."""
STATUS_MS = 2_000
"""The same for status displays: a person waits, and a display without that node's figures is better than none."""
HEARTBEAT_MS = 2_000
"""The same for coordinators of cliques: a heartbeat must find the next coordinator before the worker's lease ends,
which is 8 s by default."""
SETTLEMENT_MS = 25_000
"""The same for a settlement in a transaction. The coordinator of the transaction may take 15 s to add the partition:
5 s for the markers of the producer's last transaction, and the rest for an election."""

MARKERS_MS = 5_000
"""The same for the markers of transactions: their readers wait. A leader answers after two seconds, also for those that
are not committed yet; the next leader may be elected while a node that hangs is waited for."""


FIRST_VERSION = 2
"""The first version of the inter-node protocol that nodes negotiate. It has all methods that say nothing else."""


class Needs(NamedTuple):
    """The permission that a caller needs: an operation on the resource that a request names."""

    operation: Operation
    resource_type: ResourceType
    field: str = ""
    """The field of the request with the resource's name, or with the id of a topic; empty for the cluster."""

    def name(self, request: Any) -> str | UUID:
        found: str | UUID = attrgetter(self.field)(request) if self.field else CLUSTER_NAME
        return found


NODES_ONLY = Needs(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
"""For what nodes do by themselves, and not for a client."""
CHECKED = Needs(Operation.ANY, ResourceType.ANY)
"""The handler checks the permission, because it needs several; or the caller's node shows only what the caller may see
of a list."""

DESCRIBE_CLUSTER = Needs(Operation.DESCRIBE, ResourceType.CLUSTER)
ALTER_CLUSTER = Needs(Operation.ALTER, ResourceType.CLUSTER)
CREATE_NAMED_TOPIC = Needs(Operation.CREATE, ResourceType.TOPIC, "name")
WRITE_OWNER = Needs(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "owner")
WRITE_TRANSACTIONAL_ID = WRITE_OWNER._replace(field="transactional_id")
WRITE_TOPIC = Needs(Operation.WRITE, ResourceType.TOPIC, "group.topic_id")


def _on_group(operation: Operation, field: str) -> Needs:
    return Needs(operation, ResourceType.GROUP, field)


READ_GROUP = _on_group(Operation.READ, "group_id")
READ_QUEUE = _on_group(Operation.READ, "queue.group_id")
DESCRIBE_GROUP = _on_group(Operation.DESCRIBE, "group_id")


class Method(NamedTuple, Generic[Q, R]):
    """One row of the table."""

    number: int
    name: str
    request: type[Q]
    response: type[R]
    needs: Needs
    repeatable: bool
    answer_ms: int = ANSWER_MS
    for_clients: bool = False
    """Whether the requests of clients decide how many such calls there are. False for calls that only administrators
    cause, and for status displays, which are answered from memory: they must work while clients have all their calls.
    """
    poll: Poll[Q, R] | None = None
    """For a method whose requests may wait there for something to happen."""
    since: int = FIRST_VERSION
    """The version of the inter-node protocol that has it first."""


METHODS: dict[int, Method[Any, Any]] = {}


def _row(
    number: int,
    name: str,
    request: type[Q],
    response: type[R],
    needs: Needs,
    *,
    repeatable: bool,
    answer_ms: int = ANSWER_MS,
    for_clients: bool = False,
    poll: Poll[Q, R] | None = None,
    since: int = FIRST_VERSION,
) -> Method[Q, R]:
    assert number not in METHODS
    assert for_clients or poll is None, "the share of long polls is part of the clients' share"
    method = Method(number, name, request, response, needs, repeatable, answer_ms, for_clients, poll, since)
    METHODS[number] = method
    return method


# The controller. FORWARD carries a client's Kafka request to it, as the client sent it, and the response back.
FORWARD = _row(1, "forward", memoryview, memoryview, CHECKED, repeatable=False, for_clients=True)
CREATE_TOPIC = _row(
    2, "create_topic", CreateTopic, NoneType, CREATE_NAMED_TOPIC, repeatable=True, for_clients=True
)
CREATE_INTERNAL_TOPIC = _row(
    3, "create_internal_topic", CreateInternalTopic, NoneType, NODES_ONLY, repeatable=True
)
RESERVE_PRODUCER_IDS = _row(
    4, "reserve_producer_ids", ReserveProducerIds, ProducerIdBlock, NODES_ONLY, repeatable=True
)
REGISTER_NODE = _row(5, "register_node", NodeRegistered, NoneType, NODES_ONLY, repeatable=True)
REPORT_VOTERS = _row(6, "report_voters", ReportVoters, NoneType, NODES_ONLY, repeatable=True)
REPORT_DAMAGE = _row(7, "report_damage", ReportDamage, NoneType, NODES_ONLY, repeatable=True)
DECOMMISSION_NODE = _row(8, "decommission_node", DecommissionNode, NoneType, ALTER_CLUSTER, repeatable=True)
REBALANCE = _row(9, "rebalance", Rebalance, RebalanceStep, ALTER_CLUSTER, repeatable=True)
METADATA_END = _row(11, "metadata_end", NoneType, int, NODES_ONLY, repeatable=True)

# Each node, asked by the controller after it has created partitions.
AWAIT_LEADERS = _row(10, "await_leaders", AwaitLeaders, NoneType, NODES_ONLY, repeatable=True)

# The controller, about users and roles. Users set their own password and manage their own tokens, so the handlers of
# these check the permission. A repeated creation or deletion would answer that there was, or was not, such a thing.
CREATE_USER = _row(120, "create_user", SetPasswords, NoneType, ALTER_CLUSTER, repeatable=False)
SET_PASSWORDS = _row(121, "set_passwords", SetPasswords, NoneType, CHECKED, repeatable=True, for_clients=True)
DELETE_USER = _row(122, "delete_user", DeleteUser, NoneType, ALTER_CLUSTER, repeatable=False)
CREATE_TOKEN = _row(123, "create_token", CreateToken, NoneType, CHECKED, repeatable=True, for_clients=True)
REVOKE_TOKEN = _row(124, "revoke_token", RevokeToken, NoneType, CHECKED, repeatable=False, for_clients=True)
PUT_ROLE = _row(125, "put_role", PutRole, NoneType, ALTER_CLUSTER, repeatable=True)
DELETE_ROLE = _row(126, "delete_role", DeleteRole, NoneType, ALTER_CLUSTER, repeatable=False)
GRANT_ROLE = _row(127, "grant_role", GrantRole, NoneType, ALTER_CLUSTER, repeatable=True)
REVOKE_ROLE = _row(128, "revoke_role", RevokeRole, NoneType, ALTER_CLUSTER, repeatable=False)

# The leader of a partition. A batch that is appended twice is a duplicate; the broker's own records bear that.
TRANSFER_LEADERSHIP = _row(
    20, "transfer_leadership", TransferLeadership, NoneType, ALTER_CLUSTER, repeatable=True
)
APPEND_BATCH = _row(21, "append_batch", AppendBatch, int, WRITE_TOPIC, repeatable=True, for_clients=True)

# The leader of a partition of the queues' state topic. A claim only raises the fence, a save under the same fence and
# number writes the same bytes, and so does a settlement of the same suffix.
CLAIM_STATE = _row(30, "claim_queue_state", ClaimState, ClaimedState, NODES_ONLY, repeatable=True)
SAVE_STATE = _row(31, "save_queue_state", SaveState, NoneType, NODES_ONLY, repeatable=True)
DELETE_STATE = _row(
    32,
    "delete_queue_state",
    QueueKey,
    NoneType,
    _on_group(Operation.DELETE, "group_id"),
    repeatable=True,
    for_clients=True,
)
RESET_STATE = _row(
    33, "reset_queue_state", ResetState, NoneType, READ_QUEUE, repeatable=True, for_clients=True
)
LIST_START_OFFSETS = _row(
    34, "list_start_offsets", ListStartOffsets, StartOffsets, CHECKED, repeatable=True, for_clients=True
)
COUNT_STATE = _row(
    35, "count_queue_state", CountState, CountedState, NODES_ONLY, repeatable=True, for_clients=True
)
STORE_SETTLEMENT = _row(
    36,
    "store_settlement",
    StoreSettlement,
    StoredSettlement,
    READ_QUEUE,
    repeatable=True,
    answer_ms=SETTLEMENT_MS,
    for_clients=True,
)
WATCH_SETTLEMENTS = _row(
    37,
    "watch_settlements",
    WatchSettlements,
    SettlementOutcomes,
    NODES_ONLY,
    repeatable=True,
    for_clients=True,
    poll=polls.WATCH_SETTLEMENTS,
)

# The leader of a partition with a queue. A repeated RECEIVE leases more messages; a repeated SETTLE or ACCEPT finds the
# message settled and is refused; a repeated RETURN may take back a later lease of the same consumer. CANCEL_RECEIVE and
# RETURN are few, for they end a RECEIVE, and they must not wait for a place among the calls that they make free.
RECEIVE = _row(
    40,
    "receive",
    ReceiveRequest,
    list[ReceivedBatch],
    READ_GROUP,
    repeatable=False,
    for_clients=True,
    poll=polls.RECEIVE,
)
CANCEL_RECEIVE = _row(41, "cancel_receive", CancelReceive, NoneType, CHECKED, repeatable=True)
RETURN = _row(42, "return", ReturnRequest, NoneType, READ_GROUP, repeatable=False)
SETTLE = _row(43, "settle", SettleRequest, SettleResult, READ_GROUP, repeatable=False, for_clients=True)
PEEK = _row(44, "peek", PeekRequest, PeekResult, DESCRIBE_GROUP, repeatable=True, for_clients=True)
ACCEPT = _row(45, "accept", AcceptRequest, NoneType, READ_GROUP, repeatable=False, for_clients=True)
LIST_SCHEDULED = _row(
    46,
    "list_scheduled",
    ScheduledRequest,
    ScheduledResult,
    DESCRIBE_GROUP,
    repeatable=True,
    for_clients=True,
)
DESCRIBE_QUEUE = _row(
    47,
    "describe_queue",
    DescribeQueue,
    DescribedQueue,
    _on_group(Operation.DESCRIBE, "queue.group_id"),
    repeatable=True,
    for_clients=True,
)
RELOAD_QUEUE = _row(48, "reload_queue", QueueKey, NoneType, DESCRIBE_GROUP, repeatable=True, for_clients=True)

# Coordinators of groups, and nodes that keep the progress of groups and queues.
BEGIN_SHARE_GROUP = _row(
    60, "begin_share_group", BeginShareGroup, NoneType, READ_GROUP, repeatable=True, for_clients=True
)
LIST_ACKED_OFFSETS = _row(
    61, "list_acked_offsets", ListAckedOffsets, AckedOffsets, NODES_ONLY, repeatable=True
)

# Coordinators of subscriptions. A repeated delete would answer that there was no such subscription.
LIST_SUBSCRIPTIONS = _row(
    70, "list_subscriptions", ListSubscriptions, SubscriptionPage, CHECKED, repeatable=True, for_clients=True
)
DESCRIBE_SUBSCRIPTION = _row(
    71,
    "describe_subscription",
    DescribeSubscription,
    SubscriptionPage,
    _on_group(Operation.DESCRIBE, "name"),
    repeatable=True,
    for_clients=True,
)
DELETE_SUBSCRIPTION = _row(
    72,
    "delete_subscription",
    DeleteSubscription,
    bool,
    _on_group(Operation.DELETE, "name"),
    repeatable=False,
    for_clients=True,
)

# Coordinators of cliques. A repeated heartbeat has the same sequence number and changes nothing.
CLIQUE_HEARTBEAT = _row(
    100,
    "clique_heartbeat",
    CliqueHeartbeat,
    HeartbeatReply,
    _on_group(Operation.READ, "clique"),
    repeatable=True,
    answer_ms=HEARTBEAT_MS,
    for_clients=True,
    poll=polls.CLIQUE_HEARTBEAT,
)
CLIQUE_TABLE = _row(
    101,
    "clique_table",
    AskTable,
    TableAnswer,
    _on_group(Operation.READ, "clique"),
    repeatable=True,
    answer_ms=HEARTBEAT_MS,
    for_clients=True,
    poll=polls.CLIQUE_TABLE,
)
DESCRIBE_CLIQUE = _row(
    102,
    "describe_clique",
    DescribeClique,
    DescribedClique,
    _on_group(Operation.DESCRIBE, "clique"),
    repeatable=True,
    for_clients=True,
)
LIST_CLIQUES = _row(
    103, "list_cliques", ListCliques, ListedCliques, CHECKED, repeatable=True, for_clients=True
)

# Coordinators of transactions, asked by leaders of partitions, as the producer, before a transaction's first batch
# there; and each node, asked by coordinators to end transactions on the partitions that it leads. A marker has a number
# by which the leader knows a repetition.
JOIN_TRANSACTION = _row(
    110,
    "join_transaction",
    JoinTransaction,
    JoinedTransaction,
    WRITE_TRANSACTIONAL_ID,
    repeatable=True,
    for_clients=True,
)
WRITE_MARKERS = _row(
    111, "write_markers", WriteMarkers, WrittenMarkers, NODES_ONLY, repeatable=True, answer_ms=MARKERS_MS
)

# Coordinators of transactions, about attempts. A repeated decision changes nothing.
LEND_ATTEMPT = _row(
    112, "lend_attempt", LendAttempt, LentAttempt, WRITE_OWNER, repeatable=True, for_clients=True
)
COMMIT_VERSION = _row(
    113, "commit_version", CommitVersion, DecidedVersion, WRITE_OWNER, repeatable=True, for_clients=True
)
ROLLBACK_VERSION = _row(
    114, "rollback_version", RollbackVersion, DecidedVersion, WRITE_OWNER, repeatable=True, for_clients=True
)
RENEW_ATTEMPTS = _row(
    115, "renew_attempts", RenewAttempts, NoneType, WRITE_OWNER, repeatable=True, for_clients=True
)

# Coordinators of transactions, for operators. The request names one transaction, so a repeated one aborts no other.
ABORT_TRANSACTION = _row(
    116,
    "abort_transaction",
    AbortTransaction,
    NoneType,
    WRITE_TRANSACTIONAL_ID,
    repeatable=True,
    for_clients=True,
)

# Kafka APIs, asked by a node on behalf of a caller that does not speak Kafka. KAFKA_QUERY: those that may be repeated.
KAFKA_REQUEST = _row(
    80, "kafka_request", KafkaRequest, KafkaResponse, CHECKED, repeatable=False, for_clients=True
)
KAFKA_QUERY = _row(
    81,
    "kafka_query",
    KafkaRequest,
    KafkaResponse,
    CHECKED,
    repeatable=True,
    for_clients=True,
    poll=polls.FETCH,
)

# Each node, about its replicas.
LIST_LED_PARTITIONS = _row(
    90,
    "list_led_partitions",
    NoneType,
    list[LedPartition],
    DESCRIBE_CLUSTER,
    repeatable=True,
    answer_ms=STATUS_MS,
)
LIST_DAMAGED_REPLICAS = _row(
    91,
    "list_damaged_replicas",
    NoneType,
    list[DamagedReplica],
    DESCRIBE_CLUSTER,
    repeatable=True,
    answer_ms=STATUS_MS,
)

# Each node, about its figures of the last minutes.
LIST_SAMPLES = _row(
    92, "list_samples", ListSamples, list[Sample], NODES_ONLY, repeatable=True, answer_ms=STATUS_MS
)
