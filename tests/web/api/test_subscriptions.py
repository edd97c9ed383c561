"""Subscriptions over HTTP: how they are described and deleted."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from penstock import Broker
from tests.node.status.status_events import TOPIC, events_until, has, told
from tests.web.pushing import committed, create, produce, subscriber

Unique = Callable[[str], str]
NO_OFFSET = -1001


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> str:
    """Two partitions with five messages each."""
    name = unique("push")
    create(broker.bootstrap_servers, name, partitions=2)
    for partition in (0, 1):
        produce(broker.bootstrap_servers, name, range(5), partition=partition)
    return name


CLOCKS_MS = 60_000


def listed(http: httpx.Client, name: str) -> Any:
    answer = http.get("/v1/subscriptions").json()
    assert answer["unanswered"] == []
    return next((row for row in answer["subscriptions"] if row["subscription"] == name), None)


def described(http: httpx.Client, name: str) -> Any:
    answer = http.get(f"/v1/subscriptions/{quote(name, safe='')}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_attached_subscription_is_described_with_positions_unacked_messages_and_lag(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("billing")
    before_ms = int(time.time() * 1000) - 1
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True, ttl_ms=60_000)
        messages = one.take(10)
        one.ack_durably(next(row for row in messages if (row["partition"], row["offset"]) == (1, 2)))
        facts = described(http, name)
        row = listed(http, name)
    # The broker's clock never goes back, so it may differ from the machine's for a while.
    assert before_ms - CLOCKS_MS <= facts["since_ms"] <= int(time.time() * 1000) + CLOCKS_MS
    assert row == {
        "subscription": name,
        "topics": [topic],
        "coordinator": 1,
        "attached": True,
        "since_ms": facts["since_ms"],
        "ttl_ms": 60_000,
        "ttl_left_ms": None,
        "lag": 7,
    }
    assert {key: facts[key] for key in row} == row
    assert (facts["unacked"], facts["deferred"]) == (7, 0)
    place = {"topic": topic, "done": [], "latest_offset": 5}
    assert facts["positions"] == [
        {**place, "partition": 0, "offset": 0, "unacked": 5, "lag": 5},
        {**place, "partition": 1, "offset": 3, "unacked": 2, "lag": 2},
    ]


def test_a_detached_subscription_keeps_its_positions_until_its_ttl_ends(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("away/again")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, ttl_ms=3_600_000)
        attached_ms = described(http, name)["since_ms"]
    while (facts := described(http, name))["attached"]:
        pass
    produce(broker.bootstrap_servers, topic, range(3), partition=0)
    facts = described(http, name)
    assert facts["since_ms"] >= attached_ms
    assert 0 < facts["ttl_left_ms"] <= facts["ttl_ms"] == 3_600_000
    assert [(row["offset"], row["unacked"], row["lag"]) for row in facts["positions"]] == [
        (5, 0, 3),
        (5, 0, 0),
    ]
    assert (listed(http, name)["attached"], listed(http, name)["lag"]) == (False, 3)


def test_acked_messages_behind_a_deferred_one_do_not_count_as_lag(
    http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    topic, name = unique("push"), unique("patient")
    create(broker.bootstrap_servers, topic)
    produce(broker.bootstrap_servers, topic, ["later"], headers={"penstock-delay-ms": b"3600000"})
    produce(broker.bootstrap_servers, topic, ["now", "then"])
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        now, _ = one.take(2)
        one.ack(now)
        one.hear_of("acked")
        facts = described(http, name)
    assert facts["positions"] == [
        {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "done": [{"first": 1, "last": 1}],
            "unacked": 1,
            "latest_offset": 3,
            "lag": 2,
        }
    ]
    assert (facts["unacked"], facts["deferred"]) == (1, 1)


def test_an_attached_subscription_is_deleted_only_by_force_which_disconnects_its_subscriber(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("billing")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        refused = http.delete(f"/v1/subscriptions/{name}")
        assert refused.status_code == 409
        error = refused.json()["error"]
        assert (error["code"], error["field"]) == ("non_empty_group", "subscription")
        assert "force=true" in error["message"]
        assert described(http, name)["attached"]
        assert http.delete(f"/v1/subscriptions/{name}", params={"force": "true"}).status_code == 204
        assert one.closed() == (1000, "unsubscribed")
    assert http.get(f"/v1/subscriptions/{name}").status_code == 404
    assert listed(http, name) is None
    assert committed(broker.bootstrap_servers, name, topic) == NO_OFFSET


def test_a_detached_subscription_is_deleted_and_starts_over(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("billing")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic)
    while described(http, name)["attached"]:
        pass
    assert http.delete(f"/v1/subscriptions/{name}").status_code == 204
    assert http.delete(f"/v1/subscriptions/{name}").status_code == 404
    with subscriber(broker.http_url) as one:
        assert one.subscribe(name, topic, read_old=True)["resumed"] is False


def test_a_consumer_group_is_no_subscription_and_keeps_its_offsets(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique
) -> None:
    group = unique("readers")
    http.post(f"/v1/groups/{group}/offsets", json={"topic": topic, "to": 3}).raise_for_status()
    assert listed(http, group) is None
    answer = http.get(f"/v1/subscriptions/{group}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_subscription")
    assert http.delete(f"/v1/subscriptions/{group}", params={"force": "true"}).status_code == 404
    assert committed(broker.bootstrap_servers, group, topic) == 3


def test_a_list_longer_than_a_page_is_complete(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.node.subscriptions.router.PAGE_POSITIONS", 1)
    names = [unique("many") for _ in range(3)]
    for name in names:
        with subscriber(broker.http_url) as one:
            one.subscribe(name, topic, read_old=True)
    rows = http.get("/v1/subscriptions").json()["subscriptions"]
    assert [row["lag"] for row in rows if row["subscription"] in names] == [10, 10, 10]
    assert [row["subscription"] for row in rows] == sorted({row["subscription"] for row in rows})


def test_a_deletion_is_one_event_in_the_status_log(tmp_path: Path) -> None:
    """By force while it has a subscriber, and after a restart before the first subscriber."""

    def running() -> Broker:
        return Broker(data_dir=tmp_path, status_topic=TOPIC)

    with running() as broker:
        create(broker.bootstrap_servers, "orders")
        for name in ("held", "left"):
            with subscriber(broker.http_url) as one:
                one.subscribe(name, "orders")
                if name == "held":
                    url = f"{broker.http_url}/v1/subscriptions/held?force=true"
                    assert httpx.delete(url, timeout=30).status_code == 204
    with running() as broker:
        url = f"{broker.http_url}/v1/subscriptions/left"
        assert httpx.delete(url, timeout=30).status_code == 204
        events = events_until(broker.bootstrap_servers, has("subscription.forgotten", subscription="left"))
    for name in ("held", "left"):
        assert len(told(events, "subscription.forgotten", subscription=name)) == 1


def test_the_list_is_empty_before_the_first_subscription() -> None:
    with Broker() as broker, httpx.Client(base_url=broker.http_url, timeout=30) as http:
        assert http.get("/v1/subscriptions").json() == {"subscriptions": [], "unanswered": []}
        assert http.get("/v1/subscriptions/billing").status_code == 404
        assert http.delete("/v1/subscriptions/billing").status_code == 404


def test_a_queue_is_refused_as_a_subscription_because_it_is_a_queue(
    http: httpx.Client, unique: Unique
) -> None:
    name = unique("mail")
    http.post("/v1/queues", json={"queue": name}).raise_for_status()
    for answer in (http.get(f"/v1/groups/{name}"), http.delete(f"/v1/groups/{name}")):
        assert answer.status_code == 404
        assert f"GET /v1/queues/{name}" in answer.json()["error"]["message"]
