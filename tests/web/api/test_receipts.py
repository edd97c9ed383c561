"""A receipt belongs to one queue and one delivery, independent of its holder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Broker
from tests.web.leases import BRIEF_MS, LONG_MS, lease_from_now_on

Unique = Callable[[str], str]


@pytest.fixture
def topic(http: httpx.Client, unique: Unique) -> str:
    name = unique("work")
    http.post("/v1/topics", json={"name": name, "partitions": 1}).raise_for_status()
    return name


def create(http: httpx.Client, queue: str, topic: str, **settings: Any) -> str:
    http.post("/v1/queues", json={"queue": queue, "topic": topic, **settings}).raise_for_status()
    return queue


def publish(http: httpx.Client, topic: str, *values: str) -> None:
    body = {"records": [{"value": value} for value in values]}
    http.post(f"/v1/topics/{topic}/records", json=body).raise_for_status()


def receive(http: httpx.Client, queue: str) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000, "consumer": "ann"})
    answer.raise_for_status()
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def refused(http: httpx.Client, queue: str, **verdicts: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/settle", json=verdicts).json()
    rows: list[dict[str, Any]] = answer["refused"]
    return [row["error"] for row in rows]


def undone(http: httpx.Client, queue: str) -> int:
    [row] = http.get(f"/v1/queues/{queue}").json()["partitions"]
    count: int = row["undone"]
    return count


def test_the_receipt_of_an_ended_lease_does_not_settle_the_next_lease_of_the_same_consumer(
    http: httpx.Client, topic: str
) -> None:
    queue = create(http, topic, topic, lease_ms=BRIEF_MS)
    publish(http, topic, "slow", "too")
    first = receive(http, queue)
    lease_from_now_on(http, queue, LONG_MS)
    second = receive(http, queue)
    assert [job["deliveries"] for job in second] == [2, 2]
    for verdict in ("accept", "reject", "renew"):
        [one, two] = refused(http, queue, **{verdict: [job["receipt"] for job in first]})
        assert one["code"] == two["code"] == "lease_over"
        assert "delivery 1" in one["message"]
    assert undone(http, queue) == 2
    [error] = refused(http, queue, accept=[first[0]["receipt"], *(job["receipt"] for job in second)])
    assert error["code"] == "lease_over"
    assert undone(http, queue) == 0, "beside an old one the new ones are good"


def test_a_receipt_stays_valid_when_its_lease_is_renewed(http: httpx.Client, topic: str) -> None:
    queue = create(http, topic, topic)
    publish(http, topic, "a", "b")
    [one, other] = receive(http, queue)
    assert refused(http, queue, renew=[one["receipt"]]) == []
    assert refused(http, queue, accept=[one["receipt"], other["receipt"]]) == []
    assert undone(http, queue) == 0


def test_a_recreated_queue_refuses_receipts_of_the_deleted_one(http: httpx.Client, topic: str) -> None:
    queue = create(http, topic, topic, start="earliest")
    publish(http, topic, "a")
    [old] = receive(http, queue)
    http.delete(f"/v1/queues/{queue}").raise_for_status()
    create(http, topic, topic, start="earliest")
    [new] = receive(http, queue)
    assert (old["offset"], old["deliveries"]) == (new["offset"], new["deliveries"])
    assert [error["code"] for error in refused(http, queue, accept=[old["receipt"]])] == ["lease_over"]
    assert refused(http, queue, accept=[new["receipt"]]) == []


def test_a_receipt_settles_nothing_in_another_queue_and_the_error_names_its_queue(
    http: httpx.Client, topic: str, unique: Unique
) -> None:
    mine, other = (create(http, unique("queue"), topic) for _ in range(2))
    publish(http, topic, "a")
    [job], _ = receive(http, mine), receive(http, other)
    [error] = refused(http, other, accept=[job["receipt"]])
    assert error["code"] == "wrong_queue"
    assert error["message"] == f"this receipt is of queue {mine!r}, not of {other!r}"
    assert undone(http, other) == 1
    assert refused(http, mine, accept=[job["receipt"]]) == []


def test_a_receipt_for_a_missing_queue_is_refused_as_such(
    http: httpx.Client, topic: str, unique: Unique
) -> None:
    queue, absent = create(http, topic, topic), unique("absent")
    publish(http, topic, "a")
    [job] = receive(http, queue)
    [error] = refused(http, absent, accept=[job["receipt"]])
    assert error["code"] == "wrong_queue"
    assert f"not of {absent!r}, which does not exist" in error["message"]


def test_a_receipt_from_before_a_restart_does_not_settle_a_delivery_after_it(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, httpx.Client(base_url=broker.http_url) as http:
        create(http, "work", "work")
        publish(http, "work", "a")
        [old] = receive(http, "work")
    with Broker(data_dir=tmp_path) as broker, httpx.Client(base_url=broker.http_url) as http:
        [new] = receive(http, "work")
        assert [error["code"] for error in refused(http, "work", accept=[old["receipt"]])] == ["lease_over"]
        assert undone(http, "work") == 1
        assert refused(http, "work", accept=[new["receipt"]]) == []
