"""Makes the report of `cluster_status` for a node: reads the node's own sources, and asks the other nodes for
theirs."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.cluster import TRANSACTIONS_TOPIC, Assignment, ClusterState, Topic
from penstock.config import Address
from penstock.errors import KafkaError
from penstock.node.calls import BROKER, methods
from penstock.node.calls.messages.status import (
    DamagedReplica,
    HeldBackRow,
    LedPartition,
    OverdueRow,
    ReplicaRow,
)
from penstock.node.coordination.undone_retention import HeldBack
from penstock.node.metadata.cluster_view import METADATA_GROUP
from penstock.node.replication.partition import Partition
from penstock.node.replication.replica import ReplicaFacts
from penstock.node.scheduling.shared_work import SharedWork
from penstock.node.scheduling.slices import in_slices
from penstock.node.status.cluster_status import (
    ALIVE,
    ClusterFigures,
    ClusterStatus,
    HeldBackStatus,
    NodeIdentity,
    NodeStatus,
    NodeView,
    OverdueTransaction,
    PartitionStatus,
    QuorumStatus,
    ReplicaStatus,
    ReplicaTrouble,
    render_moves,
    render_nodes,
    render_partitions,
    render_troubles,
    voters_behind,
)
from penstock.node.transactions.figures import OpenTransaction
from penstock.types import Caller, GroupId, Replica, Term, TopicPartition

if TYPE_CHECKING:
    from penstock.node.node import Node

MAX_ROWS = 200_000
"""The most rows in one answer: as many partitions as a cluster may have."""
PARTITIONS_PER_TURN = 200
"""Partitions that are described before other work gets its turn; each takes up to 30 µs."""
MAX_REASON_CHARACTERS = 400
"""The longest text about a problem of a replica: whole sentences, but not megabytes."""

Progress = Mapping[GroupId, tuple[ReplicaStatus, ...]]


Troubles = list[tuple[ReplicaTrouble, bool]]
"""Each with whether the replica takes part all the same."""


def _row(
    partition: Partition, held: HeldBack | None, overdue: Iterable[OpenTransaction] = ()
) -> LedPartition:
    width = max(1, partition.log.entries.end_index - partition.log.entries.first_index)
    per_entry = partition.log.size_bytes / width
    return LedPartition(
        partition.group,
        tuple(_replica(one, per_entry, width) for one in partition.replica.progress()),
        None if held is None else HeldBackRow(held.queue, held.size_bytes, held.records, held.overdue_ms),
        tuple(OverdueRow(one.transactional_id, one.state, one.open_ms, one.timeout_ms) for one in overdue),
    )


def _replica(one: ReplicaFacts, per_entry: float, width: int) -> ReplicaRow:
    lag = max(0, one.lag)
    behind = int(min(lag, width) * per_entry)
    return ReplicaRow(one.node_id, one.end_offset, lag, behind, max(0, one.silent_ms), one.learner)


async def _progress(rows: Iterable[LedPartition]) -> Progress:
    return {
        row.group: tuple(ReplicaStatus(**one._asdict()) for one in row.replicas)
        async for row in in_slices(rows, PARTITIONS_PER_TURN)
    }


def _overdue(rows: Iterable[LedPartition]) -> tuple[OverdueTransaction, ...]:
    found = [OverdueTransaction(**one._asdict()) for row in rows for one in row.overdue]
    return tuple(sorted(found, key=lambda one: one.open_ms, reverse=True))


def _may_tell(topic: Topic, assignment: Assignment) -> bool:
    """Whether the leader of this partition knows more of it than the metadata."""
    return len(assignment.shown) > 1 or topic.config.keep_undone or topic.name == TRANSACTIONS_TOPIC


def _troubles(node: int, rows: Iterable[DamagedReplica]) -> Troubles:
    return [
        (ReplicaTrouble(topic=row.topic, partition=row.partition, node_id=node, reason=row.reason), row.takes_part)
        for row in rows
    ]  # fmt: skip


def _trouble(partition: Partition) -> DamagedReplica | None:
    """The problem of a replica that could be opened."""
    if partition.offline_reason is not None:
        return DamagedReplica(*partition.name, str(partition.offline_reason)[:MAX_REASON_CHARACTERS])
    if partition.damage is not None:
        return DamagedReplica(*partition.name, str(partition.damage)[:MAX_REASON_CHARACTERS], True)
    return None


class StatusCollector:
    """Makes the report for one node, and answers other nodes that make theirs."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._snapshots = SharedWork(self._take_snapshot)
        node.calls.serve(methods.LIST_LED_PARTITIONS, self._list_led_partitions)
        node.calls.serve(methods.LIST_DAMAGED_REPLICAS, self._list_damaged_replicas)

    async def snapshot(self) -> ClusterStatus:
        """The whole report, with the lags of partitions that other nodes lead and the problems of their replicas: two
        calls to each node. Callers that ask at the same time share one."""
        return await self._snapshots.result()

    async def _take_snapshot(self) -> ClusterStatus:
        node = self._node
        seen, unanswered = await self._ask_nodes()
        state = node.metadata.state.copy()
        partitions = await self._rendered(state, seen)
        quorum = self._quorum(seen)
        nodes = render_nodes(state, self._identity(), seen, quorum, partitions)
        troubles = tuple(render_troubles(nodes, partitions, quorum, seen))
        leaderless = tuple(_name(one) for one in partitions if one.leader is None)
        weak = tuple(_name(one) for one in partitions if one.under_replicated and one.leader is not None)
        return ClusterStatus(
            cluster_id=node.cluster_id,
            node_id=node.node_id,
            alone=node.is_alone,
            healthy=not troubles,
            controller=quorum.leader,
            nodes=tuple(nodes),
            partitions=tuple(partitions),
            under_replicated=weak,
            leaderless=leaderless,
            moves=tuple(render_moves(state, seen)),
            metadata=quorum,
            unanswered=unanswered,
            offline=seen.offline,
            damaged=seen.damaged,
            held_back=seen.held_back,
            hanging_transactions=seen.overdue,
            troubles=troubles,
        )

    async def partitions(self, topic: str | None = None) -> list[PartitionStatus]:
        """The partitions of one topic or of all, with lags."""
        seen, _ = await self._ask_nodes(topic)
        return await self._rendered(self._node.metadata.state.copy(), seen, topic)

    async def nodes(self) -> list[NodeStatus]:
        """All nodes, without asking another one."""
        seen = await self._node_view(())
        state = self._node.metadata.state.copy()
        partitions = await self._rendered(state, seen)
        return render_nodes(state, self._identity(), seen, self._quorum(seen), partitions)

    async def _rendered(
        self, copy: ClusterState, seen: NodeView, topic: str | None = None
    ) -> list[PartitionStatus]:
        """`copy`: the metadata may change during a pause."""
        found = render_partitions(copy, self._node.view, seen, topic)
        return [one async for one in in_slices(found, PARTITIONS_PER_TURN)]

    async def figures(self) -> ClusterFigures:
        node = self._node
        replicas = leaders = weak = leaderless = lag_max = 0
        async for partition in in_slices(list(node.partitions.online()), PARTITIONS_PER_TURN):
            replicas += 1
            leaderless += node.leaders.get(partition.group).leader < 0
            if partition.serves:
                leaders += 1
                weak += self._is_weak(partition)
                lag_max = max(lag_max, *(one.lag for one in partition.replica.progress()))
        return ClusterFigures(
            leaders=leaders,
            replicas=replicas,
            under_replicated=weak,
            leaderless=leaderless,
            elections=node.metrics.elections_won,
            is_controller=node.metadata.is_controller,
            replication_lag_max=lag_max,
            peer_connections=len(self._connected()),
            members=dict(Counter(self._members().values()) or Counter({ALIVE: 1})),
        )

    def _is_weak(self, partition: Partition) -> bool:
        assignment = self._node.metadata.state.assignment(partition.group)
        in_sync = self._node.leaders.get(partition.group).in_sync
        return assignment is not None and not set(assignment.replicas) <= set(in_sync)

    # --- the sources

    async def _ask_nodes(self, topic: str | None = None) -> tuple[NodeView, tuple[int, ...]]:
        """The answers of all nodes, and which nodes did not answer."""
        asked = sorted(self._leading_elsewhere(topic))
        others = sorted(self._connected())
        ask = partial(self._node.calls.ask_nodes, caller=BROKER)
        led, damaged = await asyncio.gather(
            ask(asked, methods.LIST_LED_PARTITIONS, None), ask(others, methods.LIST_DAMAGED_REPLICAS, None)
        )
        told = [row for rows in led.values() if not isinstance(rows, KafkaError) for row in rows]
        # A replica that its node does not report here shows as under-replicated all the same.
        troubles = [
            trouble
            for node, replicas in damaged.items()
            if not isinstance(replicas, KafkaError)
            for trouble in _troubles(node, replicas)
        ]
        silent = tuple(node for node in asked if isinstance(led[node], KafkaError))
        return await self._node_view(told, troubles), silent

    def _leading_elsewhere(self, topic: str | None = None) -> set[int]:
        """Nodes that know lags, held-back records or overdue transactions which this one does not know."""
        leaders = self._node.leaders
        groups = [
            group
            for one, group, assignment in self._node.metadata.state.groups()
            if (topic is None or one.name == topic) and _may_tell(one, assignment)
        ]
        found = {leaders.get(group).leader for group in [*groups, METADATA_GROUP]}
        return {one for one in found if one >= 0 and one != self._node.node_id}

    async def _list_led_partitions(self, caller: Caller, request: None) -> list[LedPartition]:
        return (await self._rows_here())[:MAX_ROWS]

    async def _rows_here(self) -> list[LedPartition]:
        node = self._node
        held = dict(node.undone_retention.held_back()) if node.is_made("undone_retention") else {}
        overdue = await node.transactions.overdue() if node.is_made("transactions") else {}
        led = in_slices([*self._led(), *self._own_led()], PARTITIONS_PER_TURN)
        return [
            _row(partition, held.get(partition), overdue.get(partition.group, ())) async for partition in led
        ]

    def _list_damaged_replicas(self, caller: Caller, request: None) -> list[DamagedReplica]:
        return list(self._troubles_here())[:MAX_ROWS]

    def _troubles_here(self) -> Iterator[DamagedReplica]:
        for name, _, found in self._node.partitions.replicas():
            if not isinstance(found, Partition):
                yield DamagedReplica(*name, str(found)[:MAX_REASON_CHARACTERS])
            elif (trouble := _trouble(found)) is not None:
                yield trouble
        yield from (trouble for own in self._own() if (trouble := _trouble(own)) is not None)

    def _led(self) -> list[Partition]:
        return [partition for partition in self._node.partitions.online() if partition.serves]

    def _own(self) -> list[Partition]:
        """The partition of the metadata; none while this node has not found its cluster yet."""
        opened = getattr(self._node.metadata, "partition", None)
        return [] if opened is None else [opened]

    def _own_led(self) -> list[Partition]:
        return [own for own in self._own() if self._node.metadata.is_controller]

    async def _node_view(
        self,
        elsewhere: Iterable[LedPartition],
        troubles_elsewhere: Iterable[tuple[ReplicaTrouble, bool]] = (),
    ) -> NodeView:
        led = [*elsewhere, *await self._rows_here()]
        troubles = [*_troubles(self._node.node_id, self._troubles_here()), *troubles_elsewhere]
        troubles.sort(key=lambda row: (row[0].topic, row[0].partition, row[0].node_id))
        return NodeView(
            self._members(),
            self._connected(),
            await _progress(led),
            offline=tuple(one for one, takes_part in troubles if not takes_part),
            damaged=tuple(one for one, takes_part in troubles if takes_part),
            held_back=tuple(self._held_back(led)),
            overdue=_overdue(led),
        )

    def _held_back(self, led: Iterable[LedPartition]) -> Iterator[HeldBackStatus]:
        for row in led:
            if row.held_back is not None:
                topic = self._node.metadata.state.topic_by_id(row.group.topic_id)
                if topic is not None:
                    partition = row.group.partition
                    yield HeldBackStatus(topic=topic.name, partition=partition, **row.held_back._asdict())

    def _members(self) -> dict[Replica, str]:
        links = self._node.links
        if links is None:
            return {}
        return {replica: member.state.name.lower() for replica, member in links.gossip.members().items()}

    def _connected(self) -> frozenset[int]:
        links = self._node.links
        return frozenset(links.network.connected()) if links is not None else frozenset()

    def _identity(self) -> NodeIdentity:
        from importlib.metadata import version  # slow to import, and often never needed

        node, config = self._node, self._node.config
        return NodeIdentity(
            replica=node.me,
            kafka=str(config.advertised),
            http=_shown(config.http),
            cluster=_shown(config.cluster_advertised),
            rack=config.rack_name,
            version=version("penstock"),
            https=config.http_encryption is not None,
            machine=config.machine,
        )

    def _quorum(self, seen: NodeView) -> QuorumStatus:
        partition = self._node.metadata.partition
        config = partition.replica.group_config
        known = self._node.leaders.get(METADATA_GROUP)
        controller = self._node.view.controller_id
        leader = controller if controller >= 0 else None
        voters = tuple(sorted(voter.node for voter in config.voters)) if config else ()
        progress = seen.progress.get(METADATA_GROUP, ())
        max_silence_ms = self._node.config.replication.election_timeout_ms
        return QuorumStatus(
            leader=leader,
            term=max(Term(known.term), partition.term),
            voters=voters,
            learners=tuple(sorted(learner.node for learner in config.learners)) if config else (),
            end_offset=self._node.metadata.applied,
            behind=voters_behind(voters, leader, progress, max_silence_ms),
            progress=progress,
        )


def _shown(address: Address | None) -> str | None:
    return None if address is None else str(address)


def _name(one: PartitionStatus) -> str:
    return str(TopicPartition(one.topic, one.partition))
