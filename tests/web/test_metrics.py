"""The metrics of a node."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.node.coordination.group_manager import GroupSummary
from penstock.node.metrics import NodeMetrics
from penstock.node.status.cluster_status import ClusterFigures
from penstock.types import TopicPartition
from penstock.web.metrics import render
from penstock.web.snapshot import MemoryFigures, MetricsSnapshot, PartitionFigures, group_figures

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def snapshot(counters: NodeMetrics | None = None, *, ready: bool = True, **figures: Any) -> MetricsSnapshot:
    """The snapshot of a node with these counters and figures."""
    counters = counters or NodeMetrics(started_seconds=1000.0)
    return MetricsSnapshot(ready=ready, counters=counters.copy(), **figures)


def scrape(shown: MetricsSnapshot) -> Samples:
    text = render(shown).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def held(topic: str, partition: int, start: int, end: int, size_bytes: int = 0) -> PartitionFigures:
    return PartitionFigures(
        topic=topic,
        partition=partition,
        size_bytes=size_bytes,
        segments=1,
        start_offset=start,
        end_offset=end,
    )


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def counters() -> NodeMetrics:
    return NodeMetrics(started_seconds=1000.0)


def test_requests_are_counted_by_api_with_their_errors() -> None:
    node = counters()
    node.request_done(0, 0.002, False)
    node.request_done(0, 0.002, True)
    node.request_done(3, 0.1, False)
    found = scrape(snapshot(node))
    assert found[labelled("penstock_requests_total", api="produce")] == 2
    assert found[labelled("penstock_request_errors_total", api="produce")] == 1
    assert found[labelled("penstock_requests_total", api="metadata")] == 1
    assert found[labelled("penstock_request_errors_total", api="metadata")] == 0


def test_an_unknown_api_is_shown_by_its_number() -> None:
    node = counters()
    node.request_done(9999, 0.001, True)
    assert scrape(snapshot(node))[labelled("penstock_requests_total", api="9999")] == 1


def test_latency_buckets_are_cumulative_and_end_with_all_requests() -> None:
    node = counters()
    for seconds in (0.0004, 0.004, 0.004, 60.0):
        node.request_done(1, seconds, False)
    found = scrape(snapshot(node))
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="0.0005")] == 1
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="0.005")] == 3
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="30.0")] == 3
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="+Inf")] == 4
    assert found[labelled("penstock_request_seconds_count", api="fetch")] == 4
    assert found[labelled("penstock_request_seconds_sum", api="fetch")] == pytest.approx(60.0084)


def test_partitions_show_size_and_offsets() -> None:
    found = scrape(snapshot(partitions=(held("orders", 3, start=10, end=25, size_bytes=4096),)))
    where = {"topic": "orders", "partition": "3"}
    assert found[labelled("penstock_log_size_bytes", **where)] == 4096
    assert found[labelled("penstock_log_start_offset", **where)] == 10
    assert found[labelled("penstock_log_end_offset", **where)] == 25
    assert found[labelled("penstock_partitions")] == 1


def test_a_groups_lag_is_the_number_of_messages_that_are_left_to_read() -> None:
    offsets = {TopicPartition("orders", 0): 60, TopicPartition("deleted", 0): 5}
    groups = [GroupSummary("billing", "stable", 2, offsets), GroupSummary("idle", "empty", 0, {})]
    here = {("orders", 0): held("orders", 0, start=0, end=100)}
    found = scrape(snapshot(groups=tuple(group_figures(group, here) for group in groups)))
    assert found[labelled("penstock_group_lag", group="billing", topic="orders", partition="0")] == 40
    assert labelled("penstock_group_lag", group="billing", topic="deleted", partition="0") not in found
    assert found[labelled("penstock_group_members", group="billing")] == 2
    assert found[labelled("penstock_groups", state="stable")] == 1
    assert found[labelled("penstock_groups", state="empty")] == 1


@pytest.mark.parametrize(
    ("committed", "lag"), [(11, 0), (2**63 - 1, 0), (10, 0), (4, 6), (3, 6), (-1, 6), (-(2**63), 6)]
)
def test_lag_is_between_zero_and_the_size_of_the_log(committed: int, lag: int) -> None:
    group = GroupSummary("odd", "empty", 0, {TopicPartition("orders", 0): committed})
    figures = group_figures(group, {("orders", 0): held("orders", 0, start=4, end=10)})
    assert figures.lags == (("orders", 0, lag),)


def test_labels_with_quotes_and_newlines_survive() -> None:
    name = 'a "quoted"\nname\\'
    figures = group_figures(GroupSummary(name, "empty", 7, {}), {})
    assert scrape(snapshot(groups=(figures,)))[labelled("penstock_group_members", group=name)] == 7


def test_flushes_traffic_and_the_event_loop_have_metrics() -> None:
    node = counters()
    node.bytes_in, node.bytes_out = 11, 22
    node.http_bytes_in, node.http_bytes_out = 33, 44
    node.connections, node.connections_total = 3, 9
    node.loop_lag_seconds = 0.25
    node.slow_turns = 2
    found = scrape(snapshot(node, flush_cycles=4, flush_seconds=0.5, open_log_files=7, log_files_opened=8))
    assert found[labelled("penstock_open_log_files")] == 7
    assert found[labelled("penstock_log_files_opened_total")] == 8
    assert found[labelled("penstock_flush_seconds_count")] == 4
    assert found[labelled("penstock_flush_seconds_sum")] == 0.5
    assert found[labelled("penstock_received_bytes_total")] == 11
    assert found[labelled("penstock_sent_bytes_total")] == 22
    assert found[labelled("penstock_http_received_bytes_total")] == 33
    assert found[labelled("penstock_http_sent_bytes_total")] == 44
    assert found[labelled("penstock_connections")] == 3
    assert found[labelled("penstock_connections_accepted_total")] == 9
    assert found[labelled("penstock_event_loop_lag_seconds")] == 0.25
    assert found[labelled("penstock_event_loop_slow_turns_total")] == 2
    assert found[labelled("penstock_start_time_seconds")] == 1000.0


def test_the_memory_of_clients_has_metrics_for_each_port() -> None:
    figures = MemoryFigures(port="kafka", reserved_bytes=5_000, waits=3)
    found = scrape(snapshot(memory=(figures,)))
    assert found[labelled("penstock_reserved_memory_bytes", port="kafka")] == 5_000
    assert found[labelled("penstock_memory_waits_total", port="kafka")] == 3


def test_a_node_that_is_not_ready_still_shows_its_counters() -> None:
    node = counters()
    node.bytes_in = 5
    found = scrape(snapshot(node, ready=False))
    assert found[labelled("penstock_ready")] == 0
    assert found[labelled("penstock_received_bytes_total")] == 5
    assert found[labelled("penstock_partitions")] == 0


def test_two_nodes_in_one_process_do_not_share_figures() -> None:
    first, second = counters(), counters()
    first.bytes_in = 1
    second.bytes_in = 2
    assert scrape(snapshot(first))[labelled("penstock_received_bytes_total")] == 1
    assert scrape(snapshot(second))[labelled("penstock_received_bytes_total")] == 2


def test_the_cluster_has_metrics() -> None:
    figures = ClusterFigures(
        leaders=1,
        replicas=2,
        under_replicated=3,
        leaderless=4,
        elections=5,
        is_controller=True,
        replication_lag_max=6,
        peer_connections=7,
        members={"alive": 8},
    )
    found = scrape(snapshot(cluster=figures))
    assert found[labelled("penstock_members", state="alive")] == 8
    assert found[labelled("penstock_is_controller")] == 1
    assert found[labelled("penstock_leaders")] == 1
    assert found[labelled("penstock_replicas")] == 2
    assert found[labelled("penstock_under_replicated_partitions")] == 3
    assert found[labelled("penstock_leaderless_partitions")] == 4
    assert found[labelled("penstock_elections_won_total")] == 5
    assert found[labelled("penstock_replication_lag_max")] == 6
    assert found[labelled("penstock_peer_connections")] == 7


def test_every_metric_is_explained() -> None:
    text = render(snapshot()).decode()
    explained = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert explained == typed
    assert all(line.split(maxsplit=3)[3] for line in text.splitlines() if line.startswith("# HELP"))
