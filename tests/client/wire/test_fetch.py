"""Ranges of a partition, read from an embedded broker."""

import os
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.client import Refused
from penstock.client.wire import Cluster, OffsetGone, fetch_range
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.types import TopicPartition
from tests.client.wire.conftest import Connect
from tests.client.wire.records import append, append_numbers, make_batch, offsets_of, records_of

Unique = Callable[[str], str]
COUNT = 100


@pytest.fixture
def tp(cluster: Cluster, unique: Unique) -> TopicPartition:
    """A partition of 100 records in batches of 10, each value its own offset."""
    fresh = TopicPartition(unique("numbers"), 0)
    cluster.create_topic(fresh.topic)
    append_numbers(cluster, fresh, COUNT)
    return fresh


@pytest.mark.parametrize("fetch_bytes", [1, 300, 4 << 20])
def test_a_range_is_covered_whole_for_any_fetch_size(
    cluster: Cluster, tp: TopicPartition, fetch_bytes: int
) -> None:
    records = list(records_of(fetch_range(cluster, tp, 0, COUNT, fetch_bytes=fetch_bytes)))
    assert [record.offset for record in records] == list(range(COUNT))
    assert [record.value for record in records] == [b"%d" % n for n in range(COUNT)]


def test_a_range_comes_in_whole_batches_and_no_more_of_them_than_needed(
    cluster: Cluster, tp: TopicPartition
) -> None:
    assert offsets_of(fetch_range(cluster, tp, 25, 51)) == list(range(20, 60))
    assert offsets_of(fetch_range(cluster, tp, 30, 40)) == list(range(30, 40))


@pytest.mark.parametrize(("start", "end"), [(5, 5), (7, 3), (COUNT, COUNT)])
def test_an_empty_range_gives_nothing(cluster: Cluster, tp: TopicPartition, start: int, end: int) -> None:
    assert list(fetch_range(cluster, tp, start, end)) == []


def test_one_small_fetch_gives_one_batch(cluster: Cluster, tp: TopicPartition) -> None:
    assert len(list(fetch_range(cluster, tp, 0, COUNT, fetch_bytes=1))) == COUNT // 10


def test_a_batch_larger_than_a_fetch_comes_whole(cluster: Cluster, tp: TopicPartition) -> None:
    append(cluster, tp, make_batch([os.urandom(300_000)]))
    chunks = list(fetch_range(cluster, tp, COUNT - 1, COUNT + 1, fetch_bytes=1_000))
    assert offsets_of(chunks) == list(range(COUNT - 10, COUNT + 1))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_come_as_they_are_stored(cluster: Cluster, tp: TopicPartition, codec: int) -> None:
    append(cluster, tp, make_batch([b"same" * 100] * 50, compression=codec))
    records = list(records_of(fetch_range(cluster, tp, COUNT, COUNT + 50)))
    assert [record.value for record in records] == [b"same" * 100] * 50


def test_two_ranges_may_be_read_in_turns(cluster: Cluster, tp: TopicPartition) -> None:
    pairs = zip(
        records_of(fetch_range(cluster, tp, 0, COUNT, fetch_bytes=1)),
        records_of(fetch_range(cluster, tp, 0, COUNT, fetch_bytes=200)),
        strict=True,
    )
    assert all(left == right for left, right in pairs)


def test_a_reader_that_stops_early_does_not_affect_others(cluster: Cluster, tp: TopicPartition) -> None:
    for _ in range(3):
        reading = fetch_range(cluster, tp, 0, COUNT, fetch_bytes=1)
        assert offsets_of([next(reading)]) == list(range(10))
        assert cluster.topics([tp.topic])
        reading.close()
        assert offsets_of(fetch_range(cluster, tp, 50, 60)) == list(range(50, 60))


def test_a_reader_leaves_responses_of_other_requests_alone(cluster: Cluster, tp: TopicPartition) -> None:
    shared = cluster.connect_once(cluster.leader_of(tp))
    shared.send(ApiKey.METADATA, MetadataRequest(topics=[]))
    assert offsets_of(fetch_range(cluster, tp, 0, COUNT)) == list(range(COUNT))
    assert shared.outstanding == 1
    assert isinstance(shared.receive(), MetadataResponse)


def test_the_connection_of_a_finished_reader_is_used_again(cluster: Cluster, tp: TopicPartition) -> None:
    leader = cluster.leader_of(tp)
    before = cluster.connect_once(leader)
    list(fetch_range(cluster, tp, 0, COUNT, fetch_bytes=1))
    assert cluster.connect_once(leader) is before


def test_deleted_offsets_are_an_error_that_names_the_first_one_left(
    broker: Broker, cluster: Cluster, tp: TopicPartition
) -> None:
    _delete_before(broker, tp, 30)
    with pytest.raises(OffsetGone, match=r"offset 5 does not exist.*30 up to 100.*deletion") as gone:
        list(fetch_range(cluster, tp, 5, COUNT))
    error = gone.value
    assert (error.topic_partition, error.wanted, error.earliest, error.latest) == (
        tp,
        5,
        30,
        100,
    )
    assert offsets_of(fetch_range(cluster, tp, 30, COUNT)) == list(range(30, COUNT))


def test_a_deletion_ahead_of_a_reader_is_an_error(
    broker: Broker, cluster: Cluster, tp: TopicPartition
) -> None:
    reading = fetch_range(cluster, tp, 0, COUNT, fetch_bytes=1)
    next(reading)
    _delete_before(broker, tp, 60)
    with pytest.raises(OffsetGone) as gone:
        list(reading)
    assert gone.value.earliest == 60
    assert gone.value.wanted in (10, 20), "the request that ran ahead may have been faster"


def test_a_range_past_the_end_is_given_up_after_the_records_that_are_there(
    broker: Broker, connect: Connect, tp: TopicPartition
) -> None:
    reading = fetch_range(connect(broker.bootstrap_servers, retry_for_ms=50), tp, 90, 110, max_wait_ms=10)
    assert offsets_of([next(reading)]) == list(range(90, 100))
    with pytest.raises(OffsetGone, match=r"offset 100 .*the log ends before it.*tried ") as gone:
        next(reading)
    assert (gone.value.earliest, gone.value.latest) == (0, 100)


def test_a_range_that_starts_past_the_end_is_given_up(
    broker: Broker, connect: Connect, tp: TopicPartition
) -> None:
    impatient = connect(broker.bootstrap_servers, retry_for_ms=50)
    with pytest.raises(OffsetGone, match="offset 500") as gone:
        list(fetch_range(impatient, tp, 500, 510, max_wait_ms=10))
    assert gone.value.latest == 100


def test_records_that_come_while_the_reader_waits_are_read(
    broker: Broker, connect: Connect, cluster: Cluster, tp: TopicPartition
) -> None:
    reading = records_of(fetch_range(connect(broker.bootstrap_servers), tp, 90, 101))
    assert [next(reading).offset for _ in range(10)] == list(range(90, 100))
    append(cluster, tp, make_batch([b"late"]))
    assert [record.value for record in reading] == [b"late"]


def test_a_missing_topic_is_an_error(broker: Broker, connect: Connect) -> None:
    impatient = connect(broker.bootstrap_servers, retry_for_ms=20)
    with pytest.raises(Refused, match="no such topic"):
        list(fetch_range(impatient, TopicPartition("missing", 0), 0, 1))
    assert "missing" not in impatient.topics()


def _delete_before(broker: Broker, tp: TopicPartition, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([Position(tp.topic, tp.partition, offset)]).values():
        future.result(timeout=60)
