"""A node that is nothing but figures."""

from dataclasses import dataclass, field

from penstock.config import NodeConfig
from penstock.errors import KafkaError
from penstock.node.metadata.controller import RebalanceStep
from penstock.node.metrics import NodeMetrics
from penstock.node.queues.stats import QueueFigures
from penstock.node.status.cluster_status import (
    ClusterFigures,
    ClusterStatus,
    NodeStatus,
    PartitionStatus,
    QuorumStatus,
)
from penstock.node.subscriptions.stats import NO_PUSH, PushFigures
from penstock.types import NO_EVENTS, EventSink, Offset, TopicPartition


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
class FakeQueues:
    held: list[QueueFigures] = field(default_factory=list)

    def figures(self) -> list[QueueFigures]:
        return self.held


@dataclass
class FakeSubscriptions:
    shown: PushFigures = NO_PUSH

    def figures(self) -> PushFigures:
        return self.shown


FIGURES = ClusterFigures(
    leaders=1,
    replicas=1,
    under_replicated=0,
    leaderless=0,
    elections=0,
    is_controller=True,
    replication_lag_max=0,
    peer_connections=0,
    members={"alive": 1},
)
QUORUM = QuorumStatus(leader=1, term=0, voters=(1,), learners=(), end_offset=0)


@dataclass
class FakeStatus:
    held: list[PartitionStatus] = field(default_factory=list)
    shown: ClusterFigures = FIGURES

    async def picture(self) -> ClusterStatus:
        return ClusterStatus(
            cluster_id="test-cluster",
            node_id=1,
            alone=False,
            healthy=True,
            controller=1,
            nodes=tuple(self.nodes()),
            partitions=tuple(self.held),
            under_replicated=(),
            leaderless=(),
            moves=(),
            metadata=QUORUM,
            unanswered=(),
        )

    async def partitions(self, topic: str | None = None) -> list[PartitionStatus]:
        return [one for one in self.held if topic in (None, one.topic)]

    def nodes(self) -> list[NodeStatus]:
        return []

    def figures(self) -> ClusterFigures:
        return self.shown


@dataclass
class FakeController:
    """Notes what it is asked for, or refuses."""

    refuses: KafkaError | None = None
    asked: list[tuple[str, int, bool]] = field(default_factory=list)

    async def rebalance(self, *, dry_run: bool, at_once: int) -> RebalanceStep:
        self._note("rebalance", at_once, dry_run)
        return RebalanceStep(begun=(), handed_over=(), moves_left=(), leads_left=(), under_way=0)

    async def decommission(self, node_id: int, *, on: bool = True) -> None:
        self._note("decommission", node_id, on)

    def _note(self, what: str, number: int, flag: bool) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.asked.append((what, number, flag))


@dataclass
class FakeNode:
    ready: bool = True
    is_alone: bool = False
    node_id: int = 1
    config: NodeConfig = field(default_factory=NodeConfig)
    status: FakeStatus = field(default_factory=FakeStatus)
    controller: FakeController = field(default_factory=FakeController)
    cluster_id: str = "test-cluster"
    metrics: NodeMetrics = field(default_factory=lambda: NodeMetrics(started_seconds=1000.0))
    events: EventSink = NO_EVENTS
    partitions: FakePartitions = field(default_factory=FakePartitions)
    groups: FakeGroups = field(default_factory=FakeGroups)
    flusher: FakeFlusher = field(default_factory=FakeFlusher)
    queues: FakeQueues = field(default_factory=FakeQueues)
    subscription_desk: FakeSubscriptions = field(default_factory=FakeSubscriptions)

    def hold(self, topic: str, partition: int, start: int, end: int, size_bytes: int = 0) -> None:
        where = TopicPartition(topic, partition)
        log = FakeLog(size_bytes=size_bytes)
        self.partitions.held.append(FakePartition(where, log, Offset(start), Offset(end)))
