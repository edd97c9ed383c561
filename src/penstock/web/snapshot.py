"""A snapshot of a node's counters and figures, for /metrics.

The node only increments plain counters. A scrape copies them, with the figures of partitions and groups, into a
MetricsSnapshot on the event loop, in slices; a thread formats the text. So a MetricsSnapshot has no reference to an
object that changes. The figures of one partition, group or queue are of one moment.
"""

import time
from collections.abc import Container, Mapping
from typing import cast

import msgspec

from penstock.node import Node
from penstock.node.cliques import CliqueFigures
from penstock.node.coordination.group_manager import GroupSummary
from penstock.node.coordination.undone_retention import HeldBack
from penstock.node.limits.memory import MemoryBudget
from penstock.node.metrics import NodeMetrics
from penstock.node.queues.stats import QueueFigures
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.slices import in_slices
from penstock.node.status.cluster_status import ClusterFigures
from penstock.node.subscriptions.stats import NO_PUSH, PushFigures
from penstock.node.transactions.figures import TransactionFigures
from penstock.types import Isolation, TopicPartition

ROWS_PER_TURN = 200
"""Partitions and groups that are copied before other work gets its turn; each takes up to 20 µs."""


class PartitionFigures(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    size_bytes: int
    segments: int
    start_offset: int
    end_offset: int
    """Readers get no farther: the high watermark."""
    unstable: int = 0
    """Offsets from the last stable one to the end, where this node leads. Readers of committed records wait for
    them."""


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    state: str
    members: int
    lags: tuple[tuple[str, int, int], ...]
    """Topic, partition, and how many messages there are from the committed offset to the end."""


NO_CLUSTER = ClusterFigures(
    leaders=0,
    replicas=0,
    under_replicated=0,
    leaderless=0,
    elections=0,
    is_controller=False,
    replication_lag_max=0,
    peer_connections=0,
    members={},
)


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of all clients of one port."""

    port: str
    reserved_bytes: int
    waits: int
    """How often a request or response had to wait for memory."""


class MetricsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that /metrics shows, at one moment."""

    ready: bool
    counters: NodeMetrics
    """A copy. A node that is not ready shows nothing else."""
    memory: tuple[MemoryFigures, ...] = ()
    open_log_files: int = 0
    fetch_sessions: int = 0
    fetch_session_partitions: int = 0
    fetch_sessions_opened: int = 0
    fetch_sessions_evicted: int = 0
    log_files_opened: int = 0
    partitions: tuple[PartitionFigures, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    offline_partitions: int = 0
    groups: tuple[GroupFigures, ...] = ()
    queues: tuple[QueueFigures, ...] = ()
    transactions: TransactionFigures = TransactionFigures()
    push: PushFigures = NO_PUSH
    cliques: CliqueFigures = CliqueFigures()
    cluster: ClusterFigures = NO_CLUSTER
    flush_cycles: int = 0
    flush_seconds: float = 0.0
    snapshot_seconds: float = 0.0
    """How long taking this snapshot took, in slices among other work."""


async def take_snapshot(node: Node) -> MetricsSnapshot:
    """Copies what a scrape needs, in slices. Runs on the node's event loop."""
    began = time.perf_counter()
    memory = (_memory("kafka", node.client_memory), _memory("http", node.http_memory))
    snapshot = MetricsSnapshot(ready=node.ready, counters=node.metrics.copy(), memory=memory)
    if not node.ready:
        return snapshot
    online = in_slices(list(node.partitions.online()), ROWS_PER_TURN)
    partitions = tuple([_partition(partition) async for partition in online])
    held = {(figures.topic, figures.partition): figures for figures in partitions}
    groups = in_slices(node.groups.summaries(cast(Container[TopicPartition], held)), ROWS_PER_TURN)
    return msgspec.structs.replace(
        snapshot,
        partitions=partitions,
        held_back=tuple(held for _, held in node.undone_retention.held_back()),
        offline_partitions=node.partitions.offline_count(),
        groups=tuple([group_figures(group, held) async for group in groups]),
        queues=tuple(await node.queues.manager.figures()),
        transactions=await node.transactions.figures(),
        push=node.subscriptions.figures(),
        cliques=node.cliques.figures(),
        cluster=await node.status.figures(),
        open_log_files=len(node.storage.disk.open_files),
        fetch_sessions=len(node.fetch_sessions),
        fetch_session_partitions=node.fetch_sessions.rows,
        fetch_sessions_opened=node.fetch_sessions.opened,
        fetch_sessions_evicted=node.fetch_sessions.evicted,
        log_files_opened=node.storage.disk.open_files.opened,
        flush_cycles=node.storage.flusher.cycles,
        flush_seconds=node.storage.flusher.seconds_total,
        snapshot_seconds=time.perf_counter() - began,
    )


def _memory(port: str, budget: MemoryBudget) -> MemoryFigures:
    return MemoryFigures(port=port, reserved_bytes=budget.used, waits=budget.waits)


def _partition(partition: Partition) -> PartitionFigures:
    topic, number = partition.name
    return PartitionFigures(
        topic=topic,
        partition=number,
        size_bytes=partition.log.size_bytes,
        segments=partition.log.segment_count,
        start_offset=partition.start_offset,
        end_offset=partition.high_watermark,
        unstable=_unstable(partition),
    )


def _unstable(partition: Partition) -> int:
    if not partition.leads:
        return 0
    return max(0, partition.high_watermark - partition.end_for(Isolation.READ_COMMITTED))


def group_figures(group: GroupSummary, held: Mapping[tuple[str, int], PartitionFigures]) -> GroupFigures:
    """A group, with its lag on those of the partitions that are held here."""
    return GroupFigures(
        group_id=group.group_id,
        state=group.state,
        members=group.member_count,
        lags=tuple(
            (*where, _lag(offset, held[where])) for where, offset in group.offsets.items() if where in held
        ),
    )


def _lag(offset: int, figures: PartitionFigures) -> int:
    """Messages that are left to read: from 0 to all that the log holds, whatever offset a client has committed."""
    return max(0, figures.end_offset - max(offset, figures.start_offset))
