"""What the HTTP port reads from a node, and a still picture of it.

The node only bumps plain counters. A scrape copies them, with the partitions' and groups' figures, into a
Snapshot on the event loop, where nothing can change meanwhile; making text of it happens in a thread. A
Snapshot therefore holds numbers and strings, nothing that lives on.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from penstock.config import NodeConfig
from penstock.node.metadata.controller import RebalanceStep
from penstock.node.metrics import NodeMetrics
from penstock.node.queues.stats import QueueFigures
from penstock.node.status.cluster_status import ClusterFigures, ClusterStatus, NodeStatus, PartitionStatus
from penstock.node.subscriptions.stats import NO_PUSH, PushFigures
from penstock.types import EventSink, Offset, TopicPartition


class StoredLog(Protocol):
    @property
    def size_bytes(self) -> int: ...
    @property
    def segment_count(self) -> int: ...


class Partition(Protocol):
    @property
    def name(self) -> TopicPartition: ...
    @property
    def log(self) -> StoredLog: ...
    @property
    def start_offset(self) -> Offset: ...
    @property
    def high_watermark(self) -> Offset: ...


class Partitions(Protocol):
    def online(self) -> Iterable[Partition]: ...
    def offline_count(self) -> int: ...


class Group(Protocol):
    """A group as the coordinator sees it; `offsets` are the committed ones."""

    @property
    def group_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def member_count(self) -> int: ...
    @property
    def offsets(self) -> Mapping[TopicPartition, int]: ...


class Groups(Protocol):
    def summaries(self) -> Iterable[Group]: ...


class Flusher(Protocol):
    @property
    def cycles(self) -> int: ...
    @property
    def seconds_total(self) -> float: ...


class Queues(Protocol):
    """On the partitions that the node leads."""

    def figures(self) -> Iterable[QueueFigures]: ...


class Subscriptions(Protocol):
    """Whoever is attached to the node."""

    def figures(self) -> PushFigures: ...


class Status(Protocol):
    """The cluster as the node sees it."""

    async def picture(self) -> ClusterStatus: ...
    async def partitions(self, topic: str | None = None) -> list[PartitionStatus]: ...
    def nodes(self) -> list[NodeStatus]: ...
    def figures(self) -> ClusterFigures: ...


class Controller(Protocol):
    async def rebalance(self, *, dry_run: bool, at_once: int) -> RebalanceStep: ...
    async def decommission(self, node_id: int, *, on: bool = True) -> None: ...


class Source(Protocol):
    """A node. Everything but `ready` and `metrics` may be asked for only while it is ready."""

    @property
    def config(self) -> NodeConfig: ...
    @property
    def is_alone(self) -> bool: ...
    @property
    def status(self) -> Status: ...
    @property
    def controller(self) -> Controller: ...

    @property
    def ready(self) -> bool: ...
    @property
    def node_id(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def metrics(self) -> NodeMetrics: ...
    @property
    def events(self) -> EventSink: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def flusher(self) -> Flusher: ...
    @property
    def queues(self) -> Queues: ...
    @property
    def subscription_desk(self) -> Subscriptions: ...


class ApiFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One API's requests; `buckets` counts them by LATENCY_BUCKETS_SECONDS, the last one those beyond."""

    api_key: int
    requests: int
    errors: int
    seconds: float
    buckets: tuple[int, ...]


class PartitionFigures(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    size_bytes: int
    segments: int
    start_offset: int
    end_offset: int
    """What readers can reach: the high watermark."""


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


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that /metrics shows, at one moment."""

    ready: bool
    started_seconds: float
    bytes_in: int
    bytes_out: int
    connections: int
    connections_total: int
    loop_lag_seconds: float
    apis: tuple[ApiFigures, ...]
    partitions: tuple[PartitionFigures, ...] = ()
    offline_partitions: int = 0
    groups: tuple[GroupFigures, ...] = ()
    queues: tuple[QueueFigures, ...] = ()
    push: PushFigures = NO_PUSH
    cluster: ClusterFigures = NO_CLUSTER
    flush_cycles: int = 0
    flush_seconds: float = 0.0
    snapshot_seconds: float = 0.0
    """What taking this picture cost the event loop."""


def take_snapshot(source: Source) -> Snapshot:
    """Copies what a scrape needs. Runs on the node's event loop."""
    began = time.perf_counter()
    counters = source.metrics
    snapshot = Snapshot(
        ready=source.ready,
        started_seconds=counters.started_seconds,
        bytes_in=counters.bytes_in,
        bytes_out=counters.bytes_out,
        connections=counters.connections,
        connections_total=counters.connections_total,
        loop_lag_seconds=counters.loop_lag_seconds,
        apis=tuple(_apis(counters)),
    )
    if not source.ready:
        return snapshot
    partitions = tuple(_partition(partition) for partition in source.partitions.online())
    held = {(figures.topic, figures.partition): figures for figures in partitions}
    return msgspec.structs.replace(
        snapshot,
        partitions=partitions,
        offline_partitions=source.partitions.offline_count(),
        groups=tuple(_group(group, held) for group in source.groups.summaries()),
        queues=tuple(source.queues.figures()),
        push=source.subscription_desk.figures(),
        cluster=source.status.figures(),
        flush_cycles=source.flusher.cycles,
        flush_seconds=source.flusher.seconds_total,
        snapshot_seconds=time.perf_counter() - began,
    )


def _apis(counters: NodeMetrics) -> Iterable[ApiFigures]:
    for api_key, api in sorted(counters.apis.items()):
        yield ApiFigures(
            api_key=api_key,
            requests=api.requests,
            errors=api.errors,
            seconds=api.seconds,
            buckets=tuple(api.buckets),
        )


def _partition(partition: Partition) -> PartitionFigures:
    topic, number = partition.name
    return PartitionFigures(
        topic=topic,
        partition=number,
        size_bytes=partition.log.size_bytes,
        segments=partition.log.segment_count,
        start_offset=partition.start_offset,
        end_offset=partition.high_watermark,
    )


def _group(group: Group, held: Mapping[tuple[str, int], PartitionFigures]) -> GroupFigures:
    lags = (
        (topic, partition, _lag(offset, held[topic, partition]))
        for (topic, partition), offset in group.offsets.items()
        if (topic, partition) in held
    )
    return GroupFigures(
        group_id=group.group_id, state=group.state, members=group.member_count, lags=tuple(lags)
    )


def _lag(offset: int, figures: PartitionFigures) -> int:
    """What is left to read: between nothing and all that is held, whatever offset a client has committed."""
    return max(0, figures.end_offset - max(offset, figures.start_offset))
