"""A broker that is killed and restarted, or paused for a while, in the middle of a read and of a write.

The query goes on by itself. No task fails, so even a topic gets every record once: nothing is read twice or left out,
nor written so.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import FaultyBroker
from tests.spark.faults.records import committed_in, count, create, fill, numbers_in
from tests.spark.faults.session_driver import SessionDriver

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
"""Longer than a request may take, so that clients drop their connections and reconnect."""

Fault = Callable[[FaultyBroker, Gate], None]


def dies(broker: FaultyBroker, gate: Gate) -> None:
    broker.kill()
    gate.open()  # so that clients see that it is dead
    broker.start()


def is_paused(broker: FaultyBroker, gate: Gate) -> None:
    broker.pause()
    gate.open()
    time.sleep(PAUSE_S)  # not a wait for an event: the fault itself takes time
    broker.go_on()


@pytest.mark.parametrize("fault", [dies, is_paused])
def test_a_query_continues_by_itself_after_a_broker(
    fault: Fault, session_driver: SessionDriver, faulty_broker: FaultyBroker, gate: Gate, tmp_path: Path
) -> None:
    servers = faulty_broker.bootstrap_servers
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
    sink = {**kafka, "topic": "target", "checkpointLocation": str(tmp_path / "checkpoint")}
    session_driver.ask(
        "start", name="topic", source=source, sink=sink, gate=str(gate.folder), after_rows=HELD_AFTER
    )
    session_driver.until(lambda: gate.holds(PARTITIONS), "both tasks are at the gate")
    session_driver.until(lambda: count(servers, "target") >= SEEN, f"the target has {SEEN} records")

    fault(faulty_broker, gate)
    fill(servers, "source", range(ROWS, ROWS + 1_000), PARTITIONS)
    session_driver.ask("finish", name="topic")
    assert numbers_in(servers, "target", PARTITIONS) == list(range(ROWS + 1_000))
    assert committed_in(servers, "target", PARTITIONS) == list(range(ROWS + 1_000))
