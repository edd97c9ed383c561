"""The consumer groups of streams: their names, and how long they live. The reader runs here, without Spark."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock import Broker
from penstock.client.wire import ClientSettings, Cluster
from penstock.config import GroupSettings
from penstock.errors import ConfigError
from penstock.spark.options import MAX_QUERY_NAME_CHARS, parse
from penstock.spark.pipelines.groups import group_options
from penstock.spark.schema import spark_schema
from penstock.spark.stream_reader import StreamReader
from penstock.types import TopicPartition

Unique = Callable[[str], str]
Read = Callable[..., StreamReader]

NOW = ReadAllAvailable()


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def read() -> Iterator[Read]:
    with ExitStack() as stack:

        def start(broker: Broker, topic: str, **more: str) -> StreamReader:
            reader = StreamReader(
                options_of(broker.bootstrap_servers, topic, **more), spark_schema(["value"])
            )
            stack.callback(reader.stop)
            return reader

        yield start


def options_of(servers: str, topic: str, **more: str) -> Any:
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    return parse(
        {**given, **{name.replace("__", "."): value for name, value in more.items()}}, streaming=True
    )


def delete_group(broker: Broker, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_consumer_groups([group])[group].result(60)


def test_a_group_has_the_name_of_its_query_whatever_the_checkpoint(
    broker: Broker, cluster: Cluster, read: Read, unique: Unique
) -> None:
    topic, name = unique("topic"), unique("billing")
    cluster.create_topic(topic, 1)
    for _ in range(2):  # each reader begins a checkpoint of its own
        reader = read(broker, topic, queryName=name)
        start = reader.initialOffset()
        reader.latestOffset(start, NOW)
        assert start["group"] == f"spark-penstock-source-{name}"
    assert cluster.committed(f"spark-penstock-source-{name}") == {TopicPartition(topic, 0): 0}


def test_the_name_of_the_query_takes_precedence_over_that_of_the_checkpoint(
    broker: Broker, cluster: Cluster, read: Read, unique: Unique
) -> None:
    topic, name = unique("topic"), unique("billing")
    cluster.create_topic(topic, 1)
    start = read(broker, topic).initialOffset()
    read(broker, topic, queryName=name, groupIdPrefix="jobs").latestOffset(start, NOW)
    assert cluster.committed(f"jobs-{name}") == {TopicPartition(topic, 0): 0}
    assert cluster.committed(start["group"]) == {}


def test_a_group_that_the_user_named_has_no_other_name() -> None:
    options = options_of("127.0.0.1:1", "orders", kafka__group__id="mine", queryName="billing")
    assert options.group_name == "mine"


def test_a_stream_that_waits_for_records_renews_its_group(
    broker: Broker, cluster: Cluster, read: Read, unique: Unique
) -> None:
    topic, tp = unique("topic"), TopicPartition(unique("topic"), 0)
    cluster.create_topic(tp.topic, 1)
    # Renewed ten times within the retention: with 9 ms whenever Spark asks for offsets.
    reader = read(broker, tp.topic, queryName=topic, groupRetention="9ms")
    start = reader.initialOffset()
    for _ in range(2):
        assert reader.latestOffset(start, NOW) == start
        assert cluster.committed(start["group"]) == {tp: 0}
        delete_group(broker, start["group"])


def test_a_stream_does_not_commit_the_same_offsets_for_every_trigger(
    broker: Broker, cluster: Cluster, read: Read, unique: Unique
) -> None:
    tp = TopicPartition(unique("topic"), 0)
    cluster.create_topic(tp.topic, 1)
    reader = read(broker, tp.topic)
    start = reader.initialOffset()
    reader.latestOffset(start, NOW)
    delete_group(broker, start["group"])
    reader.latestOffset(start, NOW)
    assert cluster.committed(start["group"]) == {}


@pytest.mark.parametrize(
    ("naming", "expires"),
    [({}, True), ({"queryName": "billing"}, True), ({"kafka__group__id": "mine"}, False)],
)
def test_the_group_of_a_stream_that_is_gone_expires_unless_the_user_named_it(
    read: Read, naming: dict[str, str], expires: bool
) -> None:
    with (
        Broker(groups=GroupSettings(offsets_retention_check_interval_ms=20)) as broker,
        Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as cluster,
    ):
        cluster.create_topic("orders", 1)
        other = TopicPartition("orders", 0)
        reader = read(broker, "orders", groupRetention="1ms", **naming)
        start = reader.initialOffset()
        reader.latestOffset(start, NOW)
        if expires:
            while cluster.committed(start["group"]):
                pass  # bounded by the test's own time limit
            return
        cluster.commit("canary", {other: 0}, retention_ms=1)
        while cluster.committed("canary"):
            pass  # its expiry shows that the coordinator has looked at all groups
        assert cluster.committed("mine") == {other: 0}


def test_a_query_has_a_name_that_a_group_can_have() -> None:
    assert options_of("127.0.0.1:1", "orders", queryName="x" * MAX_QUERY_NAME_CHARS).query_name
    for name in ("", "x" * (MAX_QUERY_NAME_CHARS + 1), "two\nlines"):
        with pytest.raises(ConfigError, match="queryName"):
            options_of("127.0.0.1:1", "orders", queryName=name)


def test_groups_of_pipelines_are_named_after_their_folder() -> None:
    one, two = group_options("archive", "/data/my lake/"), group_options("archive", "/other/my lake")
    assert one["groupIdPrefix"] == "penstock-archive"
    assert one["queryName"].startswith("my_lake-")
    assert one["queryName"] != two["queryName"]
    assert one == group_options("archive", "/data/my lake")
