"""Tasks that fail in their middle and are tried again."""

from collections.abc import Callable

import pytest

from penstock import Broker
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import DriverProcess
from tests.spark.faults.records import all_have_written, committed_in, create, fill, numbers_in

PARTITIONS = 2
ROWS = 10_000
FAILS_AFTER = 3_500
"""Rows of the first attempt, of ROWS / PARTITIONS: more than the sink gathers before it sends."""


@pytest.mark.parametrize(
    "once",
    [
        pytest.param({}, marks=pytest.mark.long, id="at least"),
        pytest.param({"txnAppId": "copy", "txnVersion": "0"}, id="exactly"),
    ],
)
def test_a_task_that_fails_in_its_middle_is_written_whole_by_the_next_attempt(
    driver: DriverProcess,
    broker: Broker,
    unique: Callable[[str], str],
    gate: Gate,
    once: dict[str, str],
) -> None:
    servers = broker.bootstrap_servers
    source, target = (create(servers, unique(name), PARTITIONS) for name in ("source", "target"))
    fill(servers, source, range(ROWS), PARTITIONS)
    copying = driver.tell(
        "copy_failing_first",
        source={"kafka.bootstrap.servers": servers, "subscribe": source},
        sink={"kafka.bootstrap.servers": servers, "topic": target, **once},
        gate=str(gate.folder),
        after_rows=FAILS_AFTER,
    )
    driver.until(lambda: gate.holds(PARTITIONS), "both first attempts are at the gate")
    driver.until(lambda: all_have_written(servers, target, PARTITIONS), "both have written some")
    gate.open()
    driver.answer_to(copying)
    found = numbers_in(servers, target, PARTITIONS)
    assert set(found) == set(range(ROWS))
    # The first attempts had written some rows, which stay: they count unless they are aborted.
    assert ROWS < len(found) <= 2 * ROWS
    counted = committed_in(servers, target, PARTITIONS)
    assert counted == (list(range(ROWS)) if once else found)
