"""Where dead letters go, and when they go nowhere."""

from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import AcknowledgeType

from penstock import Broker
from tests.kafka.clients.queues import configure, publish, take, worker
from tests.node.status.status_events import TOPIC, Event, events_until, has, told

OWN = {"penstock_dead_letter_topic": "jobs"}


@pytest.fixture
def watched() -> Iterator[Broker]:
    with Broker(status_topic=TOPIC) as running:
        yield running


def reject_one(broker: Broker, group: str, topic: str, **configs: str) -> Event:
    """The event of it."""
    servers = broker.bootstrap_servers
    configure(servers, group, share_auto_offset_reset="earliest", **configs)
    publish(servers, topic, ["bad"])
    with worker(servers, group, topic) as consumer:
        [message] = take(consumer, lambda got: len(got) == 1)
        consumer.acknowledge(message, AcknowledgeType.REJECT)
        consumer.commit_sync()
        events = events_until(servers, has("queue.dead_letter", group=group))
    [dead] = told(events, "queue.dead_letter", group=group)
    assert (dead["topic"], dead["first_offset"], dead["reason"]) == (topic, 0, "rejected")
    return dead


def end_of(broker: Broker, topic: str) -> int:
    [row] = httpx.get(f"{broker.http_url}/v1/topics/{topic}", timeout=30).json()["partitions"]
    end: int = row["latest_offset"]
    return end


def test_what_dies_is_not_put_back_into_its_own_topic(
    watched: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    dead = reject_one(watched, "workers", "jobs", **OWN)
    assert dead["dropped"] is True
    assert end_of(watched, "jobs") == 1
    [said] = [record.getMessage() for record in caplog.records if "are dropped" in record.getMessage()]
    assert "workers on jobs" in said


def test_a_dead_letter_topic_of_its_own_is_heeded_also_on_a_topic_that_is_named_like_one(
    watched: Broker,
) -> None:
    dead = reject_one(watched, "menders", "jobs.dlq", penstock_dead_letter_topic="hopeless")
    assert "dropped" not in dead
    assert end_of(watched, "hopeless") == 1


def test_without_one_what_dies_among_dead_letters_is_dropped_and_that_is_told(watched: Broker) -> None:
    assert reject_one(watched, "menders", "jobs.dlq")["dropped"] is True
    assert httpx.get(f"{watched.http_url}/v1/topics/jobs.dlq.dlq", timeout=30).status_code == 404
