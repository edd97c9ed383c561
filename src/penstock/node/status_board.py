"""Draws the picture of `status` for a node: looks at its own sources, and asks the other nodes for theirs."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from penstock.config import Address
from penstock.errors import PenstockError
from penstock.node.partition import Partition, ReplicaFacts
from penstock.node.status import (
    ALIVE,
    ClusterFigures,
    ClusterStatus,
    NodeStatus,
    PartitionStatus,
    QuorumStatus,
    ReplicaStatus,
    Seat,
    Sight,
    draw_moves,
    draw_nodes,
    draw_partitions,
)
from penstock.node.view import METADATA_GROUP
from penstock.types import GroupId, NodeId, Replica, Term, TopicPartition

if TYPE_CHECKING:
    from penstock.node.node import Node

PROGRESS = 32
"""The method's number between nodes; those of the controller are below."""
ANSWER_MS = 2_000
"""How long a node may take to answer: a person waits, and a picture without that node's lags is better than none."""
MAX_ROWS = 200_000
"""In one answer: as many as a cluster may have partitions."""

Progress = Mapping[GroupId, tuple[ReplicaStatus, ...]]


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """On the wire: one partition that the answering node leads."""

    topic_id: bytes
    partition: int
    progress: tuple[tuple[int, int, int, int, int, bool], ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Row]).decode


def _row(partition: Partition) -> _Row:
    width = max(1, partition.log.end_index - partition.log.first_index)
    per_entry = partition.log.size_bytes / width
    return _Row(
        partition.group.topic_id.bytes,
        partition.group.partition,
        tuple(_replica(one, per_entry, width) for one in partition.progress()),
    )


def _replica(one: ReplicaFacts, per_entry: float, width: int) -> tuple[int, int, int, int, int, bool]:
    lag = max(0, one.lag)
    behind = int(min(lag, width) * per_entry)
    return one.node_id, one.end_offset, lag, behind, max(0, one.silent_ms), one.learner


def _rows(rows: Iterable[_Row]) -> Iterator[tuple[GroupId, tuple[ReplicaStatus, ...]]]:
    for row in rows:
        yield (
            GroupId(UUID(bytes=row.topic_id), row.partition),
            tuple(
                ReplicaStatus(
                    node_id=node_id, end_offset=end, lag=lag, bytes_behind=behind, silent_ms=silent, learner=learner
                )
                for node_id, end, lag, behind, silent, learner in row.progress
            ),
        )  # fmt: skip


class StatusBoard:
    """Draws the picture for one node, and answers other nodes that draw theirs."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        if node.links is not None:
            node.links.rpc.handle(PROGRESS, self._serve_progress)

    async def picture(self) -> ClusterStatus:
        """Everything, with the lags of partitions that other nodes lead: one call to each node."""
        node = self._node
        sight, unanswered = await self._look_around()
        state = node.metadata.state
        partitions = list(draw_partitions(state, node.view, sight))
        quorum = self._quorum(sight)
        leaderless = tuple(_name(one) for one in partitions if one.leader is None)
        weak = tuple(_name(one) for one in partitions if one.under_replicated and one.leader is not None)
        return ClusterStatus(
            cluster_id=node.cluster_id,
            node_id=node.node_id,
            alone=node.is_alone,
            healthy=not leaderless and not weak and quorum.leader is not None,
            controller=quorum.leader,
            nodes=tuple(draw_nodes(state, self._seat(), sight, quorum, partitions)),
            partitions=tuple(partitions),
            under_replicated=weak,
            leaderless=leaderless,
            moves=tuple(draw_moves(state, sight)),
            metadata=quorum,
            unanswered=unanswered,
        )

    async def partitions(self, topic: str | None = None) -> list[PartitionStatus]:
        """With lags; of one topic or of all."""
        sight, _ = await self._look_around(topic)
        return list(draw_partitions(self._node.metadata.state, self._node.view, sight, topic))

    def nodes(self) -> list[NodeStatus]:
        """Without asking anybody."""
        sight = self._sight({})
        state = self._node.metadata.state
        partitions = list(draw_partitions(state, self._node.view, sight))
        return draw_nodes(state, self._seat(), sight, self._quorum(sight), partitions)

    def figures(self) -> ClusterFigures:
        node = self._node
        held = list(node.partitions.online())
        led = [partition for partition in held if partition.serves]
        members = Counter(self._members().values()) or Counter({ALIVE: 1})
        leaders = (node.leaders.get(partition.group).leader for partition in held)
        return ClusterFigures(
            leaders=len(led),
            replicas=len(held),
            under_replicated=sum(map(self._is_weak, led)),
            leaderless=sum(leader < 0 for leader in leaders),
            elections=node.metrics.elections_won,
            is_controller=node.metadata.is_controller,
            replication_lag_max=max((one.lag for each in led for one in each.progress()), default=0),
            peer_connections=len(self._connected()),
            members=dict(members),
        )

    def _is_weak(self, partition: Partition) -> bool:
        assignment = self._node.metadata.state.assignment(partition.group)
        in_sync = self._node.leaders.get(partition.group).in_sync
        return assignment is not None and not set(assignment.replicas) <= set(in_sync)

    # --- the sources

    async def _look_around(self, topic: str | None = None) -> tuple[Sight, tuple[int, ...]]:
        """What all nodes know, and who did not answer."""
        asked = sorted(self._leading_elsewhere(topic))
        answers = await asyncio.gather(*(self._ask(NodeId(one)) for one in asked))
        told = {group: row for answer in answers for group, row in (answer or {}).items()}
        silent = tuple(one for one, answer in zip(asked, answers, strict=True) if answer is None)
        return self._sight(told), silent

    def _leading_elsewhere(self, topic: str | None = None) -> set[int]:
        """Nodes that know lags which this one does not."""
        leaders = self._node.leaders
        groups = [
            group
            for one, group, assignment in self._node.metadata.state.groups()
            if (topic is None or one.name == topic) and len(assignment.shown) > 1
        ]
        found = {leaders.get(group).leader for group in [*groups, METADATA_GROUP]}
        return {one for one in found if one >= 0 and one != self._node.node_id}

    async def _ask(self, node: NodeId) -> Progress | None:
        links = self._node.links
        if links is None:
            return None
        try:
            answer = await links.rpc.call(node, PROGRESS, b"", ANSWER_MS)
            return dict(_rows(_decode(answer)))
        except (PenstockError, msgspec.DecodeError, ValueError):
            return None

    def _serve_progress(self, sender: NodeId, question: memoryview) -> bytes:
        led = [*self._led(), *self._own_led()]
        return _encode([_row(partition) for partition in led[:MAX_ROWS]])

    def _led(self) -> list[Partition]:
        return [partition for partition in self._node.partitions.online() if partition.serves]

    def _own_led(self) -> list[Partition]:
        metadata = self._node.metadata
        return [metadata.partition] if metadata.is_controller else []

    def _sight(self, elsewhere: Progress) -> Sight:
        here = dict(_rows(map(_row, [*self._led(), *self._own_led()])))
        return Sight(self._members(), self._connected(), {**elsewhere, **here})

    def _members(self) -> dict[Replica, str]:
        links = self._node.links
        if links is None:
            return {}
        return {replica: member.state.name.lower() for replica, member in links.gossip.members().items()}

    def _connected(self) -> frozenset[int]:
        links = self._node.links
        return frozenset(links.network.connected()) if links is not None else frozenset()

    def _seat(self) -> Seat:
        from importlib.metadata import version  # slow to load, for somebody who may never ask

        node, config = self._node, self._node.config
        return Seat(
            replica=node.me,
            kafka=str(config.advertised),
            http=_shown(config.http),
            cluster=_shown(config.cluster_advertised),
            rack=config.rack,
            version=version("penstock"),
        )

    def _quorum(self, sight: Sight) -> QuorumStatus:
        partition = self._node.metadata.partition
        config = partition.consensus.core.config
        known = self._node.leaders.get(METADATA_GROUP)
        leader = self._node.view.controller_id
        return QuorumStatus(
            leader=leader if leader >= 0 else None,
            term=max(Term(known.term), partition.term),
            voters=tuple(sorted(voter.node for voter in config.voters)) if config else (),
            learners=tuple(sorted(learner.node for learner in config.learners)) if config else (),
            end_offset=self._node.metadata.applied,
            progress=sight.progress.get(METADATA_GROUP, ()),
        )


def _shown(address: Address | None) -> str | None:
    return None if address is None else str(address)


def _name(one: PartitionStatus) -> str:
    return str(TopicPartition(one.topic, one.partition))
