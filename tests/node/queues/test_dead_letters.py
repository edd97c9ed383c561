"""The topic of dead letters, and when they are dropped."""

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
    """Rejects one message, and returns its event."""
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


def test_a_dead_letter_is_not_written_to_its_own_topic(
    watched: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    dead = reject_one(watched, "workers", "jobs", **OWN)
    assert dead["dropped"] is True
    assert end_of(watched, "jobs") == 1
    [said] = [record.getMessage() for record in caplog.records if "are dropped" in record.getMessage()]
    assert "workers on jobs" in said


def test_a_configured_dead_letter_topic_is_used_also_for_a_topic_named_like_one(
    watched: Broker,
) -> None:
    dead = reject_one(watched, "menders", "jobs.dlq", penstock_dead_letter_topic="hopeless")
    assert "dropped" not in dead
    assert end_of(watched, "hopeless") == 1


def test_without_one_a_dead_letter_of_a_dead_letter_topic_is_dropped_and_reported(watched: Broker) -> None:
    assert reject_one(watched, "menders", "jobs.dlq")["dropped"] is True
    assert httpx.get(f"{watched.http_url}/v1/topics/jobs.dlq.dlq", timeout=30).status_code == 404
