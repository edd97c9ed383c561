"""Drivers and brokers of the tests' own, ended with all that they started whatever happens."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.spark.java import why_not
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import DriverProcess, FaultyBroker

HERE = Path(__file__).parent
TIMEOUT_S = 600
"""For machines that do much else: alone, the longest of these tests takes about half a minute."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if HERE in item.path.parents and "spark" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            # With the other tests of Spark: two JVMs at a time are too many for a small machine.
            item.add_marker(pytest.mark.xdist_group("spark"))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="package")
def one_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    """Six tasks at a time, since some wait at gates; four attempts for each."""
    driver = DriverProcess(tmp_path_factory.mktemp("driver"), "local[6,4]")
    yield driver
    driver.kill()


@pytest.fixture
def driver(one_driver: DriverProcess) -> DriverProcess:
    """The driver that these tests share. It runs, also if the last test has killed it or failed."""
    if one_driver.has_failed:
        one_driver.kill()
    if not one_driver.runs:
        one_driver.start()
    return one_driver


@pytest.fixture
def faulty_broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    broker = FaultyBroker(tmp_path / "data")
    broker.start()
    yield broker
    broker.go_on()
    broker.kill()


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Gates that are shut when made, and open at the end so that nobody waits for ever."""
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
