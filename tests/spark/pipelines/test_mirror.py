"""Topics of another cluster into this one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock import Broker
from penstock.client.wire import ClientSettings, Cluster
from penstock.errors import ConfigError
from penstock.spark import Mirrored, PipelineError, mirror
from penstock.spark.pipelines.mirroring import MAX_SYNC_POINTS, SyncPoints
from penstock.types import TopicPartition
from tests.spark.committed import committed_values

from .conftest import record

TP = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def other() -> Iterator[Broker]:
    """Another cluster."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def there(other: Broker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap_servers=other.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def here(broker: Broker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def copy(spark: SparkSession, broker: Broker, other: Broker, checkpoint: str) -> Callable[..., Mirrored]:
    def run(topic: str, **more: Any) -> Mirrored:
        given = {"checkpoint": checkpoint, "bootstrap_servers": broker.bootstrap_servers, **more}
        return mirror(spark, topic, from_servers=other.bootstrap_servers, **given)

    return run


def fill(broker: Broker, topic: str, records: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for each in records:
        producer.produce(topic, **each)
    assert producer.flush(30) == 0


def whole(reader: Any, servers: str, topic: str) -> list[tuple[Any, ...]]:
    frame = reader.format("penstock").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    rows = frame.option("includeHeaders", "true").option("kafka.isolation.level", "read_committed").load()
    found = rows.orderBy("partition", "offset").select("partition", "key", "value", "timestamp", "headers")
    return [tuple(row) for row in found.collect()]


def test_a_copy_is_the_original_record_by_record_and_goes_on(
    spark: SparkSession,
    broker: Broker,
    other: Broker,
    there: Cluster,
    here: Cluster,
    copy: Callable[..., Mirrored],
    unique: Callable[[str], str],
) -> None:
    topic = unique("orders")
    there.create_topic(topic, 3)
    fill(other, topic, [record(number) for number in range(60)])
    first = copy(topic, prefix="old.")
    assert (first.totals.rows, first.topics) == (60, {topic: f"old.{topic}"})
    fill(other, topic, [record(number) for number in range(60, 90)])
    assert copy(topic, prefix="old.").totals.rows == 30
    assert len(here.topics([f"old.{topic}"])[f"old.{topic}"].partitions) == 3
    originals = whole(spark.read, other.bootstrap_servers, topic)
    assert len(originals) == 90
    assert whole(spark.read, broker.bootstrap_servers, f"old.{topic}") == originals


def test_a_group_continues_here_where_it_was_there(
    other: Broker,
    broker: Broker,
    there: Cluster,
    here: Cluster,
    copy: Callable[..., Mirrored],
    unique: Callable[[str], str],
) -> None:
    topic, group, behind = unique("orders"), unique("billing"), unique("behind")
    there.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    fill(other, topic, [{"value": str(number)} for number in range(30)])
    there.commit(group, {tp: 25})
    there.commit(behind, {tp: 3})
    settings = {"groups": [group, behind, unique("unknown")], "from_options": {"maxOffsetsPerTrigger": "10"}}
    done = copy(topic, **settings)
    offset = here.committed(group)[tp]
    assert done.groups == {group: {str(tp): offset}}, "the other one is behind all that is known"
    values = committed_values(broker.bootstrap_servers, topic, 1)
    assert values == [str(number) for number in range(30)]
    # Each micro-batch ends with the marker of its transaction: those of offsets 0 to 9 are 0 to 9, then comes 11.
    assert offset <= 22, "it misses nothing"
    assert offset >= 10, "and reads at most two micro-batches again"
    assert copy(topic, **settings).groups == {}, "an offset here never goes back"


@given(
    points=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), max_size=40),
    asked=st.integers(0, 3_000),
)
def test_a_translation_never_misses_a_record(points: list[tuple[int, int]], asked: int) -> None:
    known = SyncPoints()
    source = target = 0
    pairs = []
    for more, wider in points:
        source, target = source + more, target + max(more, wider)
        known.add(TP, source, target)
        known.add(TP, source, target + 99)  # a micro-batch that is replayed
        pairs.append((source, target))
    right = [target for source, target in pairs if source <= asked]
    assert known.translated(TP, asked) == (right[-1] if right else None)


def test_sync_points_are_bounded_and_the_newest_stays() -> None:
    known = SyncPoints()
    for number in range(1, 3 * MAX_SYNC_POINTS):
        known.add(TP, number, 2 * number)
        assert len(known.sources[TP]) <= MAX_SYNC_POINTS
        assert known.translated(TP, number) == 2 * number
    for asked in range(3 * MAX_SYNC_POINTS):
        found = known.translated(TP, asked)
        assert found is None or found <= 2 * asked


def test_what_cannot_be_mirrored_is_refused(
    spark: SparkSession,
    broker: Broker,
    other: Broker,
    there: Cluster,
    here: Cluster,
    copy: Callable[..., Mirrored],
    unique: Callable[[str], str],
) -> None:
    wide = unique("wide")
    there.create_topic(wide, 2)
    here.create_topic(wide, 1)
    with pytest.raises(PipelineError, match="has 1 partitions, and there it has 2"):
        copy(wide)
    with pytest.raises(PipelineError, match="copied to itself"):
        copy(wide, bootstrap_servers=other.bootstrap_servers)
    with pytest.raises(ConfigError, match="topics and partitions that exist"):
        copy(unique("missing"))
    for settings, said in (
        ({"prefix": "not a name"}, "prefix"),
        ({"checkpoint": ""}, "checkpoint"),
        ({"options": {"topic": "x"}}, "topics keep their names"),
        ({"from_options": {"valueFormat": "json", "valueSchema": "a int"}}, "valueFormat"),
    ):
        with pytest.raises(ConfigError, match=said):
            copy(wide, **settings)
    with pytest.raises(ConfigError, match="one topic or more"):
        copy("")
