"""Receipts of jobs whose topic does not exist: deleted, or of another cluster."""

from collections.abc import Callable
from uuid import uuid4

import httpx

from penstock.node.calls.messages.queues import DeliveryId
from penstock.web.api.queue_jobs import RECEIPT_VERSION, JobReceipt

Unique = Callable[[str], str]


def test_a_receipt_of_a_missing_topic_is_distinguished_from_a_topic_without_a_leader(
    http: httpx.Client, unique: Unique
) -> None:
    queue = unique("work")
    http.post("/v1/queues", json={"queue": queue}).raise_for_status()
    http.post(f"/v1/topics/{queue}/records", json={"records": [{"value": 1}]}).raise_for_status()
    [job] = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000}).json()["jobs"]
    http.delete(f"/v1/topics/{queue}").raise_for_status()
    of_another_cluster = JobReceipt(
        RECEIPT_VERSION, queue, "another", uuid4().bytes, 0, 0, DeliveryId(b"", 1)
    ).encode()
    answer = http.post(f"/v1/queues/{queue}/settle", json={"accept": [job["receipt"], of_another_cluster]})
    assert answer.status_code == 207
    assert [row["error"]["code"] for row in answer.json()["refused"]] == ["unknown_topic_id"] * 2
