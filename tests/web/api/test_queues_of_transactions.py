"""Queues with share.isolation.level=read_committed: whoever moves one over HTTP passes over no open transaction."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from penstock import Broker
from tests.transactional import PATIENCE_SECONDS

Unique = Callable[[str], str]
Create = Callable[..., str]

COMMITTED_ONLY = {"share.isolation.level": "read_committed"}


@pytest.fixture
def producer(broker: Broker, unique: Unique) -> Iterator[Producer]:
    client = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("id")})
    client.init_transactions(PATIENCE_SECONDS)
    yield client
    client.flush(PATIENCE_SECONDS)


def begin(producer: Producer, topic: str, value: str) -> None:
    """Leaves a transaction open that has written one record."""
    producer.begin_transaction()
    producer.produce(topic, json.dumps(value), partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def publish(http: httpx.Client, topic: str, value: str) -> None:
    http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": value}]}).raise_for_status()


def received(http: httpx.Client, queue: str) -> list[str]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000})
    answer.raise_for_status()
    return [job["value"] for job in answer.json()["jobs"]]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("purge", {}),
        ("reset", {"to": "latest"}),
        ("reset", {"offset": 1_000_000}),
        ("reset", {"timestamp_ms": 2**62}),
    ],
)
def test_a_queue_that_is_moved_delivers_a_transaction_that_was_open_then(
    http: httpx.Client, create: Create, producer: Producer, operation: str, body: dict[str, Any]
) -> None:
    queue = create(configs=COMMITTED_ONLY)
    publish(http, queue, "before")
    begin(producer, queue, "open")
    http.post(f"/v1/queues/{queue}/{operation}", json=body).raise_for_status()
    producer.commit_transaction(PATIENCE_SECONDS)
    assert received(http, queue) == ["open"]


def test_a_queue_that_starts_at_the_latest_message_delivers_a_transaction_that_was_open_then(
    http: httpx.Client, create: Create, producer: Producer
) -> None:
    topic = create()
    publish(http, topic, "before")
    begin(producer, topic, "open")
    queue = create(topic=topic, start="latest", configs=COMMITTED_ONLY)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert received(http, queue) == ["open"]


def test_a_queue_that_reads_uncommitted_records_purges_an_open_transaction(
    http: httpx.Client, create: Create, producer: Producer
) -> None:
    queue = create()
    begin(producer, queue, "open")
    http.post(f"/v1/queues/{queue}/purge", json={}).raise_for_status()
    producer.commit_transaction(PATIENCE_SECONDS)
    publish(http, queue, "after")
    assert received(http, queue) == ["after"]
