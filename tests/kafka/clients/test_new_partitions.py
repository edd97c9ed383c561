"""New topics and partitions of a cluster can be used as soon as their creation is answered: all nodes know leaders."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PythonTopic

from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import metadata
from penstock.node.metadata import new_partitions
from tests.kafka.requests import ask, describe
from tests.kafka.trio import Trio
from tests.web.web_trio import WebTrio

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
ROUNDS = 10
PARTITIONS = 3


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with Trio() as running:
        yield running


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an election may take longer than a creation would wait for leaders."""
    monkeypatch.setattr(new_partitions, "LEADERS_WITHIN_SECONDS", PATIENCE_SECONDS)


def settings(trio: Trio) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": trio.bootstrap_servers}


def seen(trio: Trio, topic: str) -> list[tuple[int, ...]]:
    """The answer of each node: the topic's error code and its partitions' error codes."""
    answers = []
    for node_id in trio.running:
        with trio.client(node_id) as client:
            wanted = metadata.MetadataRequestTopic(name=topic)
            request = metadata.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
            [row] = ask(client, ApiKey.METADATA, 8, request, metadata.MetadataResponse).topics
            answers.append((row.error_code, *(partition.error_code for partition in row.partitions)))
    return answers


def usable(partitions: int) -> list[tuple[int, ...]]:
    return [(ErrorCode.NONE,) * (1 + partitions)] * 3


def test_no_node_lacks_a_leader_after_librdkafka_has_created_a_topic(trio: Trio, unique: Unique) -> None:
    admin = AdminClient(settings(trio))
    for _ in range(ROUNDS):
        topic = unique("new")
        admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(PATIENCE_SECONDS)
        assert seen(trio, topic) == usable(PARTITIONS)


def test_no_node_lacks_a_leader_after_kafka_python_has_created_a_topic(trio: Trio, unique: Unique) -> None:
    admin = KafkaAdminClient(bootstrap_servers=trio.bootstrap_servers.split(","))
    try:
        for _ in range(ROUNDS):
            topic = unique("new")
            admin.create_topics([PythonTopic(topic, PARTITIONS, 3)])
            [found] = admin.describe_topics([topic])
            assert [row["error_code"] for row in found["partitions"]] == [ErrorCode.NONE] * PARTITIONS
            assert seen(trio, topic) == usable(PARTITIONS)
    finally:
        admin.close()


def test_more_partitions_have_leaders_too(trio: Trio, unique: Unique) -> None:
    admin, topic = AdminClient(settings(trio)), unique("growing")
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(PATIENCE_SECONDS)
    for count in range(2, 6):
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE_SECONDS)
        assert seen(trio, topic) == usable(count)


def test_a_topic_that_is_only_checked_or_refused_is_answered_without_leaders(
    trio: Trio, unique: Unique
) -> None:
    admin, topic = AdminClient(settings(trio)), unique("checked")
    admin.create_topics([NewTopic(topic, 1, 3)], validate_only=True)[topic].result(PATIENCE_SECONDS)
    assert seen(trio, topic) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)] * 3


def test_a_topic_whose_replica_is_out_of_reach_is_created_all_the_same(
    trio: Trio, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_partitions, "LEADERS_WITHIN_SECONDS", 0.5)
    admin, topic = AdminClient(settings(trio)), unique("unreachable")
    absent = next(node_id for node_id in trio.running if node_id != trio.controller())
    with trio.cut_off(absent):
        wanted = NewTopic(topic, 1, replica_assignment=[[absent]])
        admin.create_topics([wanted])[topic].result(PATIENCE_SECONDS)
        with trio.client(trio.controller()) as client:
            assert describe(client, topic).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    trio.leader(topic)


def test_a_topic_that_was_created_over_http_has_leaders(unique: Unique) -> None:
    with WebTrio() as trio:
        for node_id in trio.running:
            topic = unique("http")
            with httpx.Client(base_url=trio.url(node_id), timeout=PATIENCE_SECONDS) as http:
                body = {"name": topic, "partitions": PARTITIONS, "replication_factor": 3}
                http.post("/v1/topics", json=body).raise_for_status()
                assert seen(trio, topic) == usable(PARTITIONS)
                http.post(f"/v1/topics/{topic}/partitions", json={"count": 5}).raise_for_status()
                assert seen(trio, topic) == usable(5)
