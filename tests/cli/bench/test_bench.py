"""`penstock bench`: its arithmetic, and small runs against a broker."""

import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker
from penstock.cli.bench import procfs
from penstock.cli.bench.figures import Comparison, Run, compare, latency
from penstock.cli.bench.worker import payloads
from tests.cli.conftest import Cli, succeeded


def run(target: str, seconds: float, broker_cpu_seconds: float | None = None) -> Run:
    return Run(
        kind="produce",
        target=target,
        messages=1000,
        bytes=100_000,
        seconds=seconds,
        client_cpu_seconds=0.002,
        broker_cpu_seconds=broker_cpu_seconds,
    )


def test_percentiles_are_latencies_that_messages_had() -> None:
    figures = latency(range(1, 1001))
    assert (figures.p50_ms, figures.p95_ms, figures.p99_ms) == (0.5, 0.95, 0.99)
    assert (figures.p999_ms, figures.max_ms) == (0.999, 1.0)


@given(st.lists(st.integers(0, 10**7), min_size=1))
def test_percentiles_rise_and_are_among_the_samples(samples: list[int]) -> None:
    figures = latency(samples)
    found = [figures.p50_ms, figures.p95_ms, figures.p99_ms, figures.p999_ms, figures.max_ms]
    assert found == sorted(found)
    assert all(value in {sample / 1000 for sample in samples} for value in found)


def test_figures_follow_from_a_run() -> None:
    measured = run("ours", 0.5, 0.003)
    assert measured.messages_per_second == 2000
    assert measured.megabytes_per_second == 0.2
    assert measured.client_us_per_message == pytest.approx(2.0)
    assert measured.broker_us_per_message == pytest.approx(3.0)


def test_a_comparison_takes_medians_and_above_1_is_better() -> None:
    ours = [run("ours", seconds, 0.001) for seconds in (1.0, 0.5, 100.0)]
    theirs = [run("theirs", 2.0, 0.004)] * 3
    throughput, cost = compare(ours, theirs)
    assert (throughput.ours, throughput.theirs, throughput.ratio) == (1000, 500, 2.0)
    assert cost.ratio == pytest.approx(4.0)


def test_cost_is_omitted_if_the_brokers_process_is_unknown() -> None:
    assert [each.measure for each in compare([run("ours", 1.0)], [run("theirs", 1.0)])] == ["messages/s"]


def test_a_ratio_survives_a_zero() -> None:
    nothing = Comparison(measure="x", ours=0.0, theirs=0.0, higher_is_better=False)
    assert nothing.ratio in (0.0, float("inf"))


def test_payloads_have_their_size_differ_and_compress_as_text_does() -> None:
    import zlib

    made = payloads(100)
    assert {len(payload) for payload in made} == {100}
    assert len(set(made)) == len(made)
    joined = b"".join(made)
    assert 0.3 < len(zlib.compress(joined)) / len(joined) < 0.9


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux' /proc")
def test_a_process_is_found_by_its_port_and_measured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert procfs.listener_pid(listener.getsockname()[1]) == os.getpid()
    usage = procfs.usage(os.getpid())
    assert usage is not None
    assert usage.cpu_seconds > 0
    assert usage.peak_rss_bytes >= usage.rss_bytes > 1_000_000


def test_an_unknown_process_has_no_figures() -> None:
    assert procfs.usage(None) is None
    assert procfs.usage(2**22 + 1) is None


def test_all_loads_run_and_report(cli: Cli, broker: Broker) -> None:
    arguments = (
        "bench",
        "all",
        "--bootstrap",
        broker.bootstrap_servers,
        "--messages",
        "2000",
        "--seconds",
        "1",
    )
    report = json.loads(succeeded(cli(*arguments, "--rate", "200", "--partitions", "2", "--json")).stdout)
    assert [each["kind"] for each in report["runs"]] == ["produce", "consume", "latency"]
    assert [each["messages"] for each in report["runs"]] == [2000, 2000, 400]
    assert all(each["messages_per_second"] > 0 for each in report["runs"])
    slow = report["runs"][2]
    assert 0 < slow["acknowledged"]["p50_ms"] <= slow["acknowledged"]["max_ms"]
    assert 0 < slow["delivered"]["p50_ms"] <= slow["delivered"]["max_ms"]


def test_a_comparison_alternates_and_prints_ratios(cli: Cli, broker: Broker) -> None:
    other = broker.bootstrap_servers.replace("127.0.0.1", "localhost")
    arguments = ("bench", "produce", "--bootstrap", broker.bootstrap_servers, "--compare", other)
    page = succeeded(cli(*arguments, "--rounds", "2", "--messages", "500")).stdout
    names = [line.split()[1] for line in page.splitlines() if line.startswith("produce ")][:4]
    assert names == [broker.bootstrap_servers, other, broker.bootstrap_servers, other]
    assert "ratio" in page


def test_topics_of_a_bench_are_gone_afterwards(cli: Cli, broker: Broker) -> None:
    succeeded(cli("bench", "produce", "--bootstrap", broker.bootstrap_servers, "--messages", "100"))
    assert json.loads(succeeded(cli("topics", "list", "bench-.*", "--json")).stdout) == []
