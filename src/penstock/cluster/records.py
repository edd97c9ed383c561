"""Metadata records: the state of a cluster changes only by them.

On disk a record is one msgpack array whose first element is the record's tag, followed by its fields in the
order in which the class declares them:

    [1, name, topic_id (16 bytes), assignments, configs, internal, incarnations]     TopicCreated
    [2, name, topic_id, first, assignments, incarnations]                            PartitionsAdded
    [3, name, topic_id]                                                              TopicDeleted
    [4, name, topic_id, configs]                                                     TopicConfigsChanged
    [5, node_id or nil, configs]                                                     NodeConfigsChanged
    [6, node_id, first, end]                                                         ProducerIdsReserved
    [7, topics, node_configs, next_producer_id, nodes, moved, moves, voters, damaged,
     group_configs, access, quotas]                                                  MetadataSnapshot
    [8, node_id, incarnation, kafka, cluster, http or nil, rack or nil, version,
     listeners, https, machine or nil]                                               NodeRegistered
    [9, node_id]                                                                     NodeFenced
    [10, node_id]                                                                    NodeUnfenced
    [11, node_id, on]                                                                NodeDecommissioning
    [12, node_id]                                                                    NodeRemoved
    [13, topic_id, partition, replicas, incarnations]                                PartitionMoveStarted
    [14, topic_id, partition, replicas, incarnations, index]                         PartitionMoved
    [15, topic_id, partition]                                                        PartitionMoveCancelled
    [16, voters]                                                                     MetadataVoters
    [17, topic_id, partition, node_id, incarnation, renewal]                         ReplicaDamaged
    [18, group_id, configs]                                                          GroupConfigsChanged
    [19, user, passwords]                                                            UserChanged
    [20, added, removed]                                                             AclsChanged
    [21, secret]                                                                     LoginSecretSet
    [22, added, removed]                                                             TokensChanged
    [23, name, permissions]                                                          RoleChanged
    [24, added, removed]                                                             RoleGrantsChanged
    [30, [entity, values]]                                                           QuotasChanged

`assignments` holds one list of node ids per partition, the preferred leader first; `incarnations` has the same
shape and holds the incarnation of each of these nodes. A record of a version before incarnations has none: its
replicas get them when their node registers for the first time. `kafka`, `cluster` and
`http` are endpoints, [host, port]; `voters` are [node_id, incarnation]. `listeners` maps the name of each Kafka
listener to its endpoint; it is empty for a node that has only one without a name, which is `kafka`.
`passwords` map the name of a SASL mechanism to [salt, stored key, server key, iterations]; `added` and `removed` are
access rules (`security/acls.py`), API tokens (`security/tokens.py`; of those that are removed, the ids) or grants of
roles (`security/roles.py`). No password, and no secret of a token, is ever in a record.

The `entity` of quotas is [user or nil, client id or nil, address or nil], with `<default>` for the default; `values`
map the name of a quota to its limit.

A field may be added at the end of a record, with a default; nothing else about a record may ever change. An unknown
tag was written by a later version: decoding raises UnknownFormat and does not skip it.
"""

from uuid import UUID

import msgspec

from penstock.cluster.access_state import AccessSnapshot, Passwords
from penstock.cluster.quota_state import QuotaEntry
from penstock.errors import UnknownFormat
from penstock.security.acls import AclBinding
from penstock.security.roles import RoleGrant, RolePermission
from penstock.security.tokens import ApiToken

Assignments = list[list[int]]

UNKNOWN_INCARNATION = 0
"""The incarnation of a replica that was placed before its node ever registered. Real ones are random, and never 0."""

NO_INDEX = -1
"""The index in a PartitionMoved that only reorders the replicas: the group's configuration has not changed."""


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """The address of one port of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=1):
    """A topic was created, empty."""

    name: str
    topic_id: UUID
    assignments: Assignments
    configs: dict[str, str]
    internal: bool = False
    incarnations: Assignments = []


class PartitionsAdded(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=2):
    """A topic got more partitions: `assignments` are those from number `first` on."""

    name: str
    topic_id: UUID
    first: int
    assignments: Assignments
    incarnations: Assignments = []


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=3):
    """A topic was deleted. A later topic of that name has another id."""

    name: str
    topic_id: UUID


class TopicConfigsChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=4):
    """All configs of a topic, after a change."""

    name: str
    topic_id: UUID
    configs: dict[str, str]


class NodeConfigsChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=5):
    """All configs set at run time, after a change: of one node, or (None) of all nodes."""

    node_id: int | None
    configs: dict[str, str]


class ProducerIdsReserved(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=6):
    """A node may assign the producer ids from `first` up to, not including, `end`. No other node ever does."""

    node_id: int
    first: int
    end: int


class NodeRegistered(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=8):
    """A node is a member of the cluster, or has changed its addresses, rack, machine or version.

    With another incarnation than before it is a wiped node: its replicas are lost.
    """

    node_id: int
    incarnation: int
    kafka: Endpoint
    cluster: Endpoint
    http: Endpoint | None = None
    rack: str | None = None
    version: str = ""
    listeners: dict[str, Endpoint] = {}
    https: bool = False
    """Whether the HTTP port has TLS."""
    machine: str | None = None
    """The machine that the node shares with other nodes; None: it shares it with none, as far as is known."""


class NodeFenced(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=9):
    """A node has not been seen for the grace period: it gets no new replicas and should not lead."""

    node_id: int


class NodeUnfenced(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=10):
    """A fenced node is back."""

    node_id: int


class NodeDecommissioning(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=11):
    """An operator wants the node emptied (`on`), or has cancelled that."""

    node_id: int
    on: bool


class NodeRemoved(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=12):
    """A node is no longer a member. It holds no replicas."""

    node_id: int


class PartitionMoveStarted(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=13):
    """The partition's leader is to move its group to these replicas. Replaces an earlier target."""

    topic_id: UUID
    partition: int
    replicas: list[int]
    incarnations: list[int] = []


class PartitionMoved(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=14):
    """The partition's leader reports the group's committed configuration.

    `index` is the position of that configuration in the group's log (its end index). It orders reports: because of a
    late report of a former leader, no replica's data may be deleted.
    """

    topic_id: UUID
    partition: int
    replicas: list[int]
    incarnations: list[int] = []
    index: int = NO_INDEX


class PartitionMoveCancelled(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=15):
    """The group is to go back to the replicas that the partition has.

    Its leader may have got further than the metadata knows, so going back is a move too, and ends with a report.
    """

    topic_id: UUID
    partition: int


class MetadataVoters(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=16):
    """The nodes that are to vote in the metadata group."""

    voters: list[tuple[int, int]]


class ReplicaDamaged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=17):
    """A node reports that its replica of a partition, under this incarnation, is damaged or has missing files.
    `renewal` is the incarnation under which it would rebuild the replica."""

    topic_id: UUID
    partition: int
    node_id: int
    incarnation: int
    renewal: int


class GroupConfigsChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=18):
    """All configs of a consumer or share group, after a change. The group need not exist."""

    group_id: str
    configs: dict[str, str]


class UserChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=19):
    """All that is kept of a user's passwords, after a change. Without any, the user is deleted, with its tokens."""

    user: str
    passwords: Passwords


class AclsChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=20):
    """Access rules were added or removed."""

    added: list[AclBinding]
    removed: list[AclBinding]


class LoginSecretSet(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=21):
    """The secret by which a login of a user that does not exist looks like one with a wrong password."""

    secret: bytes


class TokensChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=22):
    """API tokens were made, or revoked (by their ids)."""

    added: list[ApiToken]
    removed: list[str]


class RoleChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=23):
    """All permissions of one of the cluster's own roles, after a change. Without any, the role is deleted."""

    name: str
    permissions: tuple[RolePermission, ...]


class RoleGrantsChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=24):
    """Roles were given to principals, or taken away."""

    added: list[RoleGrant]
    removed: list[RoleGrant]


class QuotasChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=30):
    """All quotas of an entity, after a change. Without any, the entity is forgotten."""

    entry: QuotaEntry


class NodeConfigs(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One entry of a snapshot's node configs: msgpack maps need text keys, and a node id is a number."""

    node_id: int | None
    configs: dict[str, str]


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One entry of a snapshot's nodes."""

    registered: NodeRegistered
    fenced: bool
    decommissioning: bool


class MetadataSnapshot(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=7):
    """The whole state. It replaces everything before it in the log.

    `topics` have their present replicas; `moved` are partitions whose group has left its founding configuration,
    `moves` the moves under way, `damaged` the replicas that are to be rebuilt.
    """

    topics: list[TopicCreated]
    node_configs: list[NodeConfigs]
    next_producer_id: int
    nodes: list[NodeEntry] = []
    moved: list[PartitionMoved] = []
    moves: list[PartitionMoveStarted] = []
    voters: list[tuple[int, int]] = []
    damaged: list[ReplicaDamaged] = []
    group_configs: dict[str, dict[str, str]] = {}
    access: AccessSnapshot = AccessSnapshot()
    quotas: list[QuotaEntry] = []


MetadataRecord = (
    TopicCreated
    | PartitionsAdded
    | TopicDeleted
    | TopicConfigsChanged
    | NodeConfigsChanged
    | ProducerIdsReserved
    | MetadataSnapshot
    | NodeRegistered
    | NodeFenced
    | NodeUnfenced
    | NodeDecommissioning
    | NodeRemoved
    | PartitionMoveStarted
    | PartitionMoved
    | PartitionMoveCancelled
    | MetadataVoters
    | ReplicaDamaged
    | GroupConfigsChanged
    | UserChanged
    | AclsChanged
    | LoginSecretSet
    | TokensChanged
    | RoleChanged
    | RoleGrantsChanged
    | QuotasChanged
)

_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: msgspec.msgpack.Decoder[MetadataRecord] = msgspec.msgpack.Decoder(MetadataRecord)


def encode_record(record: MetadataRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_record(data: bytes | memoryview) -> MetadataRecord:
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as problem:
        message = f"a metadata record is not of this version ({problem}); start the version that wrote it"
        raise UnknownFormat(message) from None
