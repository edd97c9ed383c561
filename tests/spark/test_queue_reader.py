"""A stream that works off a queue: the reader runs here, without Spark, except in the last tests."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import Broker
from penstock.client import Client, ClientError
from penstock.client.jobs_over_http import JobClient, LeasedJob
from penstock.client.wire import ClientSettings
from penstock.errors import ConfigError
from penstock.spark import queue_offset
from penstock.spark.options import parse
from penstock.spark.queue_leases import Leases
from penstock.spark.queue_options import MOST_JOBS_PER_TRIGGER
from penstock.spark.queue_reader import QueueReader
from penstock.spark.schema import spark_schema
from penstock.types import TopicPartition
from tests.spark.faults.processes import until

Unique = Callable[[str], str]
Work = Callable[..., QueueReader]

LEASE_S = 60
ALL = ReadMaxRows(1_000)
COLUMNS = ("key", "value", "offset")


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def queue(client: Client, unique: Unique) -> str:
    """A queue on a topic of its own name."""
    name = unique("packers")
    client.admin.create_queue(name, lease=LEASE_S)
    return name


@pytest.fixture
def work(broker: Broker) -> Iterator[Work]:
    with ExitStack() as stack:

        def start(queue: str, **more: str) -> QueueReader:
            given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "queue": queue, **more}
            reader = QueueReader(parse(given, streaming=True), spark_schema(COLUMNS))
            stack.callback(reader.stop)
            return reader

        yield start


def publish(client: Client, queue: str, numbers: range) -> None:
    for number in numbers:
        client.publish(queue, str(number))


def values(reader: QueueReader, parts: list[InputPartition]) -> list[int]:
    batches = [batch for part in parts for batch in reader.read(part)]
    return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


def counts(client: Client, queue: str) -> tuple[int, int]:
    """Messages that are not done, and of these the leased ones."""
    found = client.admin.queue(queue)
    return found.undone, sum(one.leased or 0 for one in found.partitions)


def test_jobs_are_leased_for_a_micro_batch_and_accepted_when_it_is_done(
    client: Client, queue: str, work: Work
) -> None:
    publish(client, queue, range(10))
    reader = work(queue)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(6))
    assert values(reader, reader.partitions(start, end)) == list(range(6))
    assert counts(client, queue) == (10, 6)
    second = reader.latestOffset(end, ALL)
    assert values(reader, reader.partitions(end, second)) == [6, 7, 8, 9]
    assert counts(client, queue) == (4, 4), "the jobs of the first are done"
    assert reader.latestOffset(second, ALL) == second, "nothing new"
    assert counts(client, queue) == (0, 0)


def test_a_micro_batch_that_is_replayed_by_the_next_driver_has_the_same_jobs_and_accepts_them(
    client: Client, queue: str, work: Work
) -> None:
    publish(client, queue, range(5))
    first = work(queue)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    publish(client, queue, range(5, 8))
    second = work(queue)  # the first is gone; Spark has stored the end, and asks for its partitions again
    assert values(second, second.partitions(start, end)) == list(range(5))
    assert counts(client, queue) == (8, 5), "their leases are those of the driver that is gone"
    after = second.latestOffset(end, ALL)
    assert values(second, second.partitions(end, after)) == [5, 6, 7]
    assert counts(client, queue) == (3, 3)


def test_jobs_of_a_micro_batch_that_was_done_are_accepted_by_the_next_driver(
    client: Client, queue: str, work: Work
) -> None:
    publish(client, queue, range(5))
    first = work(queue)
    end = first.latestOffset(first.initialOffset(), ALL)
    second = work(queue)
    assert second.latestOffset(end, ALL) == end
    assert counts(client, queue) == (0, 0)


def test_jobs_whose_lease_has_ended_are_delivered_again(
    client: Client, work: Work, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    queue = unique("short")
    client.admin.create_queue(queue, lease=1)
    publish(client, queue, range(3))
    first = work(queue)
    end = first.latestOffset(first.initialOffset(), ALL)
    first.stop()  # nobody renews
    second = work(queue)
    again = second.initialOffset()
    while second.latestOffset(again, ALL) == again:
        pass  # bounded by the test's own time limit
    with caplog.at_level("WARNING", "penstock.spark"):
        work(queue).latestOffset(end, ALL)
    # All of them, and twice as many receipts if their leases ended while more jobs were asked for.
    assert re.search(r"\b(\d+) of \1 jobs were done after their leases had ended", caplog.text)


def test_leases_are_renewed_while_a_micro_batch_runs(broker: Broker, client: Client, unique: Unique) -> None:
    queue = unique("short")
    client.admin.create_queue(queue, lease=3)
    publish(client, queue, range(3))
    renewals: list[int] = []
    renewed_at: list[float] = [time.monotonic()]

    class Counting(JobClient):
        def renew(self, receipts: Any) -> list[str]:
            renewals.append(len(receipts))
            asked = time.monotonic()
            over = super().renew(receipts)
            if not over:
                renewed_at.append(asked)
            return over

    settings = ClientSettings(bootstrap_servers=broker.bootstrap_servers)
    jobs = JobClient(settings, queue, "me")
    received = jobs.receive(3, 1_000)
    leases = Leases(lambda: Counting(settings, queue, "me"))
    leases.hold([job.receipt for job in received.jobs], received.lease_ms)
    until(lambda: len(renewals) >= 6, "six renewals, in the time of two leases")
    late = jobs.accept(leases.held) if leases.held else []
    stood_still = time.monotonic() - renewed_at[-1] > 3
    assert not late or stood_still
    leases.close()


def test_a_lease_that_is_over_is_not_renewed_for_ever(broker: Broker, client: Client, queue: str) -> None:
    publish(client, queue, range(2))
    settings = ClientSettings(bootstrap_servers=broker.bootstrap_servers)
    jobs = JobClient(settings, queue, "me")
    receipts = [job.receipt for job in jobs.receive(2, 1_000).jobs]
    jobs.accept(receipts[:1])
    leases = Leases(lambda: JobClient(settings, queue, "me"))
    leases.hold(receipts, 150)
    until(lambda: leases.held == tuple(receipts[1:]), "only the job that is leased is renewed")
    leases.close()


def test_available_now_takes_the_jobs_that_wait_now(client: Client, queue: str, work: Work) -> None:
    publish(client, queue, range(5))
    reader = work(queue)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    publish(client, queue, range(5, 9))
    end = reader.latestOffset(start, ReadMaxRows(3))
    end = reader.latestOffset(end, ReadMaxRows(3))
    assert values(reader, reader.partitions(start, end)) == [3, 4]
    assert reader.latestOffset(end, ALL) == end


def test_a_topic_that_was_created_again_is_no_source_of_a_replay(
    client: Client, queue: str, work: Work
) -> None:
    publish(client, queue, range(3))
    first = work(queue)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    end["ids"] = {queue: "00000000-0000-0000-0000-000000000001"}
    with pytest.raises(Exception, match="deleted and created again"):
        work(queue).partitions(start, end)


def test_an_unknown_queue_is_told(work: Work, unique: Unique) -> None:
    reader = work(unique("nothing"))
    with pytest.raises(ClientError, match="there is no queue"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_offsets_survive_the_checkpoint_and_are_small() -> None:
    jobs = [LeasedJob(TopicPartition("t", n % 2), n, f"receipt-of-a-consumer-{n}") for n in range(1_000)]
    offset = queue_offset.QueueOffset(
        queue="q",
        consumer="me",
        batch=3,
        jobs=queue_offset.ranges_of([job._replace(offset=job.offset // 2) for job in jobs]),
        topic_ids={"t": "1"},
        lease_ms=5,
        receipts=tuple(job.receipt for job in jobs),
    )
    assert offset.jobs == {TopicPartition("t", 0): [(0, 499)], TopicPartition("t", 1): [(0, 499)]}
    assert queue_offset.from_json(offset.to_json(), "q") == offset
    assert len(str(offset.to_json())) < 20_000


@pytest.mark.parametrize("other", [{}, 5, {"version": 1, "topics": {}}, {"version": 1, "queue": "other"}])
def test_a_checkpoint_of_anything_else_is_refused(other: object) -> None:
    with pytest.raises(ConfigError, match="a checkpoint of a stream that works off queue 'q'"):
        queue_offset.from_json(other, "q")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"subscribe": "orders"}, "subscribe"),
        ({"startingOffsets": "earliest"}, "startingOffsets"),
        ({"kafka.group.id": "g"}, "kafka.group.id"),
        ({"maxJobsPerTrigger": "0"}, "maxJobsPerTrigger"),
        ({"maxJobsPerTrigger": str(MOST_JOBS_PER_TRIGGER + 1)}, "at most 50000"),
        ({"queue": ""}, "queue"),
        ({"queue": "x" * 250}, "queue"),
    ],
)
def test_options_that_contradict_a_queue_are_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse({"kafka.bootstrap.servers": "127.0.0.1:1", "queue": "q", **more}, streaming=True)


def test_a_queue_is_worked_off_by_streams_alone() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "queue": "q"}
    with pytest.raises(ConfigError, match="readStream"):
        parse(given, streaming=False)
    with pytest.raises(ConfigError, match="queue with it"):
        parse(
            {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "maxJobsPerTrigger": "5"},
            streaming=True,
        )


def test_spark_works_off_a_queue(
    spark: SparkSession, broker: Broker, client: Client, queue: str, checkpoint: str, tmp_path: Path
) -> None:
    for number in range(50):
        client.publish(queue, json={"id": number})
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.options(queue=queue, maxJobsPerTrigger="20", valueFormat="json", valueSchema="id int")
    writer = (
        reader.load().select("value.id").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    )
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows) == list(range(50))
    assert counts(client, queue) == (0, 0)
    assert len([each for each in query.recentProgress if each.numInputRows]) == 3
