"""The consumers of a queue, as the HTTP API lists them: over Kafka, WebSocket and HTTP, on one node and on three."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.client import Client
from tests.kafka.clients.queues import configure, take, work_off, worker
from tests.web.web_trio import WebTrio
from tests.web.workers import working

Unique = Callable[[str], str]
Facts = dict[str, Any]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=30) as client:
        yield client


@pytest.fixture
def queue(http: httpx.Client, unique: Unique) -> str:
    """A queue with six messages on each of its two partitions."""
    name = unique("work")
    http.post("/v1/queues", json={"queue": name, "partitions": 2}).raise_for_status()
    publish(http, name, 12)
    return name


def publish(http: httpx.Client, topic: str, count: int, partitions: int = 2) -> None:
    records = [{"value": number, "partition": number % partitions} for number in range(count)]
    http.post(f"/v1/topics/{topic}/records", json={"records": records}).raise_for_status()


def described(http: httpx.Client, queue: str, enough: Callable[[list[Facts]], bool]) -> list[Facts]:
    """The consumers, once there are enough."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not enough(found := http.get(f"/v1/queues/{queue}").json()["consumers"]):
        assert time.monotonic() < deadline, f"waited in vain; there were {found}"
    return list(found)


def summary(http: httpx.Client, queue: str) -> Facts:
    [row] = [row for row in http.get("/v1/queues").json()["queues"] if row["queue"] == queue]
    return dict(row)


def test_consumers_of_all_interfaces_are_listed_with_leases_and_rates(
    broker: Broker, http: httpx.Client, queue: str
) -> None:
    assert described(http, queue, lambda found: True) == []
    configure(broker.bootstrap_servers, queue, share_auto_offset_reset="earliest")
    before_ms = time.time() * 1000
    with (
        worker(broker.bootstrap_servers, queue, queue, **{"client.id": "billing"}) as share,
        working(broker.http_url, queue, queue, credit=2, name="mailer") as socket,
    ):
        jobs = socket.jobs(2)
        answer = http.post(f"/v1/queues/{queue}/receive", json={"consumer": "curl-7", "max": 1})
        [receipt] = [job["receipt"] for job in answer.json()["jobs"]]
        held = take(share, bool)
        found = {one["name"]: one for one in described(http, queue, lambda found: len(found) == 3)}
        assert {name: one["interface"] for name, one in found.items()} == {
            "billing": "kafka",
            "mailer": "websocket",
            "curl-7": "http",
        }
        assert (found["mailer"]["leases"], found["curl-7"]["leases"]) == (2, 1)
        assert found["billing"]["leases"] == len(held)
        assert all(one["address"].startswith("127.0.0.1") for one in found.values())
        assert ":" in found["billing"]["address"]
        assert found["mailer"]["partitions"] == [f"{queue}-0", f"{queue}-1"]
        assert all(before_ms - 60_000 < one["since_ms"] for one in found.values())
        assert summary(http, queue)["consumers"] == 3

        socket.settle(jobs)
        http.post(f"/v1/queues/{queue}/settle", json={"accept": [receipt]}).raise_for_status()
        found = {one["name"]: one for one in described(http, queue, lambda found: True)}
        assert found["mailer"]["rate"] > 0
        assert found["curl-7"]["rate"] > 0
        assert summary(http, queue)["rate"] > 0
        for message in held:
            share.acknowledge(message)
    found = {one["name"]: one for one in described(http, queue, lambda found: len(found) == 1)}
    assert list(found) == ["curl-7"], "connections have ended; HTTP requests count for a minute"


def test_a_consumer_without_work_is_listed(broker: Broker, http: httpx.Client, unique: Unique) -> None:
    """The user's first question: a queue with an idle worker said that it had no consumers."""
    name = unique("quiet")
    http.post("/v1/queues", json={"queue": name}).raise_for_status()
    with Client(broker.bootstrap_servers) as client, client.queue(name, group=name) as jobs:
        assert jobs.receive(timeout=0) is None
        [one] = described(http, name, lambda found: bool(found))
        assert (one["interface"], one["leases"], one["rate"]) == ("websocket", 0, 0.0)
        [info] = client.admin.queue(name).consumers
        assert (info.id, info.name) == (one["id"], one["name"])


def test_http_requests_without_a_name_are_listed_as_one_consumer(http: httpx.Client, queue: str) -> None:
    for _ in range(3):
        answer = http.post(
            f"/v1/queues/{queue}/receive", json={"max": 1}, headers={"user-agent": "curl/8" + "x" * 500}
        )
        assert len(answer.json()["jobs"]) == 1
    [one] = described(http, queue, lambda found: True)
    assert one["name"].startswith("curl/8")
    assert len(one["name"]) == 100
    assert (one["leases"], one["interface"]) == (3, "http")


def test_the_numbers_are_right_at_once_after_a_purge_and_after_deleted_records(
    broker: Broker, http: httpx.Client, queue: str
) -> None:
    with working(broker.http_url, queue, queue, credit=1, name="mailer") as socket:
        socket.jobs(1)
        http.post(f"/v1/queues/{queue}/purge", json={}).raise_for_status()
        facts = http.get(f"/v1/queues/{queue}").json()
        assert [(row["undone"], row["leased"]) for row in facts["partitions"]] == [(0, 0), (0, 0)]
        assert [one["name"] for one in facts["consumers"]] == ["mailer"], "it stays through the purge"
        assert summary(http, queue)["undone"] == 0


def test_deleted_records_are_not_counted_any_more(broker: Broker, http: httpx.Client, queue: str) -> None:
    with working(broker.http_url, queue, queue, credit=1) as socket:
        socket.jobs(1)
        assert summary(http, queue)["undone"] == 12
        delete_records(broker.bootstrap_servers, queue, partition=0, before=6)
        facts = http.get(f"/v1/queues/{queue}").json()
        assert sum(row["undone"] for row in facts["partitions"]) == 6
        assert summary(http, queue)["undone"] == 6


def delete_records(servers: str, topic: str, *, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    [future] = admin.delete_records([TopicPartition(topic, partition, before)]).values()
    future.result(PATIENCE_SECONDS)


# --- three nodes


def test_consumers_are_the_same_on_every_node_and_counted_once(unique: Unique) -> None:
    with WebTrio() as trio, trio.caller(1) as one, trio.caller(2) as two, trio.caller(3) as three:
        queue = unique("work")
        wish = {"queue": queue, "partitions": 3, "replication_factor": 3}
        one.post("/v1/queues", json=wish).raise_for_status()
        for node in (1, 2, 3):
            trio.hand_over(queue, node, node - 1)
        publish(one, queue, 9, 3)
        servers = trio.bootstrap_servers
        configure(servers, queue, share_auto_offset_reset="earliest")
        with worker(servers, queue, queue, **{"client.id": "billing"}) as share, ExitStack() as stack:
            work_off(share, lambda message: True)
            for node in (1, 2, 3):  # as a client does: a connection with each leader, under one name
                made = working(trio.url(node), queue, queue, credit=1, name="mailer")
                stack.enter_context(made).hear("working")
            one.post(f"/v1/queues/{queue}/receive", json={"consumer": "curl", "wait_ms": 0})

            def on_all_nodes(found: list[Facts]) -> bool:
                return [row["nodes"] for row in found] == [[1, 2, 3]] * 3

            # librdkafka opens its sessions with the leaders while it is polled.
            take(share, lambda _: on_all_nodes(one.get(f"/v1/queues/{queue}").json()["consumers"]))
            everywhere = [described(http, queue, on_all_nodes) for http in (one, two, three)]
    for found in everywhere:
        assert sorted(row["interface"] for row in found) == ["http", "kafka", "websocket"]
        assert {row["id"] for row in found} == {row["id"] for row in everywhere[0]}
