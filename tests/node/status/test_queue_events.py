"""Events of queues and their owners in the status log."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Broker
from tests.kafka.clients.queues import publish, worker
from tests.web.workers import working

from .status_events import TOPIC, Event, events_until, has, told


@pytest.fixture
def watched() -> Iterator[Broker]:
    with Broker(status_topic=TOPIC) as running:
        yield running


def ask(broker: Broker, method: str, path: str, body: Any = None) -> None:
    request = urllib.request.Request(broker.http_url + path, method=method)
    request.add_header("content-type", "application/json")
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(request, data, timeout=30) as answer:
        answer.read()


def test_creating_purging_and_deleting_a_queue_are_events(watched: Broker) -> None:
    ask(watched, "POST", "/v1/queues", {"queue": "mail", "partitions": 3})
    ask(watched, "PATCH", "/v1/queues/mail", {"lease_ms": 45_000})
    ask(watched, "POST", "/v1/queues/mail/purge", {})
    ask(watched, "DELETE", "/v1/queues/mail")
    events = events_until(watched.bootstrap_servers, has("queue.deleted", group="mail"))
    [created] = told(events, "queue.created", group="mail")
    assert (created["topic"], created["partitions"]) == ("mail", 3)
    [purged] = told(events, "queue.reset", group="mail")
    assert (purged["topic"], purged["partitions"], purged["reason"]) == ("mail", 3, "it was purged")
    [deleted] = told(events, "queue.deleted", group="mail")
    assert (deleted["topic"], deleted["partitions"]) == ("mail", 3)
    altered = told(events, "group.altered", group="mail")
    assert any(event["configs"].get("share.record.lock.duration.ms") == "45000" for event in altered)


def test_a_queue_that_its_first_consumer_creates_is_an_event(watched: Broker) -> None:
    servers = watched.bootstrap_servers
    publish(servers, "jobs", ["old", "older"])
    with worker(servers, "workers", "jobs") as consumer:

        def is_created(events: list[Event]) -> bool:
            consumer.poll(0.01)
            return bool(told(events, "queue.created", group="workers"))

        events = events_until(servers, is_created)
    [created] = told(events, "queue.created", group="workers")
    assert (created["topic"], created["partition"], created["first_offset"]) == ("jobs", 0, 2)


def test_every_change_of_the_owner_of_an_exclusive_queue_is_an_event(watched: Broker) -> None:
    ask(watched, "POST", "/v1/queues", {"queue": "payments", "point_to_point": True})
    url = watched.http_url
    with working(url, "payments", "payments", name="first") as first:
        first.hear("working")
        with working(url, "payments", "payments", name="second", standby=True) as second:
            second.hear("working")
            first.socket.close()
            while second.hear("working")["standby"]:
                pass
    changes = "queue.consumer_changed"
    events = events_until(watched.bootstrap_servers, lambda events: len(told(events, changes)) == 4)
    who = [event.get("consumer", "").split(" at ")[0] for event in told(events, changes)]
    assert who == ["first", "", "second", ""]
    assert {(event["topic"], event["partition"]) for event in told(events, changes)} == {("payments", 0)}


def test_a_shared_queue_has_no_owner_events(watched: Broker) -> None:
    ask(watched, "POST", "/v1/queues", {"queue": "mail"})
    with working(watched.http_url, "mail", "mail") as one:
        one.hear("working")
        ask(watched, "POST", "/v1/queues", {"queue": "later"})
        events = events_until(watched.bootstrap_servers, has("queue.created", group="later"))
    assert told(events, "queue.opened", group="mail")
    assert not told(events, "queue.consumer_changed")
