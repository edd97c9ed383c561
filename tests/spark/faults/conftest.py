"""Drivers and brokers of the tests' own, which always end with all processes that they started."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.java import why_not
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import CLUSTER, DriverProcess, FaultyBroker
from tests.spark.faults.session_driver import SessionDriver

HERE = Path(__file__).parent
TIMEOUT_S = 600
"""For machines that do much else: alone, the longest of these tests takes about half a minute."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if HERE in item.path.parents and "spark" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            # One worker starts JVMs, one after the other: they need most of a small machine.
            item.add_marker(pytest.mark.xdist_group("jvms"))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="package")
def one_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    """The driver that these tests share, as a JVM takes long to start."""
    driver = DriverProcess(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.kill()


@pytest.fixture
def driver(one_driver: DriverProcess) -> DriverProcess:
    """A driver on any master. It runs, also if the last test has killed it or failed."""
    one_driver.run()
    return one_driver


@pytest.fixture
def cluster_driver(one_driver: DriverProcess) -> DriverProcess:
    """A driver with executors, which are processes too."""
    one_driver.run(CLUSTER)
    return one_driver


@pytest.fixture
def session_driver(spark: SparkSession) -> Iterator[SessionDriver]:
    driver = SessionDriver(spark)
    yield driver
    driver.stop()


@pytest.fixture
def faulty_broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    # Its HTTP port is another one after each start: clients must ask for it again.
    broker = FaultyBroker(tmp_path / "data", http="127.0.0.1:0")
    broker.start()
    yield broker
    broker.go_on()
    broker.kill()


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Gates that are closed at first, and opened at the end so that no task waits for ever."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(tmp_path / f"gate-{len(made)}"))
        return made[-1]

    yield make
    for gate in made:
        gate.open()


@pytest.fixture
def gate(make_gate: Callable[[], Gate]) -> Gate:
    return make_gate()
