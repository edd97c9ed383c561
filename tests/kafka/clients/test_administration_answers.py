"""Answers to administrators' requests, compared with those of Apache Kafka 4.2.1 to the same clients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kafka.errors
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from penstock import Broker
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
PATIENCE_MS = 60_000
INVALID_REQUEST = 42


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def python_admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    with connected(broker) as client:
        yield client


@contextmanager
def connected(broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=PATIENCE_MS)
    try:
        yield client
    finally:
        client.close()


def create(admin: AdminClient, *topics: str, partitions: int = 1) -> None:
    made = admin.create_topics([NewTopic(name, num_partitions=partitions) for name in topics])
    for outcome in made.values():
        outcome.result(PATIENCE_SECONDS)


# --- ApiVersions: the client's software, by KIP-511


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("has space", "1"),
        ("", "1"),
        (".dot", "1"),
        ("dot.", "1"),
        ("-dash", "1"),
        ("name", "1_0"),
        ("name", ""),
    ],
)
def test_a_client_must_name_its_software_as_kip_511_says(broker: Broker, name: str, version: str) -> None:
    with connected(broker) as client:
        assert client.describe_features()
        client._manager.config |= {"client_software_name": name, "client_software_version": version}
        # kafka-python cannot decode a response without APIs, which Kafka sends too; so the code is read below.
        with pytest.raises(kafka.errors.KafkaError):
            client.describe_features()
    with RawClient(broker) as raw:
        for api_version in (3, 4):
            request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
            answer = ask(raw, ApiKey.API_VERSIONS, api_version, request, ApiVersionsResponse)
            assert (answer.error_code, answer.api_keys) == (INVALID_REQUEST, [])
        assert ask(raw, ApiKey.API_VERSIONS, 2, ApiVersionsRequest(), ApiVersionsResponse).error_code == 0


@pytest.mark.parametrize(("name", "version"), [("a", "1"), ("apache-kafka.java", "4.2.1-rc0")])
def test_names_of_real_clients_are_accepted(broker: Broker, name: str, version: str) -> None:
    with connected(broker) as client:
        client._manager.config |= {"client_software_name": name, "client_software_version": version}
        assert client.describe_features()


# --- DescribeTopicPartitions


def page(client: KafkaAdminClient, topics: list[str], cursor: tuple[str, int]) -> dict[str, list[int] | int]:
    """Of each topic the partitions, or its error."""
    where = {"topic_name": cursor[0], "partition_index": cursor[1]}
    found: dict[str, Any] = client.describe_topic_partitions(topics, cursor=where)
    assert found["next_cursor"] is None
    return {
        row["name"]: row["error_code"] or [one["partition_index"] for one in row["partitions"]]
        for row in found["topics"]
    }


def test_a_cursor_must_be_in_the_list_of_topics(
    admin: AdminClient, python_admin: KafkaAdminClient, unique: Unique
) -> None:
    first, second = unique("a"), unique("b")
    create(admin, first, second, partitions=2)
    both = [first, second]
    assert page(python_admin, both, (unique("nowhere"), 0)) == dict.fromkeys(both, INVALID_REQUEST)
    assert page(python_admin, both, (first + "-between", 0)) == dict.fromkeys(both, INVALID_REQUEST)
    assert page(python_admin, [first], (first, -1)) == {first: INVALID_REQUEST}
    assert page(python_admin, both, (second, 1)) == {second: [1]}
    assert page(python_admin, both, (first, 2)) == {first: [], second: [0, 1]}


def test_without_a_list_of_topics_a_cursor_may_be_between_two(
    admin: AdminClient, python_admin: KafkaAdminClient, unique: Unique
) -> None:
    topic = unique("zz")
    create(admin, topic)
    found = page(python_admin, [], (topic[:-1], 7))
    assert found[topic] == [0]
    assert min(found) == topic


# --- DescribeProducers


def test_the_idempotent_producers_of_a_partition_are_described(
    broker: Broker, admin: AdminClient, python_admin: KafkaAdminClient, unique: Unique
) -> None:
    topic = unique("orders")
    create(admin, topic, partitions=2)
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    for idempotent in (True, True, False):
        producer = Producer({**settings, "enable.idempotence": idempotent})
        for number in range(3):
            producer.produce(topic, b"v", partition=0, timestamp=1_700_000_000_000 + number)
        assert producer.flush(PATIENCE_SECONDS) == 0
    used, unused = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found = python_admin.describe_producers([used, unused])
    assert found[unused].active_producers == []
    rows = found[used].active_producers
    assert len({row.producer_id for row in rows}) == len(rows) == 2
    for row in rows:
        assert (row.producer_epoch, row.last_sequence) == (0, 2)
        assert row.last_timestamp == 1_700_000_000_002
        assert (row.coordinator_epoch, row.current_transaction_start_offset) == (-1, -1)


def test_producers_of_a_partition_that_does_not_exist_are_refused(
    admin: AdminClient, python_admin: KafkaAdminClient, unique: Unique
) -> None:
    topic = unique("orders")
    create(admin, topic)
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        python_admin.describe_producers([TopicPartition(topic, 7)], broker_id=1)
