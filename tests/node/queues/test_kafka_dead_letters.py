"""Dead letters of groups that name their topic by Kafka's configs (KIP-1191)."""

import logging
from collections.abc import Callable

import httpx
import pytest
from confluent_kafka import AcknowledgeType, Consumer, Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock import Broker
from tests.kafka.clients.queues import PATIENCE_SECONDS, configure, take, worker
from tests.kafka.waiting import wait_until

Unique = Callable[[str], str]
ALLOWED = "errors.deadletterqueue.group.enable"


def reject_one(servers: str, group: str, topic: str, **configs: str) -> None:
    configure(servers, group, share_auto_offset_reset="earliest", **configs)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    producer.produce(topic, b"value", key=b"key", headers=[("mine", b"1")])
    assert producer.flush(PATIENCE_SECONDS) == 0
    with worker(servers, group, topic) as consumer:
        [message] = take(consumer, lambda got: len(got) == 1)
        consumer.acknowledge(message, AcknowledgeType.REJECT)
        consumer.commit_sync()


def first_of(servers: str, topic: str) -> Message:
    group = f"readers of {topic}"
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "topic.metadata.refresh.interval.ms": 200})
    consumer.subscribe([topic])
    found: list[Message] = []
    try:
        wait_until(lambda: bool(found or keep(found, consumer.poll(0.2))))
    finally:
        consumer.close()
    return found[0]


def keep(found: list[Message], message: Message | None) -> bool:
    if message is not None and message.error() is None:
        found.append(message)
    return bool(found)


def send_back(broker: Broker, queue: str) -> dict[str, list[dict[str, object]]]:
    url = f"{broker.http_url}/v1/queues/{queue}/dead-letters/send-back"
    done: dict[str, list[dict[str, object]]] = httpx.post(url, json={"all": True}, timeout=30).json()
    return done


def test_a_dead_letter_has_kafkas_headers_and_no_content(broker: Broker, unique: Unique) -> None:
    servers, topic, group = broker.bootstrap_servers, unique("orders"), unique("workers")
    target = unique("dlq.orders")
    reject_one(servers, group, topic, errors_deadletterqueue_topic_name=target)
    letter = first_of(servers, target)
    headers = {name: value.decode() for name, value in dict(letter.headers() or ()).items()}
    assert (letter.key(), letter.value(), "mine" in headers) == (None, None, False)
    assert {name: value for name, value in headers.items() if name.startswith("__dlq.errors.")} == {
        "__dlq.errors.topic": topic,
        "__dlq.errors.partition": "0",
        "__dlq.errors.offset": "0",
        "__dlq.errors.group": group,
        "__dlq.errors.delivery.count": "1",
        "__dlq.errors.message": "Offset rejected by client.",
    }
    [refused] = send_back(broker, group)["refused"]
    assert "no copy of its message" in str(refused["error"])


def test_a_dead_letter_has_the_record_if_the_group_wants_it(broker: Broker, unique: Unique) -> None:
    servers, topic, group = broker.bootstrap_servers, unique("orders"), unique("workers")
    target = unique("dlq.orders")
    configs = {
        "errors_deadletterqueue_topic_name": target,
        "errors_deadletterqueue_copy_record_enable": "true",
    }
    reject_one(servers, group, topic, **configs)
    letter = first_of(servers, target)
    assert (letter.key(), letter.value()) == (b"key", b"value")
    assert ("mine", b"1") in (letter.headers() or [])
    assert len(send_back(broker, group)["sent_back"]) == 1
    with worker(servers, group, topic) as consumer:
        [again] = take(consumer, lambda got: len(got) == 1)
        consumer.acknowledge(again)
    assert again.headers() == [("mine", b"1")], "the broker's own headers are gone"


def test_dead_letters_wait_until_their_topic_allows_them(
    broker: Broker, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    servers, topic, group = broker.bootstrap_servers, unique("orders"), unique("workers")
    target = unique("dlq.payroll")
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(target)])[target].result(PATIENCE_SECONDS)
    with caplog.at_level(logging.INFO, "penstock"):
        reject_one(servers, group, topic, errors_deadletterqueue_topic_name=target)
        wait_until(lambda: f"{target} takes no dead letters: set {ALLOWED}=true" in caplog.text)
    entry = ConfigEntry(ALLOWED, "true", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, target, incremental_configs=[entry])
    admin.incremental_alter_configs([wanted])[wanted].result(PATIENCE_SECONDS)
    assert first_of(servers, target).offset() == 0
