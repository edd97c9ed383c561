"""The status of the cluster, as this node sees it now: its nodes, the replicas and leaders of partitions, and their
lags.

Five sources, each with its own accuracy:

    metadata    which nodes are registered, and which replicas each partition shall have; soon the same on all nodes
    gossip      which nodes are alive; seconds old, and only a hint
    leaders     the leaders and in-sync replicas, as the leaders announced them
    progress    how far each replica is: only its leader knows, so every node is asked once for a whole report
    offline     which replicas are damaged or take no part, and why: only the node that holds them knows

Nothing here decides anything, and no source is waited for: a node that does not answer is named in `unanswered`, and
its lags are missing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.cluster import ClusterState, NodeInfo, Topic
from penstock.config import Address
from penstock.node.metadata.cluster_view import ClusterView
from penstock.types import GroupId, NodeId, Replica

ALIVE = "alive"
UNSEEN = "unseen"
"""Gossip has never heard of the node, or has forgotten it."""


MAX_VOTER_LAG = 64
"""Entries that may be under way to a voter of the metadata group: as many as Raft sends before it waits for an answer.
A voter that is farther behind is catching up, and should not be counted for a majority."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica, as its leader knows it. `end_offset` is what it has flushed; `lag` counts messages (and a few
    entries of Penstock's own); `bytes_behind` is an estimate from the log's mean."""

    node_id: int
    end_offset: int
    lag: int
    bytes_behind: int
    silent_ms: int
    learner: bool


class ReplicaTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A replica with a problem although its node is alive. *Offline*: its node keeps it out of its group (lost or
    unreadable files, a disk that failed). *Damaged*: wrong bytes were found in it, and it takes part until it is
    recreated."""

    topic: str
    partition: int
    node_id: int
    reason: str


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`leader` is None while there is no leader. `progress` is empty where the leader was not asked or did not
    answer."""

    topic: str
    partition: int
    leader: int | None
    term: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    under_replicated: bool
    lag: int | None
    """The lag of the replica that is farthest behind; None where it is not known."""
    offline: tuple[int, ...] = ()
    """Nodes whose replica takes no part although they are alive; `offline` of the whole report says why."""
    damaged: tuple[int, ...] = ()
    """Nodes in whose replica wrong bytes were found; `damaged` of the whole report says which."""
    progress: tuple[ReplicaStatus, ...] = ()


class HeldBackStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that holds more than retention allows, because a queue has not settled all of it. `queue` is None
    while not all queues are known; `overdue_ms` is how much older than retention.ms the oldest records are."""

    topic: str
    partition: int
    queue: str | None
    size_bytes: int
    records: int
    overdue_ms: int


class OverdueTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is open for a minute longer than its timeout: its coordinator cannot end it, and readers of
    committed records wait for it."""

    transactional_id: str
    state: str
    open_ms: int
    timeout_ms: int


class MoveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A partition on its way to other nodes."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    bytes_behind: int | None
    """The bytes that all new replicas together still lack; None where it is not known."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`state` comes from gossip, `fenced` from the metadata. `hosts` and `leads` are partition numbers by topic."""

    node_id: int
    incarnation: str
    """A hexadecimal number: JSON's numbers are too short for it in many languages."""
    state: str
    registered: bool
    """Whether the cluster has registered it: a node that was removed does not know it yet."""
    fenced: bool
    decommissioning: bool
    connected: bool
    controller: bool
    metadata_role: str | None
    """voter or learner of the metadata group; None: this node does not know its role."""
    kafka: str
    http: str | None
    cluster: str | None
    rack: str | None
    version: str
    hosts: dict[str, list[int]]
    leads: dict[str, list[int]]
    https: bool = False
    """Whether the HTTP port has TLS."""
    machine: str | None = None
    """The machine that it shares with others."""


class QuorumStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata group. `end_offset` is how far this node has applied its log."""

    leader: int | None
    term: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    end_offset: int
    behind: tuple[int, ...] = ()
    """Voters that do not keep up, or whose lag is not known: if one more voter fails there may be no majority."""
    progress: tuple[ReplicaStatus, ...] = ()


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report. `healthy`: `troubles` is empty, so that any one node may fail."""

    cluster_id: str
    node_id: int
    """The node that made the report."""
    alone: bool
    """Whether the node has no inter-node port, and is the whole cluster."""
    healthy: bool
    controller: int | None
    nodes: tuple[NodeStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    under_replicated: tuple[str, ...]
    leaderless: tuple[str, ...]
    moves: tuple[MoveStatus, ...]
    metadata: QuorumStatus
    unanswered: tuple[int, ...]
    """Nodes that were asked for the lags of their followers, and did not answer."""
    offline: tuple[ReplicaTrouble, ...] = ()
    damaged: tuple[ReplicaTrouble, ...] = ()
    held_back: tuple[HeldBackStatus, ...] = ()
    """Topics that a queue keeps from being shortened. This is no problem of the cluster, but may be of an
    application: its queue may be forgotten."""
    hanging_transactions: tuple[OverdueTransaction, ...] = ()
    """A few of each coordinator, the oldest first. The cause is another problem, such as a partition without a leader,
    so this alone does not make the cluster unhealthy."""
    troubles: tuple[str, ...] = ()
    """All problems, in words for people."""


class ClusterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one node for monitoring, collected without asking another node."""

    leaders: int
    replicas: int
    under_replicated: int
    """Partitions that this node leads and that are under-replicated: the sum over all nodes counts each once."""
    leaderless: int
    """Partitions without a leader of which this node holds a replica."""
    elections: int
    is_controller: bool
    replication_lag_max: int
    peer_connections: int
    members: dict[str, int]
    """According to gossip; this node is one of them."""


class NodeView(NamedTuple):
    """How one node sees the others, besides metadata and leaders: from gossip, connections and their answers."""

    members: Mapping[Replica, str]
    connected: frozenset[int]
    progress: Mapping[GroupId, tuple[ReplicaStatus, ...]]
    offline: tuple[ReplicaTrouble, ...] = ()
    damaged: tuple[ReplicaTrouble, ...] = ()
    held_back: tuple[HeldBackStatus, ...] = ()
    overdue: tuple[OverdueTransaction, ...] = ()


class NodeIdentity(NamedTuple):
    """A node's replica id, addresses, rack and version. A node without a cluster is not registered, so it supplies its
    own."""

    replica: Replica
    kafka: str
    http: str | None
    cluster: str | None
    rack: str | None
    version: str
    https: bool = False
    machine: str | None = None


# --- rendering: from facts to the report


def render_partitions(
    state: ClusterState, view: ClusterView, seen: NodeView, only: str | None = None
) -> Iterator[PartitionStatus]:
    """All partitions by topic and number, or those of one topic."""
    absent = {replica.node for replica, word in seen.members.items() if word in ("dead", "left")}
    absent -= {replica.node for replica, word in seen.members.items() if word not in ("dead", "left")}
    offline, damaged = _places(seen.offline), _places(seen.damaged)
    for topic, group, _ in state.groups():
        if only is None or topic.name == only:
            place = topic.name, group.partition
            status = _partition(topic, group, view, absent, seen.progress.get(group, ()))
            if place in offline or place in damaged:
                nodes = offline.get(place, ()), damaged.get(place, ())
                status = msgspec.structs.replace(status, offline=nodes[0], damaged=nodes[1])
            yield status


def _places(troubles: Iterable[ReplicaTrouble]) -> dict[tuple[str, int], tuple[int, ...]]:
    """The nodes of each partition, in order."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for one in sorted(troubles, key=lambda one: one.node_id):
        place = one.topic, one.partition
        found[place] = (*found.get(place, ()), one.node_id)
    return found


def _partition(
    topic: Topic,
    group: GroupId,
    view: ClusterView,
    absent: set[NodeId],
    progress: tuple[ReplicaStatus, ...],
) -> PartitionStatus:
    assignment = topic.assignments[group.partition]
    facts = view.partition(topic, group.partition)
    led = facts.leader >= 0 and facts.leader not in absent
    in_sync = tuple(sorted(facts.in_sync)) if led else ()
    behind = [one.lag for one in progress if one.node_id != facts.leader]
    return PartitionStatus(
        topic=topic.name,
        partition=group.partition,
        leader=facts.leader if led else None,
        term=facts.term,
        replicas=assignment.shown,
        in_sync=in_sync,
        adding=assignment.adding,
        removing=assignment.removing,
        under_replicated=not set(assignment.replicas) <= set(in_sync),
        lag=max(behind, default=0) if led and (progress or len(assignment.shown) == 1) else None,
        progress=progress,
    )


def render_moves(state: ClusterState, seen: NodeView) -> Iterator[MoveStatus]:
    for topic, group, assignment in state.groups():
        if assignment.target is None:
            continue
        # A replica that is being recreated is on the same node as the old one, so it is found among the replicas that
        # do not vote yet.
        coming = [
            one for one in seen.progress.get(group, ()) if one.learner or one.node_id in assignment.adding
        ]
        yield MoveStatus(
            topic=topic.name,
            partition=group.partition,
            replicas=assignment.replicas,
            target=assignment.target,
            adding=assignment.adding,
            removing=assignment.removing,
            bytes_behind=sum(one.bytes_behind for one in coming) if coming else None,
        )


def voters_behind(
    voters: Sequence[int], leader: int | None, progress: Sequence[ReplicaStatus], max_silence_ms: int
) -> tuple[int, ...]:
    """Voters of the metadata group whose vote cannot be counted on. Without an answer of the leader these are all
    others; without a leader another message says so."""
    if leader is None:
        return ()
    keeping_up = {
        one.node_id for one in progress if one.silent_ms <= max_silence_ms and one.lag <= MAX_VOTER_LAG
    }
    return tuple(voter for voter in voters if voter != leader and voter not in keeping_up)


def render_troubles(
    nodes: Sequence[NodeStatus],
    partitions: Sequence[PartitionStatus],
    quorum: QuorumStatus,
    seen: NodeView,
) -> Iterator[str]:
    """The problems, most urgent first."""
    if quorum.leader is None:
        yield "there is no controller: a majority of the metadata group's voters must be there"
    for node in nodes:
        if node.registered and (word := _absence(node)):
            yield f"node {node.node_id} is {word}"
    if quorum.behind:
        is_one, behind = len(quorum.behind) == 1, ", ".join(map(str, quorum.behind))
        yield (
            f"{len(quorum.behind)} of {len(quorum.voters)} metadata voters {'does' if is_one else 'do'} not keep up: "
            f"{'node' if is_one else 'nodes'} {behind}"
        )
    leaderless = sum(one.leader is None for one in partitions)
    if leaderless:
        yield f"partitions without a leader: {leaderless}"
    weak = sum(one.under_replicated and one.leader is not None for one in partitions)
    if weak:
        yield f"under-replicated partitions: {weak}"
    if seen.offline:
        yield f"offline replicas: {len(seen.offline)}"
    if seen.damaged:
        yield f"damaged replicas: {len(seen.damaged)}"


def _absence(node: NodeStatus) -> str:
    """Why a node is not alive: gossip's state, and whether the cluster has fenced it."""
    gone = node.state in ("dead", "left") or (node.state == UNSEEN and not node.connected)
    return " and ".join([node.state] * gone + ["fenced"] * node.fenced)


def render_nodes(
    state: ClusterState,
    me: NodeIdentity,
    seen: NodeView,
    quorum: QuorumStatus,
    partitions: Sequence[PartitionStatus],
) -> list[NodeStatus]:
    hosts: dict[int, dict[str, list[int]]] = {}
    leads: dict[int, dict[str, list[int]]] = {}
    for one in partitions:
        for node in one.replicas:
            hosts.setdefault(node, {}).setdefault(one.topic, []).append(one.partition)
        if one.leader is not None:
            leads.setdefault(one.leader, {}).setdefault(one.topic, []).append(one.partition)
    known = {node_id: _registered_identity(info) for node_id, info in state.nodes.items()}
    known.setdefault(me.replica.node, me)
    return [
        _node(known[node_id], state.nodes.get(node_id), me, seen, quorum, hosts, leads)
        for node_id in sorted(known)
    ]


def _node(
    one: NodeIdentity,
    info: NodeInfo | None,
    me: NodeIdentity,
    seen: NodeView,
    quorum: QuorumStatus,
    hosts: Mapping[int, dict[str, list[int]]],
    leads: Mapping[int, dict[str, list[int]]],
) -> NodeStatus:
    node_id = one.replica.node
    role = "voter" if node_id in quorum.voters else "learner" if node_id in quorum.learners else None
    return NodeStatus(
        node_id=node_id,
        incarnation=f"{one.replica.incarnation:016x}",
        state=ALIVE if one.replica == me.replica else seen.members.get(one.replica, UNSEEN),
        registered=info is not None or one.cluster is None,
        fenced=info is not None and info.fenced,
        decommissioning=info is not None and info.decommissioning,
        connected=node_id == me.replica.node or node_id in seen.connected,
        controller=node_id == quorum.leader,
        metadata_role=role,
        kafka=one.kafka,
        http=one.http,
        cluster=one.cluster,
        rack=one.rack,
        version=one.version,
        hosts=hosts.get(node_id, {}),
        leads=leads.get(node_id, {}),
        https=one.https,
        machine=one.machine,
    )


def _registered_identity(info: NodeInfo) -> NodeIdentity:
    return NodeIdentity(
        replica=info.replica,
        kafka=str(Address(info.kafka.host, info.kafka.port)),
        http=str(Address(info.http.host, info.http.port)) if info.http is not None else None,
        cluster=str(Address(info.cluster.host, info.cluster.port)),
        rack=info.rack,
        version=info.version,
        https=info.https,
        machine=info.machine,
    )
