"""Pipelines to topics whose driver is killed, again and again, continue: every record once, in order."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.client.wire import ClientSettings, Cluster
from penstock.types import TopicPartition
from tests.spark.committed import committed_from, committed_values
from tests.spark.faults.processes import DriverProcess
from tests.spark.faults.records import count, create, fill

PARTITIONS = 2
ROWS = 12_000
STEP = 1_000
"""Offsets of each partition in a step of a replay: six steps."""

pytestmark = pytest.mark.long


def shortened(records: Any) -> Any:
    """`reprocess` makes this of records: values without their padding."""
    return records.selectExpr("key", "substring(string(value), 1, 8) AS value", "partition")


class Pipeline:
    """A pipeline that is killed and started again with the same arguments."""

    def __init__(self, driver: DriverProcess, servers: str, target: str, name: str, **settings: Any) -> None:
        self._driver = driver
        self._servers = servers
        self._target = create(servers, target, PARTITIONS)
        self._call = {"name": name, "settings": {**settings, "bootstrap_servers": servers}}

    def run_with_kills(self, written: Iterable[int]) -> dict[str, Any]:
        """Kills it when so many records are written: in the middle of a transaction, or between two."""
        for least in written:
            self._driver.tell("pipeline", **self._call)
            self._driver.until(lambda: self._count() >= least, f"{least} records are written")  # noqa: B023
            self._driver.kill()
            self._driver.run()
        done: dict[str, Any] = self._driver.ask("pipeline", **self._call)
        return done

    def _count(self) -> int:
        return count(self._servers, self._target)

    def check(self) -> None:
        """Readers of committed records see each number once, and those of a partition in order."""
        found = [int(value[:8]) for value in committed_values(self._servers, self._target, PARTITIONS)]
        assert sorted(found) == list(range(ROWS))
        for partition in range(PARTITIONS):
            mine = [number for number in found if number % PARTITIONS == partition]
            assert mine == sorted(mine), "in the old order"


@pytest.fixture
def source(broker: Broker, unique: Callable[[str], str]) -> str:
    name = create(broker.bootstrap_servers, unique("source"), PARTITIONS)
    fill(broker.bootstrap_servers, name, range(ROWS), PARTITIONS)
    return name


@pytest.fixture
def lake(driver: DriverProcess, broker: Broker, source: str, tmp_path: Path) -> str:
    path = str(tmp_path / "lake")
    settings = {"path": path, "topics": source, "bootstrap_servers": broker.bootstrap_servers}
    driver.ask("pipeline", name="archive", settings=settings)
    return path


def test_a_replay_continues_after_its_driver_was_killed(
    driver: DriverProcess, broker: Broker, source: str, lake: str
) -> None:
    target = f"{source}.again"
    replay = Pipeline(
        driver, broker.bootstrap_servers, target, "replay", path=lake, suffix=".again", step_offsets=STEP
    )
    done = replay.run_with_kills((1_500, 5_000, 9_000))
    assert (done["rows"], done["resumed"], done["finished"]) == (ROWS, True, True)
    replay.check()


def test_reprocessing_continues_after_its_driver_was_killed(
    driver: DriverProcess, broker: Broker, source: str, lake: str
) -> None:
    target = f"{source}.new"
    reprocess = Pipeline(
        driver,
        broker.bootstrap_servers,
        target,
        "reprocess",
        path=lake,
        function="tests.spark.faults.test_killed_pipelines:shortened",
        to_topic=target,
        step_offsets=STEP,
    )
    done = reprocess.run_with_kills((1_500, 7_000))
    assert (done["rows"], done["resumed"], done["finished"]) == (ROWS, True, True)
    reprocess.check()


def test_deduplication_continues_after_its_driver_was_killed(
    driver: DriverProcess, broker: Broker, source: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    fill(servers, source, range(ROWS), PARTITIONS)  # each record a second time
    target = f"{source}.once"
    dedupe = Pipeline(
        driver,
        servers,
        target,
        "dedupe",
        topics=source,
        deduplication={"watermark": "1 hour"},
        to_topic=target,
        checkpoint=str(tmp_path / "checkpoint"),
        options={"maxOffsetsPerTrigger": str(ROWS // 3)},
    )
    dedupe.run_with_kills((1_500, 7_000))
    dedupe.check()


def test_enrichment_continues_after_its_driver_was_killed(
    driver: DriverProcess, broker: Broker, source: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    table = create(servers, unique("table"), 1)
    fill(servers, table, range(0, ROWS, 2), 1, value_bytes=8)
    target = f"{source}.full"
    enrich = Pipeline(
        driver,
        servers,
        target,
        "enrich",
        topics=source,
        enrichment={"table": table},
        to_topic=target,
        checkpoint=str(tmp_path / "checkpoint"),
        options={"maxOffsetsPerTrigger": str(ROWS // 4)},
    )
    enrich.run_with_kills((1_500, 7_000))
    enrich.check()


def test_a_mirror_continues_after_its_driver_was_killed(
    driver: DriverProcess, broker: Broker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    servers, topic, group = broker.bootstrap_servers, unique("orders"), unique("billing")
    with Broker() as other, Cluster(ClientSettings(bootstrap_servers=other.bootstrap_servers)) as there:
        create(other.bootstrap_servers, topic, PARTITIONS)
        fill(other.bootstrap_servers, topic, range(ROWS), PARTITIONS)
        half = {TopicPartition(topic, index): ROWS // PARTITIONS // 2 for index in range(PARTITIONS)}
        there.commit(group, half)
        mirror = Pipeline(
            driver,
            servers,
            topic,
            "mirror",
            topics=topic,
            from_servers=other.bootstrap_servers,
            checkpoint=str(tmp_path / "checkpoint"),
            groups=[group],
            from_options={"maxOffsetsPerTrigger": str(ROWS // 6)},
        )
        mirror.run_with_kills((1_500, 7_000))
        mirror.check()
    with Cluster(ClientSettings(bootstrap_servers=servers)) as here:
        translated = here.committed(group)
    for tp, offset in half.items():
        seen = set(committed_from(servers, tp, translated.get(tp, 0)))
        unread = {number for number in range(ROWS) if number % PARTITIONS == tp.partition}
        unread -= set(range(offset * PARTITIONS))
        assert unread <= seen, "the group misses nothing here"
