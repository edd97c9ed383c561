"""Clients with incremental fetch sessions read everything. librdkafka and aiokafka have no sessions."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import NewTopic
from prometheus_client.parser import text_string_to_metric_families

from penstock import Broker
from tests.kafka.clients.kafka_python_consumer import new_consumer
from tests.kafka.programs.builds import java_client
from tests.kafka.programs.pipe import Program
from tests.kafka.waiting import wait_until

Unique = Callable[[str], str]
PARTITIONS = 60


def metric(broker: Broker, name: str) -> float:
    text = httpx.get(f"{broker.http_url}/metrics", timeout=30).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    [found] = [sample.value for sample in samples if sample.name == name]
    return float(found)


def create(broker: Broker, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    admin.close()


def publish(broker: Broker, topic: str, values: range, partitions: int = PARTITIONS) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, str(value), partition=value % partitions)
    assert producer.flush(60) == 0


def test_kafka_python_reads_many_partitions_in_a_session(broker: Broker, unique: Unique) -> None:
    topic, opened = unique("wide"), metric(broker, "penstock_fetch_sessions_opened_total")
    create(broker, topic)
    consumer = new_consumer(broker, topic, max_partition_fetch_bytes=2_000)
    found: list[int] = []
    try:
        for first, partitions in ((0, PARTITIONS), (600, 2), (1_200, PARTITIONS)):
            publish(broker, topic, range(first, first + 600), partitions)
            wait_until(lambda: take(consumer, found) >= first + 600)  # noqa: B023
        assert metric(broker, "penstock_fetch_session_partitions") >= PARTITIONS
    finally:
        consumer.close()
    assert sorted(found) == [*range(1_800)]
    assert metric(broker, "penstock_fetch_sessions_opened_total") > opened


def take(consumer: KafkaConsumer, found: list[int]) -> int:
    for records in consumer.poll(timeout_ms=200).values():
        found += [int(record.value) for record in records]
    return len(found)


@pytest.mark.long
@pytest.mark.xdist_group("programs")
def test_java_reads_many_partitions_in_a_session(broker: Broker, unique: Unique, tmp_path: Path) -> None:
    topic, opened = unique("wide"), metric(broker, "penstock_fetch_sessions_opened_total")
    create(broker, topic)
    publish(broker, topic, range(6_000))
    with Program(java_client(), tmp_path / "java.log") as program:
        client = program.connect(bootstrap=broker.bootstrap_servers)
        values = client.consume(topic, unique("group"), 6_000)
    assert sorted(map(int, values)) == [*range(6_000)]
    assert metric(broker, "penstock_fetch_sessions_opened_total") > opened
