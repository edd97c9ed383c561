"""A node that is nothing but figures."""

from dataclasses import dataclass, field

from penstock.node.metrics import NodeMetrics
from penstock.types import Offset, TopicPartition


@dataclass
class FakeLog:
    size_bytes: int = 0
    segment_count: int = 1


@dataclass
class FakePartition:
    name: TopicPartition
    log: FakeLog
    start_offset: Offset
    high_watermark: Offset


@dataclass
class FakePartitions:
    held: list[FakePartition] = field(default_factory=list)
    offline: int = 0

    def online(self) -> list[FakePartition]:
        return self.held

    def offline_count(self) -> int:
        return self.offline


@dataclass
class FakeGroup:
    group_id: str
    state: str
    member_count: int
    offsets: dict[TopicPartition, int]


@dataclass
class FakeGroups:
    held: list[FakeGroup] = field(default_factory=list)

    def summaries(self) -> list[FakeGroup]:
        return self.held


@dataclass
class FakeFlusher:
    cycles: int = 0
    seconds_total: float = 0.0


@dataclass
class FakeNode:
    ready: bool = True
    node_id: int = 1
    cluster_id: str = "test-cluster"
    metrics: NodeMetrics = field(default_factory=lambda: NodeMetrics(started_seconds=1000.0))
    partitions: FakePartitions = field(default_factory=FakePartitions)
    groups: FakeGroups = field(default_factory=FakeGroups)
    flusher: FakeFlusher = field(default_factory=FakeFlusher)

    def hold(self, topic: str, partition: int, start: int, end: int, size_bytes: int = 0) -> None:
        where = TopicPartition(topic, partition)
        log = FakeLog(size_bytes=size_bytes)
        self.partitions.held.append(FakePartition(where, log, Offset(start), Offset(end)))
