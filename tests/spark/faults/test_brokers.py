"""A broker that dies and comes back, or stands still for a while, in the middle of a read and of a write.

The queries go on by themselves. No task fails, so even the topic gets every record once.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import DriverProcess, FaultyBroker
from tests.spark.faults.records import count, create, fill, numbers_in

PARTITIONS = 2
ROWS = 90_000
VALUE_BYTES = 500
"""A task has more than the source reads ahead of the gate: blocks of 8,000 to 9,000 rows, of which Spark has one, the
socket between them perhaps two (10 MB) and the source one. So the fault finds some of a task's rows unread."""
HELD_AFTER = 6_000
"""More than the sink gathers before it sends."""
SEEN = 1_000
TIMEOUT_MS = 3_000
PAUSE_S = 5.0
"""Longer than a request may take, so that clients give up on their connections and try anew."""

Fault = Callable[[FaultyBroker, list[Gate]], None]


def dies(broker: FaultyBroker, gates: list[Gate]) -> None:
    broker.kill()
    for gate in gates:
        gate.open()  # so that clients find it dead
    broker.start()


def stands_still(broker: FaultyBroker, gates: list[Gate]) -> None:
    broker.pause()
    for gate in gates:
        gate.open()
    time.sleep(PAUSE_S)  # not a wait for anything: the fault itself takes time
    broker.go_on()


@pytest.mark.parametrize("fault", [dies, stands_still])
def test_queries_go_on_by_themselves_after_a_broker(
    fault: Fault,
    driver: DriverProcess,
    faulty_broker: FaultyBroker,
    make_gate: Callable[[], Gate],
    tmp_path: Path,
) -> None:
    servers = faulty_broker.bootstrap_servers
    gates = [make_gate(), make_gate()]
    out = str(tmp_path / "out")
    create(servers, "source", PARTITIONS)
    create(servers, "target", PARTITIONS)
    fill(servers, "source", range(ROWS), PARTITIONS, VALUE_BYTES)
    kafka = {"kafka.bootstrap.servers": servers, "kafka.request.timeout.ms": str(TIMEOUT_MS)}
    source = {
        **kafka,
        "subscribe": "source",
        "startingOffsets": "earliest",
        "kafka.max.partition.fetch.bytes": "500000",
    }
    sinks = {
        "parquet": {"path": out, "checkpointLocation": str(tmp_path / "checkpoint-parquet")},
        "topic": {**kafka, "topic": "target", "checkpointLocation": str(tmp_path / "checkpoint-topic")},
    }
    for gate, (name, sink) in zip(gates, sinks.items(), strict=True):
        driver.ask("start", name=name, source=source, sink=sink, gate=str(gate.folder), after_rows=HELD_AFTER)
    for gate in gates:
        driver.until(partial(gate.holds, PARTITIONS), "all tasks are at their gates")
    driver.until(lambda: count(servers, "target") >= SEEN, f"the target has {SEEN} records")

    fault(faulty_broker, gates)
    fill(servers, "source", range(ROWS, ROWS + 1_000), PARTITIONS)
    for name in sinks:
        driver.ask("finish", name=name)
    assert driver.ask("numbers", path=out) == list(range(ROWS + 1_000))
    assert numbers_in(servers, "target", PARTITIONS) == list(range(ROWS + 1_000))
