"""The status log as a client reads it."""

import json
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition

PATIENCE_SECONDS = 60.0
TOPIC = "penstock.status"

Event = dict[str, Any]


def events_until(
    servers: str,
    enough: Callable[[list[Event]], bool],
    topic: str = TOPIC,
    settings: dict[str, str] | None = None,
) -> list[Event]:
    """All events from the first on, until that is enough. `settings` are more of the consumer's."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "topic.metadata.refresh.interval.ms": 200}
        | (settings or {})
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Event] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while not enough(found):
            assert time.monotonic() < deadline, f"waited in vain; there were {found}"
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                event = json.loads(message.value() or b"")
                assert message.timestamp()[1] % 1000 == int(event["time"][-4:-1])
                found.append(event)
    finally:
        consumer.close()
    return found


def told(events: list[Event], kind: str, **facts: object) -> list[Event]:
    """The events of this kind with these facts."""
    return [event for event in events if event["kind"] == kind and facts.items() <= event.items()]


def has(kind: str, **facts: object) -> Callable[[list[Event]], bool]:
    return lambda events: bool(told(events, kind, **facts))


def has_all(*conditions: Callable[[list[Event]], bool]) -> Callable[[list[Event]], bool]:
    return lambda events: all(holds(events) for holds in conditions)
