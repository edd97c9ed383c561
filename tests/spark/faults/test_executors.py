"""Executors and Python workers that are killed in the middle of a task: Spark runs the task again elsewhere."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock import Broker
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import EXECUTORS, DriverProcess
from tests.spark.faults.records import all_have_written, committed_in, create, fill, numbers_in

PARTITIONS = 2
QUERIES = 3
"""A batch to a topic, a stream to a topic, a stream to Parquet."""
ROWS = 10_000
HELD_AFTER = 3_500
"""Rows of a task that have passed when it is held, of ROWS / PARTITIONS: more than the sink gathers before it sends."""
Unique = Callable[[str], str]


def strike(driver: DriverProcess, servers: str) -> None:
    """One task of each query loses its executor; the other one the worker that reads from the broker and the one that
    writes to it."""
    struck, other = driver.executors()
    workers = driver.workers_of(struck, servers)
    assert workers
    for worker in workers:
        worker.kill()
    other.kill()


@pytest.fixture(scope="module")
def source(broker: Broker) -> dict[str, str]:
    """The options of a topic with records."""
    servers = broker.bootstrap_servers
    topic = create(servers, "faults-source", PARTITIONS)
    fill(servers, topic, range(ROWS), PARTITIONS)
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}


@pytest.mark.long  # a master, two executors and a driver: five JVMs
def test_batches_write_every_record_and_streams_write_each_once(
    cluster_driver: DriverProcess,
    broker: Broker,
    source: dict[str, str],
    make_gate: Callable[[], Gate],
    unique: Unique,
    tmp_path: Path,
) -> None:
    driver, servers = cluster_driver, broker.bootstrap_servers
    # Spark gives the tasks of a query to different executors, if there are any.
    driver.until(lambda: driver.ask("executors") == EXECUTORS, "both executors are there")
    batch, stream = (create(servers, unique(name), PARTITIONS) for name in ("batch", "stream"))
    gates = [make_gate() for _ in range(QUERIES)]
    held = [{"source": source, "gate": str(gate.folder), "after_rows": HELD_AFTER} for gate in gates]
    out = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint-parquet")}
    driver.ask("start", name="parquet", sink=out, **held[0])
    kafka = {"kafka.bootstrap.servers": servers}
    sink = {**kafka, "topic": stream, "checkpointLocation": str(tmp_path / "checkpoint-topic")}
    driver.ask("start", name="topic", sink=sink, **held[1])
    copying = driver.tell("copy", sink={**kafka, "topic": batch}, **held[2])
    for gate in gates:
        driver.until(partial(gate.holds, PARTITIONS), "both tasks of each query are at its gate")
    for topic in (batch, stream):
        driver.until(partial(all_have_written, servers, topic, PARTITIONS), "both tasks have written some")

    strike(driver, servers)
    for gate in gates:
        gate.open()
    driver.answer_to(copying)
    for name in ("parquet", "topic"):
        driver.ask("finish", name=name)
    assert driver.ask("numbers", path=out["path"]) == list(range(ROWS))
    for topic in (batch, stream):
        found = numbers_in(servers, topic, PARTITIONS)
        assert set(found) == set(range(ROWS))
        # The fault hit in the middle: the rows of the first attempt are there too.
        assert len(found) > ROWS
    assert committed_in(servers, stream, PARTITIONS) == list(range(ROWS)), "and count once"
