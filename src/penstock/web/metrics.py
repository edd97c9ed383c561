"""A MetricsSnapshot as Prometheus text.

Names follow Prometheus' conventions: base units, `_total` for counters. Every scrape has a registry of its own, so that
brokers in one process do not share figures.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.kafka.wire.apis import ApiKey
from penstock.node.coordination.undone_retention import HeldBack
from penstock.node.metrics import LATENCY_BUCKETS_SECONDS, ApiMetrics
from penstock.node.status.cluster_status import ClusterFigures
from penstock.web.queue_metrics import clique_metrics, push_metrics, queue_metrics
from penstock.web.snapshot import GroupFigures, MemoryFigures, MetricsSnapshot, PartitionFigures
from penstock.web.transaction_metrics import transaction_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(snapshot: MetricsSnapshot) -> bytes:
    """The text of a scrape. Reads only the snapshot and /proc, so it may run in any thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        yield from _node(self._snapshot)
        yield from _apis(self._snapshot.counters.apis)
        yield _throttled(self._snapshot.counters.throttled)
        yield from _memory(self._snapshot.memory)
        yield from _partitions(self._snapshot.partitions)
        yield from _held_back(self._snapshot.held_back)
        yield from _groups(self._snapshot.groups)
        yield from transaction_metrics(self._snapshot.transactions, self._snapshot.partitions)
        yield from queue_metrics(self._snapshot.queues)
        yield from push_metrics(self._snapshot.push)
        yield from clique_metrics(self._snapshot.cliques)
        yield from _cluster(self._snapshot.cluster)


def _node(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    counters = snapshot.counters
    yield _gauge("ready", "1 when the node can serve", snapshot.ready)
    yield _gauge(
        "start_time_seconds", "When the node was started, in seconds since 1970", counters.started_seconds
    )
    yield _counter("received_bytes", "Bytes received from Kafka clients", counters.bytes_in)
    yield _counter("sent_bytes", "Bytes sent to Kafka clients", counters.bytes_out)
    yield _counter(
        "http_received_bytes", "Bytes of HTTP requests that publish records", counters.http_bytes_in
    )
    yield _counter(
        "http_sent_bytes",
        "Bytes of HTTP responses and WebSocket frames with records",
        counters.http_bytes_out,
    )
    yield _gauge("connections", "Open connections of Kafka clients", counters.connections)
    yield _counter(
        "connections", "Connections that were ever accepted", counters.connections_total, "accepted"
    )
    yield _gauge("fetch_sessions", "Fetch sessions of consumers", snapshot.fetch_sessions)
    yield _gauge(
        "fetch_session_partitions", "Partitions of all fetch sessions", snapshot.fetch_session_partitions
    )
    yield _counter(
        "fetch_sessions", "Fetch sessions that were ever opened", snapshot.fetch_sessions_opened, "opened"
    )
    yield _counter(
        "fetch_sessions", "Fetch sessions that made room", snapshot.fetch_sessions_evicted, "evicted"
    )
    yield _counter("failed_logins", "Logins that failed, on all ports", counters.failed_logins)
    yield _gauge(
        "event_loop_lag_seconds", "How late the event loop ran its last timer", counters.loop_lag_seconds
    )
    yield _counter(
        "event_loop_slow_turns", "Times that one piece of work held the loop over 250 ms", counters.slow_turns
    )
    yield _gauge("offline_partitions", "Partitions that could not be opened", snapshot.offline_partitions)
    yield _gauge("open_log_files", "Segments of logs whose file is open", snapshot.open_log_files)
    yield _counter(
        "log_files_opened", "Times that the file of a segment was opened", snapshot.log_files_opened
    )
    yield _gauge(
        "scrape_loop_seconds",
        "How long collecting these figures took, among other work",
        snapshot.snapshot_seconds,
    )
    yield SummaryMetricFamily(
        "penstock_flush_seconds",
        "Flush cycles, each for all partitions with new data",
        count_value=snapshot.flush_cycles,
        sum_value=snapshot.flush_seconds,
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float, suffix: str = "") -> Metric:
    full_name = f"penstock_{name}_{suffix}" if suffix else f"penstock_{name}"
    return CounterMetricFamily(full_name, text, value=value)


def _apis(apis: Mapping[int, ApiMetrics]) -> Iterator[Metric]:
    requests = CounterMetricFamily("penstock_requests", "Requests answered", labels=["api"])
    errors = CounterMetricFamily("penstock_request_errors", "Requests that failed", labels=["api"])
    seconds = HistogramMetricFamily(
        "penstock_request_seconds", "Time from a request's arrival to its answer", labels=["api"]
    )
    for api_key, figures in sorted(apis.items()):
        api = api_name(api_key)
        requests.add_metric([api], figures.requests)
        errors.add_metric([api], figures.errors)
        seconds.add_metric([api], _cumulative(figures.buckets), figures.seconds)
    yield from (requests, errors, seconds)


def _throttled(counts: Mapping[str, int]) -> Metric:
    throttled = CounterMetricFamily(
        "penstock_throttled_requests", "Requests and connections above a quota", labels=["quota"]
    )
    for quota, count in counts.items():
        throttled.add_metric([quota], count)
    return throttled


def _memory(ports: Iterable[MemoryFigures]) -> Iterator[Metric]:
    reserved = GaugeMetricFamily(
        "penstock_reserved_memory_bytes", "Bytes held for requests and responses of clients", labels=["port"]
    )
    waits = CounterMetricFamily(
        "penstock_memory_waits", "Requests and responses that waited for memory", labels=["port"]
    )
    for figures in ports:
        reserved.add_metric([figures.port], figures.reserved_bytes)
        waits.add_metric([figures.port], figures.waits)
    yield from (reserved, waits)


def api_name(api_key: int) -> str:
    """The API's name, or the number of an unknown one."""
    try:
        return ApiKey(api_key).name.lower()
    except ValueError:
        return str(api_key)


def _cumulative(buckets: Sequence[int]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATENCY_BUCKETS_SECONDS), "+Inf"]
    return list(zip(bounds, accumulate(buckets), strict=True))


def _partitions(partitions: tuple[PartitionFigures, ...]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    sizes = GaugeMetricFamily("penstock_log_size_bytes", "Bytes of a partition's log", labels=labels)
    segments = GaugeMetricFamily("penstock_log_segments", "Segments of a partition's log", labels=labels)
    starts = GaugeMetricFamily(
        "penstock_log_start_offset", "The first offset that can be read", labels=labels
    )
    ends = GaugeMetricFamily(
        "penstock_log_end_offset", "The offset after the last committed one", labels=labels
    )
    for figures in partitions:
        where = [figures.topic, str(figures.partition)]
        sizes.add_metric(where, figures.size_bytes)
        segments.add_metric(where, figures.segments)
        starts.add_metric(where, figures.start_offset)
        ends.add_metric(where, figures.end_offset)
    yield _gauge("partitions", "Partitions that this node serves", len(partitions))
    yield from (sizes, segments, starts, ends)


HELD_BACK = {
    "bytes": "Bytes beyond retention that are kept because a queue has not settled them",
    "records": "Records beyond retention that are kept because a queue has not settled them",
    "seconds": "How much older than retention.ms the oldest records are that are kept because of a queue",
}


def _held_back(rows: tuple[HeldBack, ...]) -> Iterator[Metric]:
    families = {
        unit: GaugeMetricFamily(
            f"penstock_retention_held_back_{unit}", text, labels=["topic", "partition", "queue"]
        )
        for unit, text in HELD_BACK.items()
    }
    for held in rows:
        where = [held.topic, str(held.partition), held.queue or ""]
        families["bytes"].add_metric(where, held.size_bytes)
        families["records"].add_metric(where, held.records)
        families["seconds"].add_metric(where, held.overdue_ms / 1000)
    yield from families.values()


def _groups(groups: tuple[GroupFigures, ...]) -> Iterator[Metric]:
    states = GaugeMetricFamily("penstock_groups", "Consumer groups by state", labels=["state"])
    for state, count in sorted(Counter(group.state for group in groups).items()):
        states.add_metric([state], count)
    members = GaugeMetricFamily("penstock_group_members", "Members of a consumer group", labels=["group"])
    lag = GaugeMetricFamily(
        "penstock_group_lag",
        "Messages between a group's committed offset and the partition's end",
        labels=["group", "topic", "partition"],
    )
    for group in groups:
        members.add_metric([group.group_id], group.members)
        for topic, partition, behind in group.lags:
            lag.add_metric([group.group_id, topic, str(partition)], behind)
    yield from (states, members, lag)


def _cluster(figures: ClusterFigures) -> Iterator[Metric]:
    yield _gauge("leaders", "Partitions that this node leads", figures.leaders)
    yield _gauge("replicas", "Replicas that this node holds", figures.replicas)
    yield _gauge(
        "under_replicated_partitions",
        "Partitions that this node leads and that not all of their replicas keep up with",
        figures.under_replicated,
    )
    yield _gauge(
        "leaderless_partitions",
        "Partitions of which this node holds a replica and knows no leader",
        figures.leaderless,
    )
    yield _counter("elections_won", "How often this node became a partition's leader", figures.elections)
    yield _gauge("is_controller", "1 if this node is the controller", figures.is_controller)
    yield _gauge(
        "replication_lag_max",
        "Messages that the slowest follower of any partition led here is behind",
        figures.replication_lag_max,
    )
    yield _gauge("peer_connections", "Other nodes that this node is connected to", figures.peer_connections)
    members = GaugeMetricFamily("penstock_members", "Nodes by their state in gossip", labels=["state"])
    for state, count in sorted(figures.members.items()):
        members.add_metric([state], count)
    yield members
