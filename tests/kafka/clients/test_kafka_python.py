"""kafka-python: the pure-Python client, which sends newer versions of the admin APIs than the others."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from penstock import Broker
from tests.kafka.clients.kafka_python_consumer import new_consumer
from tests.kafka.waiting import wait_until

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60
PATIENCE_MS = PATIENCE_SECONDS * 1000


@pytest.fixture
def admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def consumer(broker: Broker, *topics: str, **settings: object) -> KafkaConsumer:
    return new_consumer(broker, *topics, consumer_timeout_ms=PATIENCE_MS, **settings)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_round_trip_with_every_codec(broker: Broker, unique: Unique, codec: str | None) -> None:
    topic = unique("kp")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all", compression_type=codec)
    sent = [
        producer.send(topic, str(number).encode(), key=b"k", headers=[("h", b"v")]) for number in range(100)
    ]
    assert [future.get(timeout=PATIENCE_SECONDS).offset for future in sent] == list(range(100))
    producer.close()
    reader = consumer(broker, topic)
    records = [next(reader) for _ in range(100)]
    reader.close()
    assert [record.value for record in records] == [str(number).encode() for number in range(100)]
    assert records[0].headers == [("h", b"v")]


def test_a_group_commits_and_resumes(broker: Broker, unique: Unique) -> None:
    topic, group = unique("kp"), unique("group")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for number in range(6):
        producer.send(topic, str(number).encode())
    producer.close()
    first = consumer(broker, topic, group_id=group, enable_auto_commit=False, max_poll_records=3)
    for _ in range(3):
        next(first)
    first.commit()
    first.close()
    second = consumer(broker, topic, group_id=group, enable_auto_commit=False)
    assert next(second).offset == 3
    assert second.committed(TopicPartition(topic, 0)) == 3
    second.close()


def test_two_members_share_the_partitions(broker: Broker, admin: KafkaAdminClient, unique: Unique) -> None:
    topic, group = unique("kp"), unique("group")
    admin.create_topics([NewTopic(topic, 4, 1)])
    settings = {"group_id": group, "heartbeat_interval_ms": 200, "session_timeout_ms": 30_000}
    one, two = consumer(broker, topic, **settings), consumer(broker, topic, **settings)
    for member in (
        one,
        two,
    ):  # a member that assigns partitions before it knows them never assigns them again
        assert member.partitions_for_topic(topic) == set(range(4))

    with polled(one) as ours, polled(two) as theirs:
        wait_until(lambda: len(ours) == len(theirs) == 2)
        assert ours | theirs == {TopicPartition(topic, index) for index in range(4)}
        assert not ours & theirs


@contextmanager
def polled(member: KafkaConsumer) -> Iterator[set[TopicPartition]]:
    """Has a thread of its own poll this member, and close it at the end; yields the partitions that it has. In one
    thread, the polls would be short, and a client that cannot finish a step within one begins it again."""
    assigned: set[TopicPartition] = set()
    is_over = Event()

    def poll() -> None:
        while not is_over.is_set():
            member.poll(1000)
            now = member.assignment()
            assigned.intersection_update(now)
            assigned.update(now)
        member.close()

    with ThreadPoolExecutor(1) as thread:
        polling = thread.submit(poll)
        try:
            yield assigned
        finally:
            is_over.set()
            polling.result()


def test_offsets_are_found_by_end_and_by_time(broker: Broker, unique: Unique) -> None:
    topic = unique("kp")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0)
    for number in range(5):
        producer.send(topic, b"x", timestamp_ms=1_700_000_000_000 + number * 1000).get(
            timeout=PATIENCE_SECONDS
        )
    producer.close()
    reader = consumer(broker)
    partition = TopicPartition(topic, 0)
    assert reader.beginning_offsets([partition]) == {partition: 0}
    assert reader.end_offsets([partition]) == {partition: 5}
    assert reader.offsets_for_times({partition: 1_700_000_001_500})[partition].offset == 2
    reader.close()


def test_topics_configs_and_groups_are_administered(
    broker: Broker, admin: KafkaAdminClient, unique: Unique
) -> None:
    topic = unique("kp")
    admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "60000"})])
    assert topic in admin.list_topics()
    described = admin.describe_topics([topic])
    assert len(described[0]["partitions"]) == 2
    configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "60000" in str(configs)
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    assert admin.describe_cluster()["brokers"]
