"""A stream that works off a queue, whose driver is killed in the middle of a micro-batch: every job is done, and with
an exactly-once sink its result is there once, as long as the driver comes back before the leases end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client import Client
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import DriverProcess
from tests.spark.faults.records import committed_in, create, fill

PARTITIONS = 2
JOBS = 3_000
PER_BATCH = 1_000
LEASE_S = 3_600

pytestmark = pytest.mark.long


def test_every_job_is_done_once_though_the_driver_is_killed(
    driver: DriverProcess, broker: Broker, unique: Callable[[str], str], gate: Gate, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    source, target = (create(servers, unique(name), PARTITIONS) for name in ("jobs", "done"))
    with Client(servers) as client:
        client.admin.create_queue(source, topic=source, lease=LEASE_S)
        fill(servers, source, range(JOBS), PARTITIONS)
        query = {
            "name": "worker",
            "source": {
                "kafka.bootstrap.servers": servers,
                "queue": source,
                "maxJobsPerTrigger": str(PER_BATCH),
            },
            "sink": {
                "kafka.bootstrap.servers": servers,
                "topic": target,
                "checkpointLocation": str(tmp_path / "checkpoint"),
            },
            "gate": str(gate.folder),
            "after_rows": 250,
            "from_batch": 1,
        }
        driver.ask("start", **query)
        driver.until(gate.held, "the second micro-batch is at its gate")
        driver.kill()
        before = client.admin.queue(source)
        assert before.undone == JOBS - PER_BATCH, "the jobs of the first are done"
        assert sum(one.leased or 0 for one in before.partitions) == PER_BATCH, "the others are leased"
        gate.open()
        driver.run()
        driver.ask("start", **query)
        driver.ask("finish", name="worker")
        assert committed_in(servers, target, PARTITIONS) == list(range(JOBS))
        driver.until(lambda: client.admin.queue(source).undone == 0, "all jobs are accepted")
