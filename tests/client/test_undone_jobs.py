"""Jobs that no worker has done yet outlive the retention of their topic, or their loss is reported."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock import Broker
from penstock.client import Client
from penstock.node import housekeeping

from .test_queue_client import take

PATIENCE_SECONDS = 60.0
SMALL = {"internal.segment.bytes": "200", "retention.ms": "100"}


@pytest.fixture(scope="module")
def quick() -> Iterator[Broker]:
    """A broker that applies retention several times a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(housekeeping, "ROUND_SECONDS", 0.1)
        with Broker() as running:
            yield running


@pytest.fixture
def client(quick: Broker) -> Iterator[Client]:
    with Client(quick.bootstrap_servers) as made:
        yield made


def until(question: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := question()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def held_back(broker: Broker, topic: str) -> list[Any]:
    report = httpx.get(f"{broker.http_url}/v1/cluster", timeout=30).json()
    return [row for row in report["held_back"] if row["topic"] == topic]


def metrics(broker: Broker) -> str:
    return httpx.get(f"{broker.http_url}/metrics", timeout=30).text


def fill(client: Client, topic: str, count: int) -> None:
    """Each message has a segment of its own."""
    for number in range(count):
        client.publish(topic, f"{number}".encode() * 100)


def test_jobs_of_a_topic_that_came_with_its_queue_wait_for_a_worker(
    quick: Broker, client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("mail")
    client.admin.create_queue(name, topic=name)
    client.admin.alter_topic(name, SMALL)
    fill(client, name, 5)
    [held] = until(lambda: held_back(quick, name))
    assert (held["queue"], held["partition"]) == (name, 0)
    assert f'penstock_retention_held_back_bytes{{partition="0",queue="{name}",topic="{name}"}}' in metrics(
        quick
    )
    with client.queue(name, group=name) as queue:
        for job in take(queue, 5):
            job.ack().wait(PATIENCE_SECONDS)
    until(lambda: not held_back(quick, name))
    until(lambda: client.admin.queue(name).partitions[0].start_offset == 5)


def test_a_scheduled_job_is_done_when_it_is_due_however_short_the_retention(
    quick: Broker, client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("mail")
    client.admin.create_queue(name, topic=name)
    client.publish(name, b"later", delay=3)
    client.admin.alter_topic(name, SMALL)
    fill(client, name, 2)
    until(lambda: held_back(quick, name))
    with client.queue(name, group=name) as queue:
        received = []
        while len(received) < 3:
            received += take(queue, 1)
            received[-1].ack().wait(PATIENCE_SECONDS)
    assert b"later" in [job.value for job in received]


def test_jobs_that_retention_deletes_are_counted_and_the_queue_says_so(
    quick: Broker, client: Client, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("packers")
    client.admin.create_topic(topic, partitions=1)
    client.admin.create_queue(group, topic=topic)
    fill(client, topic, 5)
    described = f"{quick.http_url}/v1/queues/{group}"
    [warning] = httpx.get(described, timeout=30).json()["warnings"]
    assert f"retention of {topic} may delete messages that are not done" in warning
    client.admin.alter_topic(topic, SMALL)
    counted = f'penstock_queue_deleted_undone_total{{queue="{group}",topic="{topic}"}} 5.0'
    until(lambda: counted in metrics(quick))
    found = httpx.get(described, timeout=30).json()
    assert found["warnings"][0] == f"5 messages of {topic} were deleted before they were done"
    assert found["partitions"][0]["deleted_undone"] == 5
    assert found["partitions"][0]["undone"] == 0
