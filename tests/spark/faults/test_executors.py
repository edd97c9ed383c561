"""Executors and Python workers that are killed in the middle of a task: Spark runs the task again elsewhere."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Broker
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import DriverProcess
from tests.spark.faults.records import create, fill, numbers_in, writers_of

PARTITIONS = 2
ROWS = 10_000
HELD_AFTER = 3_500
"""Rows of a task that have passed when it is held, of ROWS / PARTITIONS: more than the sink gathers before it sends."""
Unique = Callable[[str], str]
Fault = Callable[[DriverProcess, str], None]


def kill_an_executor(driver: DriverProcess, servers: str) -> None:
    driver.executors()[0].kill()


def kill_the_workers_of_an_executor(driver: DriverProcess, servers: str) -> None:
    """Of one task: the worker that reads from the broker and the one that writes to it."""
    workers = driver.workers_of(driver.executors()[0], servers)
    assert workers
    for worker in workers:
        worker.kill()


FAULTS = pytest.mark.parametrize("fault", [kill_an_executor, kill_the_workers_of_an_executor])


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    driver = DriverProcess(tmp_path_factory.mktemp("driver"), "local-cluster[2,1,1024]")
    try:
        driver.start()
        yield driver
    finally:
        driver.kill()


@pytest.fixture(scope="module")
def source(broker: Broker) -> dict[str, str]:
    """The options of a topic with records."""
    servers = broker.bootstrap_servers
    topic = create(servers, "faults-source", PARTITIONS)
    fill(servers, topic, range(ROWS), PARTITIONS)
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}


@pytest.fixture
def sink(broker: Broker, unique: Unique, tmp_path: Path) -> dict[str, str]:
    """The options of a topic without records."""
    topic = create(broker.bootstrap_servers, unique("target"), PARTITIONS)
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": topic,
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }


def strike(driver: DriverProcess, servers: str, fault: Fault, gate: Gate, topic: str | None = None) -> None:
    """Waits until both tasks are in their middle, and the target has some of their rows; then the fault."""
    driver.until(lambda: gate.holds(PARTITIONS), "both tasks are at the gate")
    if topic is not None:
        driver.until(
            lambda: writers_of(servers, topic, PARTITIONS) == PARTITIONS, "both tasks have written some"
        )
    driver.until(lambda: len(driver.executors()) == PARTITIONS, "there are two executors")
    fault(driver, servers)
    gate.open()


def check_at_least_once(servers: str, topic: str) -> None:
    found = numbers_in(servers, topic, PARTITIONS)
    assert set(found) == set(range(ROWS))
    # The fault did strike in the middle: what the first attempt had written is there too.
    assert len(found) > ROWS


@FAULTS
def test_a_batch_query_writes_every_record_to_the_topic(
    fault: Fault, driver: DriverProcess, source: dict[str, str], sink: dict[str, str], gate: Gate
) -> None:
    servers = sink["kafka.bootstrap.servers"]
    copying = driver.tell("copy", source=source, sink=sink, gate=str(gate.folder), after_rows=HELD_AFTER)
    strike(driver, servers, fault, gate, sink["topic"])
    driver.answer_to(copying)
    check_at_least_once(servers, sink["topic"])


@FAULTS
def test_a_streaming_query_writes_every_record_to_the_topic(
    fault: Fault, driver: DriverProcess, source: dict[str, str], sink: dict[str, str], gate: Gate
) -> None:
    servers = sink["kafka.bootstrap.servers"]
    driver.ask("start", name="topic", source=source, sink=sink, gate=str(gate.folder), after_rows=HELD_AFTER)
    strike(driver, servers, fault, gate, sink["topic"])
    driver.ask("finish", name="topic")
    check_at_least_once(servers, sink["topic"])


@FAULTS
def test_a_streaming_query_writes_every_record_to_parquet_once(
    fault: Fault, driver: DriverProcess, source: dict[str, str], gate: Gate, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    sink = {"path": out, "checkpointLocation": str(tmp_path / "checkpoint")}
    driver.ask(
        "start", name="parquet", source=source, sink=sink, gate=str(gate.folder), after_rows=HELD_AFTER
    )
    strike(driver, source["kafka.bootstrap.servers"], fault, gate)
    driver.ask("finish", name="parquet")
    assert driver.ask("numbers", path=out) == list(range(ROWS))
