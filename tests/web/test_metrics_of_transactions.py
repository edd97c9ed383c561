"""Transactions in the metrics and in the report about the cluster."""

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from penstock import Broker
from penstock.node.status.cluster_status import ClusterStatus
from penstock.node.transactions import figures
from penstock.node.transactions.figures import OVERDUE_AFTER_MS, OpenTransaction, TransactionFigures
from penstock.transactions import NEVER_MS
from penstock.web.transaction_metrics import UNSTABLE_PARTITIONS_MAX
from tests.kafka.trio import Trio

from .test_metrics import held, labelled, scrape, snapshot
from .test_served_metrics import samples

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60


def test_only_so_many_partitions_have_a_series_of_their_own() -> None:
    partitions = tuple(
        msgspec.structs.replace(held("orders", number, 0, 1000), unstable=number)
        for number in range(UNSTABLE_PARTITIONS_MAX + 3)
    )
    found = scrape(snapshot(partitions=partitions, transactions=TransactionFigures(open=7, oldest_ms=1500)))
    shown = {int(dict(labels)["partition"]) for name, labels in found if name == "penstock_last_stable_lag"}
    assert shown == set(range(3, UNSTABLE_PARTITIONS_MAX + 3))
    assert found[labelled("penstock_unstable_partitions")] == UNSTABLE_PARTITIONS_MAX + 2
    assert found[labelled("penstock_transactions_open")] == 7
    assert found[labelled("penstock_transactions_oldest_seconds")] == 1.5


def cluster(broker: Broker) -> dict[str, Any]:
    with urllib.request.urlopen(broker.http_url + "/v1/cluster", timeout=PATIENCE_SECONDS) as answer:
        report: dict[str, Any] = json.load(answer)
    return report


def open_transaction(broker: Broker | Trio, name: str, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b"x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    return producer


def test_an_open_transaction_is_counted_until_it_ends(unique: Unique) -> None:
    with Broker() as broker:
        topic = unique("payments")
        lag = labelled("penstock_last_stable_lag", topic=topic, partition="0")
        producer = open_transaction(broker, "billing", topic)
        found = samples(broker)
        assert found[lag] == 3
        assert found[labelled("penstock_transactions_open")] == 1
        assert found[labelled("penstock_transactions_ended_total", outcome="committed")] == 0
        producer.commit_transaction(PATIENCE_SECONDS)
        producer.begin_transaction()  # the coordinator accepts it when the markers are written
        producer.produce(topic, b"y")
        assert producer.flush(PATIENCE_SECONDS) == 0
        found = samples(broker)
        assert found[lag] == 1, "the marker has made the first three records stable"
        assert found[labelled("penstock_transactions_ended_total", outcome="committed")] == 1
        producer.abort_transaction(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce(topic, b"z")
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert samples(broker)[labelled("penstock_transactions_ended_total", outcome="aborted")] == 1
        producer.commit_transaction(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("open_ms", "timeout_ms", "overdue"),
    [
        (5_000 + OVERDUE_AFTER_MS, 5_000, False),
        (5_001 + OVERDUE_AFTER_MS, 5_000, True),
        (2 * NEVER_MS, NEVER_MS, False),
    ],
)
def test_a_transaction_is_overdue_a_minute_after_its_timeout(
    open_ms: int, timeout_ms: int, overdue: bool
) -> None:
    assert OpenTransaction("billing", "PrepareCommit", open_ms, timeout_ms).is_overdue is overdue


def test_an_overdue_transaction_is_in_the_report_about_the_cluster(
    broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("billing")
    producer = open_transaction(broker, name, unique("payments"))
    before = cluster(broker)
    assert name not in [one["transactional_id"] for one in before["hanging_transactions"]]
    monkeypatch.setattr(figures, "OVERDUE_AFTER_MS", -3_600_000)
    report = cluster(broker)
    [found] = [one for one in report["hanging_transactions"] if one["transactional_id"] == name]
    assert (found["state"], found["timeout_ms"]) == ("Ongoing", 60_000)
    assert report["healthy"] == before["healthy"], "the cause would be a problem, not this"
    producer.abort_transaction(PATIENCE_SECONDS)


def whole_report(trio: Trio, node_id: int) -> ClusterStatus:
    """A busy node may answer too late for a report."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (report := trio.run(trio.node(node_id).status.snapshot())).unanswered:
        assert time.monotonic() < deadline, report.unanswered
    return report


def test_every_node_of_a_cluster_names_overdue_transactions_of_all_coordinators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {f"billing-{number}" for number in range(3)}
    with Trio() as trio:
        producers = [open_transaction(trio, name, "payments") for name in sorted(names)]
        monkeypatch.setattr(figures, "OVERDUE_AFTER_MS", -3_600_000)
        for node_id in trio.running:
            assert {one.transactional_id for one in whole_report(trio, node_id).hanging_transactions} == names
        for producer in producers:
            producer.abort_transaction(PATIENCE_SECONDS)
