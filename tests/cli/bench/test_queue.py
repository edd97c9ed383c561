"""`penstock bench queue`: its arithmetic, and small runs against a broker."""

import json
from pathlib import Path

import confluent_kafka
import pytest

from penstock import Broker
from penstock.cli.bench.figures import Latency, QueueRun, medians
from penstock.cli.bench.load import QueueStats, Via
from penstock.client import Client
from tests.cli.conftest import Cli, succeeded

HAS_SHARE_CONSUMER = hasattr(confluent_kafka, "ShareConsumer")
SMALL = ("--messages", "300", "--rate", "100", "--seconds", "1")


def run(via: Via, published: float, p50_ms: float, broker_us: float | None = None) -> QueueRun:
    return QueueRun(
        via=via,
        consumers=1,
        published_per_second=published,
        acknowledged_per_second=published / 2,
        publish_broker_us=broker_us,
        acknowledge_client_us=3.0,
        delivered=Latency(p50_ms=p50_ms, p95_ms=p50_ms, p99_ms=p50_ms, p999_ms=p50_ms, max_ms=p50_ms),
    )


def test_there_is_a_median_for_each_client() -> None:
    runs = [
        run("client", 10.0, 1.0),
        run("confluent", 500.0, 9.0),
        run("client", 30.0, 3.0),
        run("client", 20.0, 8.0),
    ]
    client, confluent = medians(runs, "via")
    assert (client.via, client.published_per_second, client.acknowledged_per_second) == ("client", 20.0, 10.0)
    assert client.delivered.p50_ms == 3.0
    assert confluent.published_per_second == 500.0


def test_a_median_uses_only_runs_that_know_the_brokers_cpu() -> None:
    runs = [run("client", 1.0, 1.0, 4.0), run("client", 1.0, 1.0), run("client", 1.0, 1.0, 6.0)]
    [known] = medians(runs, "via")
    assert (known.publish_broker_us, known.acknowledge_broker_us) == (5.0, None)


def test_consumers_share_their_count_of_finished_messages(tmp_path: Path) -> None:
    path = tmp_path / "tally"
    QueueStats.create(path, 3)
    first, last = QueueStats(str(path), 0), QueueStats(str(path), 2)
    first.add(5)
    last.add(1)
    last.add(1)
    assert (first.total, last.total, QueueStats(str(path), 1).total) == (7, 7, 7)


@pytest.mark.skipif(not HAS_SHARE_CONSUMER, reason="this confluent-kafka has no share consumer")
def test_both_clients_work_a_queue_off_and_are_measured(cli: Cli, broker: Broker) -> None:
    arguments = ("bench", "queue", "--bootstrap", broker.bootstrap_servers, *SMALL, "--json")
    report = json.loads(succeeded(cli(*arguments)).stdout)
    assert [each["via"] for each in report["runs"]] == ["client", "confluent"]
    for each in report["runs"]:
        assert each["published_per_second"] > 0
        assert each["acknowledged_per_second"] > 0
        assert 0 < each["delivered"]["p50_ms"] <= each["delivered"]["p99_ms"]
    assert report["load"]["messages"] == 300


def test_several_consumers_share_a_queue_and_leave_nothing_behind(cli: Cli, broker: Broker) -> None:
    arguments = ("bench", "queue", "--bootstrap", broker.bootstrap_servers, "--through", "client")
    page = succeeded(cli(*arguments, *SMALL, "--consumers", "2", "--partitions", "2")).stdout
    [row] = [line.split() for line in page.splitlines() if line.startswith("penstock.client")]
    assert row[1] == "2"
    with Client(broker.bootstrap_servers) as client:
        assert [name for name in client.admin.queues() if name.startswith("bench-")] == []
        assert [topic.name for topic in client.admin.topics() if topic.name.startswith("bench-")] == []


def test_a_broker_without_an_http_port_is_a_problem_that_says_so(plain_cli: Cli) -> None:
    with Broker(http=None) as deaf:
        arguments = ("--bootstrap", deaf.bootstrap_servers, "--through", "client", *SMALL)
        result = plain_cli("bench", "queue", *arguments)
    assert result.exit_code == 1
    assert "--http" in result.stderr


def test_without_a_broker_one_is_started_for_the_run(plain_cli: Cli) -> None:
    arguments = ("bench", "queue", "--memory", "--through", "client", *SMALL, "--json")
    [measured] = json.loads(succeeded(plain_cli(*arguments)).stdout)["medians"]
    assert measured["acknowledged_per_second"] > 0
