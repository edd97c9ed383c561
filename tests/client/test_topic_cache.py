"""Partition choice: only of existing topics, and the same partition for the same message id."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock import Broker
from penstock.client import AsyncClient, Client, PublishFailed, Unreachable, admin, topic_cache
from penstock.client.arguments import record_headers
from penstock.client.topic_cache import TopicCache
from tests.ports import free_ports

Unique = Callable[[str], str]
IDS = [f"order-{number}" for number in range(12)]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def wide(client: Client, unique: Unique) -> str:
    """A topic of five partitions that deduplicates."""
    name = unique("payments")
    client.admin.create_topic(name, partitions=5, configs={"dedup.window.ms": "600000"})
    return name


def publish_over_http(broker: Broker, topic: str, **record: Any) -> tuple[int, int]:
    body = {"records": [{"value": 1, **record}]}
    answer = httpx.post(f"{broker.http_url}/v1/topics/{topic}/records", json=body, timeout=PATIENCE_SECONDS)
    [row] = answer.raise_for_status().json()["records"]
    return row["partition"], row["offset"]


def test_a_message_id_without_a_key_is_stored_once_from_all_clients(
    broker: Broker, client: Client, wide: str
) -> None:
    async def publish_again() -> list[tuple[int, int]]:
        async with AsyncClient(broker.bootstrap_servers) as another:
            return [(await another.publish(wide, b"x", message_id=one))[1:3] for one in IDS]

    first = [client.publish(wide, b"x", message_id=one)[1:3] for one in IDS]
    assert [client.publish(wide, b"x", message_id=one)[1:3] for one in IDS] == first
    assert asyncio.run(publish_again()) == first
    assert [publish_over_http(broker, wide, message_id=one) for one in IDS] == first
    assert len({partition for partition, _ in first}) > 1


def test_a_binary_body_goes_to_the_partition_of_its_id_too(broker: Broker, client: Client, wide: str) -> None:
    for one in IDS:
        answer = httpx.post(
            f"{broker.http_url}/v1/topics/{wide}/records",
            params={"message_id": one},
            content=b"x",
            headers={"content-type": "application/octet-stream"},
            timeout=PATIENCE_SECONDS,
        )
        [row] = answer.raise_for_status().json()["records"]
        assert (row["partition"], row["offset"]) == client.publish(wide, b"x", message_id=one)[1:3]


def test_an_id_in_a_header_is_equivalent(client: Client, wide: str) -> None:
    for one in IDS:
        by_hand = client.publish(wide, b"x", headers={"penstock-message-id": one})
        assert client.publish(wide, b"x", message_id=one)[:3] == by_hand[:3]


def test_a_key_takes_precedence_over_the_id_and_gets_the_partition_that_http_chooses(
    broker: Broker, client: Client, wide: str
) -> None:
    for number, one in enumerate(IDS):
        stored = client.publish(wide, b"x", key=f"key-{number}", message_id=one)
        assert publish_over_http(broker, wide, key=f"key-{number}", message_id=one) == stored[1:3]


def test_a_named_partition_takes_precedence_over_the_id(client: Client, wide: str) -> None:
    assert {client.publish(wide, b"x", partition=3, message_id=one).partition for one in IDS} == {3}


@pytest.mark.parametrize("wrong", ["", "x" * 257, "ä" * 129, b"x" * 257])
def test_an_id_that_no_topic_would_take_is_refused_before_it_is_sent(wrong: str | bytes) -> None:
    with pytest.raises(ValueError, match="expected 1 to 256"):
        record_headers(None, message_id=wrong)
    assert record_headers(None, message_id="ä" * 128) == [("penstock-message-id", "ä".encode() * 128)]


# --- missing topics


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_cache, "CREATION_SECONDS", 0.2)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("message_id", [None, "order-17"])
def test_a_topic_that_is_not_created_is_an_error_that_says_what_to_do(message_id: str | None) -> None:
    with (
        Broker(auto_create_topics=False) as broker,
        Client(broker.bootstrap_servers) as client,
    ):
        for publish in (client.publish, client.publish_soon):
            with pytest.raises(PublishFailed, match=r"create_topic.*Nothing was stored") as failed:
                publish("orders", b"x", message_id=message_id)
            assert "may be stored" not in str(failed.value)
        client.admin.create_topic("orders", configs={"dedup.window.ms": "60000"})
        assert client.publish("orders", b"x", message_id=message_id).offset == 0


@pytest.mark.usefixtures("hasty")
def test_the_asynchronous_client_raises_the_same_error() -> None:
    async def work(servers: str) -> None:
        async with AsyncClient(servers) as client:
            with pytest.raises(PublishFailed, match=r"create_topic.*Nothing was stored"):
                await client.publish("orders", b"x")

    with Broker(auto_create_topics=False) as broker:
        asyncio.run(work(broker.bootstrap_servers))


def test_an_invalid_topic_name_is_refused_at_once(client: Client) -> None:
    with pytest.raises(PublishFailed, match="invalid name"):
        client.publish("no topic, surely", b"x")


def test_a_topic_is_created_if_the_broker_does_that(client: Client, unique: Unique) -> None:
    assert client.publish(unique("made"), b"x", delay=0.001).offset == 0


def test_a_second_producer_of_an_exclusive_topic_gets_an_error_that_explains_it(
    broker: Broker, client: Client, unique: Unique
) -> None:
    topic = unique("exclusive")
    client.admin.create_topic(topic, configs={"penstock.producer.exclusive": "true"})
    client.publish(topic, b"x")
    with (
        Client(broker.bootstrap_servers) as another,
        pytest.raises(PublishFailed, match=r"one producer at a time.*docs/queues\.md") as failed,
    ):
        another.publish(topic, b"x")
    assert "may be stored" not in str(failed.value)


# --- when metadata is requested


class Answers:
    """A producer whose brokers give these answers, and repeat the last one."""

    def __init__(self, *answers: int | KafkaException) -> None:
        self._answers = list(answers)
        self.asked = 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, KafkaException):
            raise answer
        error = KafkaError(-answer) if answer < 0 else None
        found = SimpleNamespace(error=error, partitions=dict.fromkeys(range(max(answer, 0))))
        return SimpleNamespace(topics={topic: found})


UNKNOWN = -KafkaError.UNKNOWN_TOPIC_OR_PART
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))


def look_up(known: TopicCache, *, counted: bool = True, timeout_s: float = 5.0) -> None:
    known.look_up("orders", counted=counted, timeout_s=timeout_s)


def test_a_topic_that_is_being_created_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_cache, "ASK_AGAIN_SECONDS", 0.001)
    producer = Answers(UNKNOWN, UNKNOWN, -KafkaError.LEADER_NOT_AVAILABLE, 3)
    known = TopicCache(producer, "a:9092")  # type: ignore[arg-type]
    look_up(known)
    assert known.knows("orders", counted=True)
    assert producer.asked == 4


@pytest.mark.usefixtures("hasty")
def test_after_a_timeout_the_next_lookup_asks_once() -> None:
    producer = Answers(UNKNOWN)
    known = TopicCache(producer, "a:9092")  # type: ignore[arg-type]
    with pytest.raises(PublishFailed):
        look_up(known)
    before = producer.asked
    with pytest.raises(PublishFailed):
        look_up(known)
    assert producer.asked == before + 1


def test_while_no_broker_answers_messages_without_an_id_are_left_to_librdkafka() -> None:
    known = TopicCache(Answers(1, AWAY), "a:9092")  # type: ignore[arg-type]
    known.look_up("others", counted=False, timeout_s=5.0)
    look_up(known, counted=False)
    assert known.knows("orders", counted=False)
    assert not known.knows("orders", counted=True)


@pytest.mark.parametrize("counted", [True, False])
def test_an_unreachable_broker_is_reported_with_its_address(
    monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    monkeypatch.setattr(topic_cache, "FIRST_SECONDS", 0.0)
    with pytest.raises(PublishFailed, match=r"a:9092.*penstock serve.*Nothing was stored") as failed:
        look_up(TopicCache(Answers(AWAY), "a:9092"), counted=counted)  # type: ignore[arg-type]
    assert failed.value.retriable


def test_every_client_reports_an_address_without_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_cache, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(topic_cache, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(admin, "FIRST_SECONDS", 0.1)
    [port] = free_ports(1)
    servers = f"127.0.0.1:{port}"
    told = rf"no broker answers at {servers}: start one \(`penstock serve`\)"
    with Client(servers, reconnect_timeout_s=0.3) as client:
        with pytest.raises(PublishFailed, match=told):
            client.publish("orders", b"x")
        with pytest.raises(Unreachable, match=told):
            client.admin.create_topic("orders")
        with pytest.raises(Unreachable, match=told):
            client.admin.topics()
        with pytest.raises(Unreachable, match=told), client.queue("orders", group="workers") as queue:
            queue.receive()


def test_an_id_waits_until_a_broker_says_how_many_partitions_there_are() -> None:
    with pytest.raises(PublishFailed, match=r"no broker answers.*Nothing was stored") as failed:
        look_up(TopicCache(Answers(AWAY), "a:9092"), timeout_s=0.2)  # type: ignore[arg-type]
    assert failed.value.retriable
    known = TopicCache(Answers(AWAY, 5), "a:9092")  # type: ignore[arg-type]
    look_up(known)
    assert known.knows("orders", counted=True)


def test_the_number_of_partitions_is_refreshed_and_the_old_one_is_used_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_cache, "COUNT_SECONDS", 0.0)
    known = TopicCache(Answers(1, AWAY, 4), "a:9092")  # type: ignore[arg-type]
    look_up(known)
    assert not known.knows("orders", counted=True)
    look_up(known)
    assert known.partition_of("orders", b"order-17") == 0
    look_up(known)
    assert {known.partition_of("orders", one.encode()) for one in IDS} == {0, 1, 2, 3}


def test_a_deleted_topic_is_looked_up_again() -> None:
    known = TopicCache(Answers(2), "a:9092")  # type: ignore[arg-type]
    look_up(known)
    known.forget("orders")
    assert not known.knows("orders", counted=False)
    with pytest.raises(PublishFailed, match="just deleted"):
        known.partition_of("orders", b"order-17")


def test_a_topic_that_cannot_be_created_is_refused_at_once() -> None:
    producer = Answers(-KafkaError.INVALID_REPLICATION_FACTOR)
    with pytest.raises(PublishFailed, match=r"cannot be created.*replication_factor=1.*Nothing was stored"):
        look_up(TopicCache(producer, "a:9092"))  # type: ignore[arg-type]
    assert producer.asked == 1
