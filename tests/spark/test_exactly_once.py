"""The sink writes each micro-batch once: whatever is tried again, replayed or given up."""

import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock import Broker
from penstock.client.attempts import AttemptClient
from penstock.client.errors import ClientError, Denied
from penstock.errors import ConfigError
from penstock.spark import sink_attempts
from penstock.spark.sink import PenstockArrowWriter, PenstockStreamArrowWriter, Written
from penstock.spark.sink_attempts import NotExactlyOnce
from penstock.spark.sink_options import SinkOptions
from tests.spark.committed import committed_values

MakeTopic = Callable[..., str]
PATIENCE_SECONDS = 120.0
PARTITIONS = 2
SCHEMA = StructType([StructField("value", BinaryType())])


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in several batches."""
    return iter([pa.RecordBatch.from_pydict({"value": [value.encode()]}) for value in values])


class Job:
    """A batch query with `txnAppId` and `txnVersion`, step by step as Spark does it."""

    def __init__(self, servers: str, topic: str, version: int = 0, **options: str) -> None:
        given = {"kafka.bootstrap.servers": servers, "topic": topic, "txnAppId": topic} | options
        parsed = SinkOptions.from_options({**given, "txnVersion": str(version)})
        self.writer = PenstockArrowWriter(parsed.client, SCHEMA, parsed)
        self.write = self.writer.write
        self.commit = self.writer.commit
        self.abort = self.writer.abort


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic("once", PARTITIONS)


@pytest.fixture
def found(broker: Broker, topic: str) -> Callable[[], list[str]]:
    return lambda: sorted(committed_values(broker.bootstrap_servers, topic, PARTITIONS))


def test_of_two_attempts_of_a_task_only_the_reported_one_counts(
    broker: Broker, topic: str, found: Callable[[], list[str]]
) -> None:
    job = Job(broker.bootstrap_servers, topic)
    job.write(rows("a", "b"))  # its executor is lost before Spark hears of it
    reported = [job.write(rows("a", "b")), job.write(rows("c"))]
    job.commit(list(reported))
    assert found() == ["a", "b", "c"]


def test_a_job_that_is_repeated_after_its_commit_writes_nothing(
    broker: Broker, topic: str, found: Callable[[], list[str]]
) -> None:
    job = Job(broker.bootstrap_servers, topic)
    reported = job.write(rows("a"))
    job.commit([reported])
    job.commit([reported])
    again = Job(broker.bootstrap_servers, topic)
    replayed = again.write(rows("a"))
    assert replayed.rows == 0
    again.commit([replayed])
    following = Job(broker.bootstrap_servers, topic, version=1)
    following.commit([following.write(rows("b"))])
    assert found() == ["a", "b"]


def test_a_replay_that_has_begun_before_the_commit_is_aborted(
    broker: Broker, topic: str, found: Callable[[], list[str]]
) -> None:
    first, second = Job(broker.bootstrap_servers, topic), Job(broker.bootstrap_servers, topic)
    reported, replayed = first.write(rows("a")), second.write(rows("a"))
    first.commit([reported])
    second.commit([replayed])
    assert found() == ["a"]


def test_a_job_that_fails_ends_its_attempts_and_may_be_tried_again(
    broker: Broker, topic: str, found: Callable[[], list[str]]
) -> None:
    job = Job(broker.bootstrap_servers, topic)
    lost = job.write(rows("a"))
    job.abort([lost, None])
    assert found() == []
    with pytest.raises(Denied, match="nothing was committed"):
        job.commit([lost])
    job.commit([job.write(rows("a"))])
    assert found() == ["a"]


def test_tasks_without_rows_need_no_producer(broker: Broker, topic: str) -> None:
    job = Job(broker.bootstrap_servers, topic)
    reported = job.write(rows())
    assert reported.written_as is None
    job.commit([reported])


def test_a_task_that_sends_rows_gives_signs_of_life(
    broker: Broker, topic: str, found: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each batch, since a third of the timeout is no time at all."""
    renewed: list[str] = []
    monkeypatch.setattr(sink_attempts, "SIGNS_OF_LIFE", 1e9)
    monkeypatch.setattr("penstock.spark.sink_sender.GATHERED_BYTES", 1)
    renew = AttemptClient.renew

    def noting(self: AttemptClient, owner: str) -> None:
        renew(self, owner)
        renewed.append(owner)

    monkeypatch.setattr(AttemptClient, "renew", noting)
    job = Job(broker.bootstrap_servers, topic)
    job.commit([job.write(rows("a", "b"))])
    assert renewed == [f"{topic}:{topic}"] * 2
    assert found() == ["a", "b"]


def test_on_brokers_without_attempts_the_sink_says_once_that_it_writes_at_least_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker without an HTTP port looks like any other Kafka."""
    with Broker(http=None) as broker:
        check_at_least_once(broker.bootstrap_servers, caplog)


def check_at_least_once(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        for version in range(2):
            reported = Job(servers, "plain", version).write(rows("a"))
            assert reported.written_as is None
            assert reported.rows == 1
    [line] = [record.message for record in caplog.records if "at least once" in record.message]
    assert servers in line
    with pytest.raises(NotExactlyOnce, match="exactlyOnce=true"):
        Job(servers, "plain", exactlyOnce="true").write(rows("a"))


def test_brokers_that_do_not_answer_are_no_reason_to_write_at_least_once() -> None:
    job = Job("127.0.0.1:1", "orders", **{"kafka.max.block.ms": "0"})
    with pytest.raises(ClientError, match="exactlyOnce=false does without"):
        job.write(rows("a"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"txnAppId": "x"}, "txnAppId and txnVersion belong together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ({"txnAppId": " ", "txnVersion": "1"}, "a name for what is written"),
        ({"txnAppId": "x", "txnVersion": "1", "exactlyOnce": "false"}, "txnAppId asks for it"),
        ({"exactlyOnce": "true"}, "also txnAppId and txnVersion"),
        ({"exactlyOnce": "maybe"}, "one of auto, true, false"),
        ({"exactlyOnce": "true", "asyncProgressTrackingEnabled": "true"}, "which replays other rows"),
    ],
)
def test_options_of_batch_queries_that_contradict_each_other(options: dict[str, str], words: str) -> None:
    def make() -> PenstockArrowWriter:
        parsed = SinkOptions.from_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **options})
        return PenstockArrowWriter(parsed.client, SCHEMA, parsed)

    with pytest.raises(ConfigError, match=words):
        make()


def test_micro_batches_whose_offsets_spark_does_not_store_are_written_at_least_once() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    assert SinkOptions.from_options(given).exactly_once == "auto"
    tracked_later = SinkOptions.from_options({**given, "asyncProgressTrackingEnabled": "true"})
    assert tracked_later.exactly_once == "false"


def test_a_streaming_query_has_names_and_numbers_of_its_own() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "txnAppId": "x", "txnVersion": "1"}
    options = SinkOptions.from_options(given)
    with pytest.raises(ConfigError, match="a streaming query has an id"):
        PenstockStreamArrowWriter(options.client, SCHEMA, options)


def test_a_micro_batch_that_is_replayed_is_written_once(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    found: Callable[[], list[str]],
    tmp_path: Path,
    checkpoint: str,
) -> None:
    """Its driver was killed after the sink's commit, before Spark had noted that the micro-batch is done."""
    folder = str(tmp_path / "rows")
    spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as value").write.parquet(folder)

    def run() -> None:
        query = (
            spark.readStream.schema("value string")
            .parquet(folder)
            .writeStream.format("penstock")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("topic", topic)
            .option("exactlyOnce", "true")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_SECONDS)

    run()
    for name in ("0", ".0.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)
    run()
    assert found() == sorted(map(str, range(100)))


def test_reports_travel_between_processes(broker: Broker, topic: str) -> None:
    reported = Job(broker.bootstrap_servers, topic).write(rows("a"))
    copy = pickle.loads(pickle.dumps(reported))
    assert isinstance(copy, Written)
    assert copy == reported
