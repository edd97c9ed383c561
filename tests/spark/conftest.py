"""One Spark session that all of these tests share: starting a JVM takes longer than most of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from penstock import Broker
from penstock.spark.java import why_not
from tests.spark.forks import Forks
from tests.spark.s3_server import S3Server

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are over before the JVM's second compiler or a parallel collector has paid for itself. Commands that start
Spark get these by SPARK_SUBMIT_OPTS."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(300))
            # One worker runs all of these. (Those that start a JVM of their own are in the group "jvms".)
            item.add_marker(pytest.mark.xdist_group("spark"))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    forks = Forks(folder)
    # Six tasks at a time, since some tests hold those of three queries at gates.
    builder = SparkSession.builder.master("local[6]").appName("penstock-tests")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(folder)}.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(forks.command))
        session = builder.getOrCreate()
    yield session
    session.stop()
    forks.end()


@pytest.fixture
def make_topic(broker: Broker, unique: Callable[[str], str]) -> Callable[..., str]:
    """Creates a topic with a name of its own."""

    def make(prefix: str = "topic", partitions: int = 1, **configs: str) -> str:
        name = unique(prefix)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(60)
        return name

    return make


@pytest.fixture
def produce(broker: Broker) -> Callable[..., None]:
    """Sends values (or keyword arguments of Producer.produce) to a topic and waits until all are acknowledged."""

    def send(topic: str, values: list[object], **settings: object) -> None:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, **settings}
        )
        for each in values:
            arguments = each if isinstance(each, dict) else {"value": each}
            producer.produce(topic, **arguments)
        assert producer.flush(30) == 0

    return send


@pytest.fixture
def read(spark: SparkSession, broker: Broker) -> Callable[..., DataFrame]:
    """A batch read of a topic, with more options by keyword (dots as double underscores)."""

    def load(topic: str, **options: str) -> DataFrame:
        reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap_servers)
        if topic:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader.load()

    return load


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.end()


@pytest.fixture
def s3_path(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket, which the variables of this process lead to."""
    for name, value in s3_server.variables().items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.make_bucket()}/lake"
