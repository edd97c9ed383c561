"""The tests that kafka-python and franz-go bring along for transactions, and for groups of KIP-848, pass."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from tests.kafka.programs.suites import run_franz_go_suite, run_kafka_python_suite

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

RECORDS = 50_000


@pytest.fixture
def fresh_broker(tmp_path: Path) -> Iterator[Broker]:
    """kafka-python's suite has topics of fixed names: it expects them to be new, and to get four partitions."""
    with Broker(data_dir=tmp_path / "data", num_partitions=4) as running:
        yield running


def test_kafka_python_passes_its_transactional_tests(fresh_broker: Broker) -> None:
    tests = "test/integration/test_producer_integration.py"
    printed = run_kafka_python_suite(fresh_broker.bootstrap_servers, tests, "-k", "transactional")
    assert "test_transactional_producer_messages PASSED" in printed
    assert "test_transactional_producer_offsets PASSED" in printed


def test_franz_go_passes_its_transactional_tests(fresh_broker: Broker) -> None:
    printed = run_franz_go_suite(fresh_broker.bootstrap_servers, tests="Txn", records=RECORDS)
    assert "--- PASS: TestTxnEtl " in printed
    assert printed.count("    --- PASS: TestTxnEtl/") == 6, "three of them with groups of KIP-848"


def test_franz_go_passes_its_tests_of_groups_in_both_protocols(fresh_broker: Broker) -> None:
    tests = "848|TestGroupSimple|TestGroupETL"
    printed = run_franz_go_suite(fresh_broker.bootstrap_servers, tests=tests, records=RECORDS)
    assert "--- PASS: Test848RegexBrokerResolves " in printed
    assert "--- PASS: TestGroupSimple/848 " in printed
    assert printed.count("    --- PASS: TestGroupETL/") == 6, "three of them with groups of KIP-848"
