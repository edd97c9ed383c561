"""`penstock bench push`: its arithmetic, and small runs against a broker."""

import json
import resource

import pytest

from penstock import Broker
from penstock.cli.bench import push_runner
from penstock.cli.bench.figures import Latency, PushRun, medians
from penstock.cli.bench.push_runner import PushShape, broker_flags
from penstock.cli.problem import Problem
from penstock.client import Client
from penstock.config import Limits
from penstock.node.limits import descriptors
from tests.cli.conftest import Cli, succeeded


def run(subscribers: int, per_second: float, broker_us: float | None = None) -> PushRun:
    return PushRun(
        subscribers=subscribers,
        burst_messages=10,
        deliveries_per_second=per_second,
        broker_us_per_delivery=broker_us,
        client_us_per_delivery=1.0,
        rate_per_second=5,
        delivered=Latency(p50_ms=1.0, p95_ms=1.0, p99_ms=1.0, p999_ms=1.0, max_ms=1.0),
    )


def test_there_is_a_median_for_each_number_of_subscribers() -> None:
    runs = [run(1, 5.0), run(100, 50.0, 2.0), run(1, 7.0), run(100, 70.0, 4.0), run(1, 6.0)]
    one, many = medians(runs, "subscribers")
    assert (one.subscribers, one.deliveries_per_second, one.broker_us_per_delivery) == (1, 6.0, None)
    assert (many.subscribers, many.deliveries_per_second, many.broker_us_per_delivery) == (100, 60.0, 3.0)


def test_more_subscribers_get_fewer_messages_unless_told_otherwise() -> None:
    usual = PushShape(seconds=4)
    assert [usual.burst(count) for count in (1, 100, 1000)] == [50_000, 2_000, 200]
    assert [usual.rate(count) for count in (1, 100, 1000, 20_000)] == [500, 20, 2, 1]
    assert usual.paced(1000) == 10  # a second more than asked for, which is not counted
    told = PushShape(messages=7, rate_per_second=3)
    assert (told.burst(1000), told.rate(1)) == (7, 3)


def test_every_subscriber_is_in_one_process() -> None:
    assert PushShape(processes=3).spread(10) == [4, 3, 3]
    assert PushShape(processes=3).spread(2) == [1, 1]
    assert sum(PushShape().spread(1000)) == 1000


def test_the_brokers_connection_limit_is_raised_for_all_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    _allow_files(monkeypatch, 1_000_000)
    assert broker_flags(1000)[-1] == "limits.max_http_connections=4096"
    assert broker_flags(10_000)[-1] == "limits.max_http_connections=10064"


def test_a_too_low_file_limit_is_reported_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _allow_files(monkeypatch, 4096)
    broker_flags(100)
    with pytest.raises(Problem, match="1,000 subscribers need a process that may open 8,512 files"):
        broker_flags(1000)


def _allow_files(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (hard, hard))


def test_the_share_of_files_is_the_brokers() -> None:
    assert push_runner.FILES_SHARE == descriptors.HTTP_SHARE


def test_subscribers_get_everything_and_are_measured(cli: Cli, broker: Broker) -> None:
    arguments = ("bench", "push", "--bootstrap", broker.bootstrap_servers, "--subscribers", "1,5")
    load = ("--messages", "40", "--rate", "20", "--seconds", "1", "--partitions", "2", "--processes", "2")
    report = json.loads(succeeded(cli(*arguments, *load, "--json")).stdout)
    assert [each["subscribers"] for each in report["runs"]] == [1, 5]
    for each in report["runs"]:
        assert each["burst_messages"] == 40
        assert each["deliveries_per_second"] > 0
        assert 0 < each["delivered"]["p50_ms"] <= each["delivered"]["p99_ms"]


def test_subscriptions_and_topics_are_gone_afterwards(cli: Cli, broker: Broker) -> None:
    arguments = ("bench", "push", "--bootstrap", broker.bootstrap_servers, "--subscribers", "2")
    page = succeeded(cli(*arguments, "--messages", "5", "--rate", "5", "--seconds", "1")).stdout
    assert "deliveries/s" in page
    with Client(broker.bootstrap_servers) as client:
        assert [name for name in client.admin.groups() if name.startswith("bench-")] == []
        assert [topic.name for topic in client.admin.topics() if topic.name.startswith("bench-")] == []


def test_a_broker_without_room_for_all_subscribers_is_a_problem_and_not_a_figure(plain_cli: Cli) -> None:
    with Broker(limits=Limits(max_http_connections=3)) as crowded:
        result = plain_cli("bench", "push", "--bootstrap", crowded.bootstrap_servers, "--subscribers", "12")
    assert result.exit_code == 1
    assert "limits.max_http_connections" in result.stderr


def test_without_a_broker_one_is_started_for_the_run(plain_cli: Cli) -> None:
    load = ("--subscribers", "3", "--messages", "5", "--rate", "5", "--seconds", "1")
    [measured] = json.loads(succeeded(plain_cli("bench", "push", "--memory", *load, "--json")).stdout)[
        "medians"
    ]
    assert (measured["subscribers"], measured["rate_per_second"]) == (3, 5)


@pytest.mark.parametrize("counts", ["0", "1,x", "", "30000"])
def test_invalid_counts_of_subscribers_are_a_usage_error(counts: str, plain_cli: Cli) -> None:
    result = plain_cli("bench", "push", "--subscribers", counts)
    assert result.exit_code == 2
    assert "--subscribers" in result.stderr
