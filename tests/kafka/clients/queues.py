"""Helpers for tests of queues: confluent-kafka's share consumer, and the settings of its group."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

PATIENCE_SECONDS = 60.0


def configure(servers: str, group: str, **configs: str) -> None:
    """Sets a group's configs; an underscore stands for a dot."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


def publish(servers: str, topic: str, values: list[str], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **settings})
    for value in values:
        producer.produce(topic, value.encode(), key=value.encode())
    assert producer.flush(PATIENCE_SECONDS) == 0


@contextmanager
def worker(servers: str, group: str, topic: str, **settings: object) -> Iterator[ShareConsumer]:
    """A consumer that acknowledges each message explicitly."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            **settings,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def take(consumer: ShareConsumer, enough: Callable[[list[Message]], bool]) -> list[Message]:
    """Polls until that is enough; nothing is acknowledged in between."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        messages = [one for one in consumer.poll(0.2) if one.error() is None]
        if enough(messages):
            return messages
    raise AssertionError("waited in vain")


def work_off(consumer: ShareConsumer, done: Callable[[Message], bool]) -> list[str]:
    """Accepts all messages until `done`; returns the values of the durably accepted ones, in order."""
    accepted: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        messages = [one for one in consumer.poll(0.2) if one.error() is None]
        for message in messages:
            consumer.acknowledge(message)
        if messages and commits(consumer):
            accepted += [(message.value() or b"").decode() for message in messages]
            if any(done(message) for message in messages):
                return accepted
    raise AssertionError(f"waited in vain; accepted so far: {len(accepted)}")


def commits(consumer: ShareConsumer) -> bool:
    """Whether all acknowledgements are durable."""
    try:
        outcomes = consumer.commit_sync(PATIENCE_SECONDS)
    except KafkaException:
        return False
    return all(error is None for error in outcomes.values())
