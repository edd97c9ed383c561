"""The driver and all its processes are killed at once, as when a machine dies; queries continue from checkpoints.

The kill finds each query in the middle of a batch. Every other stage that a death can leave is in test_checkpoints.py.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock import Broker
from penstock.types import TopicPartition
from tests.spark.faults.gate import Gate
from tests.spark.faults.processes import DriverProcess
from tests.spark.faults.records import (
    Flood,
    committed,
    committed_in,
    count,
    create,
    fill,
    logged,
    numbers_in,
    planned,
)

PARTITIONS = 2
ROWS = 10_000
MORE = 1_000
"""Records that come while no driver runs."""
PER_BATCH = 4_000
HELD_AFTER = 3_500
"""Rows of a task of the query to a topic: more than the sink gathers before it sends."""
SEEN = 1_000

Unique = Callable[[str], str]


class Queries:
    """Three queries that run at the same time: to Parquet, to a topic, and one from the end, batch by batch."""

    def __init__(self, driver: DriverProcess, servers: str, folder: Path, unique: Unique) -> None:
        self.driver = driver
        self.servers = servers
        self.folder = folder
        self.source, self.news, self.target = (
            create(servers, unique(name), PARTITIONS) for name in ("source", "news", "target")
        )
        self.groups = {name: unique(name) for name in ("parquet", "topic", "news")}

    def start_parquet(self, gates: dict[str, Gate]) -> None:
        self.driver.ask(
            "start",
            name="parquet",
            source=self._options("parquet", self.source, "earliest", maxOffsetsPerTrigger=str(PER_BATCH)),
            sink={"path": self.out("parquet"), "checkpointLocation": str(self.checkpoint("parquet"))},
            gate=str(gates["parquet"].folder),
            after_rows=PER_BATCH // PARTITIONS // 2,
            from_batch=1,
        )

    def start_topic(self, gates: dict[str, Gate]) -> None:
        self.driver.ask(
            "start",
            name="topic",
            source=self._options("topic", self.source, "earliest", maxOffsetsPerTrigger=str(ROWS)),
            sink={
                "kafka.bootstrap.servers": self.servers,
                "topic": self.target,
                "checkpointLocation": str(self.checkpoint("topic")),
            },
            gate=str(gates["topic"].folder),
            after_rows=HELD_AFTER,
        )

    def start_news(self, gates: dict[str, Gate]) -> None:
        self.driver.ask(
            "start_by_batches",
            name="news",
            source=self._options("news", self.news, "latest"),
            path=self.out("news"),
            checkpoint=str(self.checkpoint("news")),
            gate=str(gates["news"].folder),
        )

    def _options(self, name: str, topic: str, starting: str, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "kafka.group.id": self.groups[name],
            "subscribe": topic,
            "startingOffsets": starting,
            **more,
        }

    def checkpoint(self, name: str) -> Path:
        return self.folder / f"checkpoint-{name}"

    def out(self, name: str) -> str:
        return str(self.folder / f"out-{name}")

    def committed(self, name: str) -> list[int]:
        """By partition."""
        topic = self.news if name == "news" else self.source
        found = committed(self.servers, self.groups[name])
        return [found.get(TopicPartition(topic, index), -1) for index in range(PARTITIONS)]

    def has_shown(self, name: str, total: int) -> bool:
        """Whether a query's progress is at the end of a topic with so many records."""
        return self.committed(name) == [total // PARTITIONS] * PARTITIONS


def test_nothing_is_lost_or_duplicated_when_the_driver_dies(
    driver: DriverProcess, broker: Broker, unique: Unique, make_gate: Callable[[], Gate], tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    queries = Queries(driver, servers, tmp_path, unique)
    gates = {name: make_gate() for name in queries.groups}
    fill(servers, queries.source, range(ROWS), PARTITIONS)

    with Flood(servers, queries.news, PARTITIONS) as news:
        queries.start_news(gates)
        driver.until(gates["news"].held, "the query from the end is at its gate")
    begins = where_the_first_batch_begins(queries)
    queries.start_parquet(gates)
    queries.start_topic(gates)
    each_is_in_the_middle(driver, queries, gates)
    driver.kill()
    # The group has only finished batches: one of the query to Parquet, none of the others.
    assert queries.committed("parquet") == [PER_BATCH // PARTITIONS] * PARTITIONS
    assert queries.committed("topic") == [0] * PARTITIONS
    assert queries.committed("news") == begins

    for gate in gates.values():
        gate.open()
    fill(servers, queries.source, range(ROWS, ROWS + MORE), PARTITIONS)
    driver.run()
    for start, name, total in (
        (queries.start_news, "news", news.sent),
        (queries.start_parquet, "parquet", ROWS + MORE),
        (queries.start_topic, "topic", ROWS + MORE),
    ):
        start(gates)
        driver.until(partial(queries.has_shown, name, total), f"the group of {name} is at the end")
        driver.ask("finish", name=name)
    assert driver.ask("numbers", path=queries.out("parquet")) == list(range(ROWS + MORE))
    assert len(numbers_in(servers, queries.target, PARTITIONS)) >= ROWS + MORE + SEEN, (
        "some were written twice"
    )
    assert committed_in(servers, queries.target, PARTITIONS) == list(range(ROWS + MORE)), "and count once"
    heard = [number for number in range(news.sent) if number // PARTITIONS >= begins[number % PARTITIONS]]
    assert driver.ask("numbers", path=queries.out("news")) == heard


def where_the_first_batch_begins(queries: Queries) -> list[int]:
    """By partition, for the query from the end. On a busy machine this batch may have no record, and then the records
    after it are those that could be lost."""
    end = planned(queries.checkpoint("news"), 0)
    begins, ends = (
        [end[part][queries.news][str(index)] for index in range(PARTITIONS)] for part in ("since", "topics")
    )
    assert 0 <= sum(begins) <= sum(ends)
    return begins


def each_is_in_the_middle(driver: DriverProcess, queries: Queries, gates: dict[str, Gate]) -> None:
    """Returns when each query is in a batch that is planned and not committed, at its gate."""
    driver.until(lambda: gates["parquet"].holds(PARTITIONS), "the query to Parquet is at its gate")
    driver.until(lambda: gates["topic"].holds(PARTITIONS), "the query to a topic is at its gate")
    driver.until(lambda: count(queries.servers, queries.target) >= SEEN, f"the target has {SEEN} records")
    for name, batches in (("parquet", [0, 1]), ("topic", [0]), ("news", [0])):
        assert logged(queries.checkpoint(name), "offsets") == batches
        assert logged(queries.checkpoint(name), "commits") == batches[:-1]
