"""A point-to-point queue delivers in the order of its topic, also when a job fails or is not due."""

from collections.abc import Callable
from typing import Any

import httpx

Unique = Callable[[str], str]
Create = Callable[..., str]


def publish(http: httpx.Client, topic: str, *records: dict[str, Any]) -> None:
    http.post(f"/v1/topics/{topic}/records", json={"records": list(records)}).raise_for_status()


def receive(http: httpx.Client, queue: str, **wish: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000, "consumer": "till", **wish})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def settle(http: httpx.Client, queue: str, **verdicts: Any) -> None:
    answer = http.post(f"/v1/queues/{queue}/settle", json=verdicts)
    assert answer.status_code == 200, answer.text


def test_a_delayed_retry_blocks_a_point_to_point_queue(http: httpx.Client, create: Create) -> None:
    queue = create(point_to_point=True)
    publish(http, queue, *({"value": number} for number in range(4)))
    [first] = receive(http, queue, max=1)
    settle(http, queue, retry=[{"receipt": first["receipt"], "delay_ms": 12_000}])
    assert receive(http, queue, max=9, wait_ms=0) == []
    [row] = http.get(f"/v1/queues/{queue}").json()["partitions"]
    assert (row["available"], row["deferred"], row["waiting"]) == (0, 1, 3)
    [again] = receive(http, queue, max=9)
    assert (again["value"], again["deliveries"]) == (0, 2)
    assert receive(http, queue, max=9, wait_ms=0) == []
    settle(http, queue, accept=[again["receipt"]])
    assert [job["value"] for job in receive(http, queue, max=9)] == [1, 2, 3]


def test_a_job_that_is_not_due_blocks_a_point_to_point_queue(http: httpx.Client, create: Create) -> None:
    queue = create(point_to_point=True)
    publish(http, queue, {"value": "now"}, {"value": "soon", "delay_ms": 12_000}, {"value": "behind"})
    assert [job["value"] for job in receive(http, queue, max=9)] == ["now"]
    assert [job["value"] for job in receive(http, queue, max=9)] == ["soon", "behind"]


def test_a_shared_queue_does_not_wait_for_a_delayed_retry(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, *({"value": number} for number in range(2)))
    [first] = receive(http, queue, max=1)
    settle(http, queue, retry=[{"receipt": first["receipt"], "delay_ms": 60_000}])
    assert [job["value"] for job in receive(http, queue, max=9)] == [1]
