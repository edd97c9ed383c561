"""What /metrics says of a node."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.types import TopicPartition
from penstock.web.metrics import render
from penstock.web.source import take_snapshot

from .fakes import FakeGroup, FakeNode


def scrape(node: FakeNode) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = render(take_snapshot(node)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_requests_are_counted_by_api_with_their_errors() -> None:
    node = FakeNode()
    node.metrics.request_done(0, 0.002, False)
    node.metrics.request_done(0, 0.002, True)
    node.metrics.request_done(3, 0.1, False)
    found = scrape(node)
    assert found[labelled("penstock_requests_total", api="produce")] == 2
    assert found[labelled("penstock_request_errors_total", api="produce")] == 1
    assert found[labelled("penstock_requests_total", api="metadata")] == 1
    assert found[labelled("penstock_request_errors_total", api="metadata")] == 0


def test_an_api_nobody_knows_is_shown_by_its_number() -> None:
    node = FakeNode()
    node.metrics.request_done(9999, 0.001, True)
    assert scrape(node)[labelled("penstock_requests_total", api="9999")] == 1


def test_latency_buckets_are_cumulative_and_end_with_all_requests() -> None:
    node = FakeNode()
    for seconds in (0.0004, 0.004, 0.004, 60.0):
        node.metrics.request_done(1, seconds, False)
    found = scrape(node)
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="0.0005")] == 1
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="0.005")] == 3
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="30.0")] == 3
    assert found[labelled("penstock_request_seconds_bucket", api="fetch", le="+Inf")] == 4
    assert found[labelled("penstock_request_seconds_count", api="fetch")] == 4
    assert found[labelled("penstock_request_seconds_sum", api="fetch")] == pytest.approx(60.0084)


def test_partitions_show_size_and_offsets() -> None:
    node = FakeNode()
    node.hold("orders", 3, start=10, end=25, size_bytes=4096)
    found = scrape(node)
    where = {"topic": "orders", "partition": "3"}
    assert found[labelled("penstock_log_size_bytes", **where)] == 4096
    assert found[labelled("penstock_log_start_offset", **where)] == 10
    assert found[labelled("penstock_log_end_offset", **where)] == 25
    assert found[labelled("penstock_partitions")] == 1


def test_a_groups_lag_is_what_is_left_to_read() -> None:
    node = FakeNode()
    node.hold("orders", 0, start=0, end=100)
    offsets = {TopicPartition("orders", 0): 60, TopicPartition("deleted", 0): 5}
    node.groups.held = [FakeGroup("billing", "stable", 2, offsets), FakeGroup("idle", "empty", 0, {})]
    found = scrape(node)
    assert found[labelled("penstock_group_lag", group="billing", topic="orders", partition="0")] == 40
    assert labelled("penstock_group_lag", group="billing", topic="deleted", partition="0") not in found
    assert found[labelled("penstock_group_members", group="billing")] == 2
    assert found[labelled("penstock_groups", state="stable")] == 1
    assert found[labelled("penstock_groups", state="empty")] == 1


@pytest.mark.parametrize(
    ("committed", "lag"), [(11, 0), (2**63 - 1, 0), (10, 0), (4, 6), (3, 6), (-1, 6), (-(2**63), 6)]
)
def test_lag_is_between_nothing_and_all_that_the_log_holds(committed: int, lag: int) -> None:
    node = FakeNode()
    node.hold("orders", 0, start=4, end=10)
    node.groups.held = [FakeGroup("odd", "empty", 0, {TopicPartition("orders", 0): committed})]
    assert scrape(node)[labelled("penstock_group_lag", group="odd", topic="orders", partition="0")] == lag


def test_labels_with_quotes_and_newlines_survive() -> None:
    node = FakeNode()
    name = 'a "quoted"\nname\\'
    node.groups.held = [FakeGroup(name, "empty", 7, {})]
    assert scrape(node)[labelled("penstock_group_members", group=name)] == 7


def test_flushes_traffic_and_the_loop_are_there() -> None:
    node = FakeNode()
    node.flusher.cycles, node.flusher.seconds_total = 4, 0.5
    node.metrics.bytes_in, node.metrics.bytes_out = 11, 22
    node.metrics.connections, node.metrics.connections_total = 3, 9
    node.metrics.loop_lag_seconds = 0.25
    found = scrape(node)
    assert found[labelled("penstock_flush_seconds_count")] == 4
    assert found[labelled("penstock_flush_seconds_sum")] == 0.5
    assert found[labelled("penstock_received_bytes_total")] == 11
    assert found[labelled("penstock_sent_bytes_total")] == 22
    assert found[labelled("penstock_connections")] == 3
    assert found[labelled("penstock_connections_accepted_total")] == 9
    assert found[labelled("penstock_event_loop_lag_seconds")] == 0.25
    assert found[labelled("penstock_start_time_seconds")] == 1000.0


def test_a_node_that_is_not_ready_still_shows_its_counters() -> None:
    node = FakeNode(ready=False)
    node.metrics.bytes_in = 5
    node.hold("orders", 0, start=0, end=10)
    found = scrape(node)
    assert found[labelled("penstock_ready")] == 0
    assert found[labelled("penstock_received_bytes_total")] == 5
    assert found[labelled("penstock_partitions")] == 0


def test_two_nodes_in_one_process_do_not_share_figures() -> None:
    first, second = FakeNode(), FakeNode()
    first.metrics.bytes_in = 1
    second.metrics.bytes_in = 2
    assert scrape(first)[labelled("penstock_received_bytes_total")] == 1
    assert scrape(second)[labelled("penstock_received_bytes_total")] == 2


def test_every_metric_is_explained() -> None:
    text = render(take_snapshot(FakeNode())).decode()
    explained = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert explained == typed
    assert all(line.split(maxsplit=3)[3] for line in text.splitlines() if line.startswith("# HELP"))
