"""How a queue ends."""

from collections.abc import Callable

import httpx
import pytest

from penstock import Broker
from tests.web.workers import working

Unique = Callable[[str], str]


@pytest.fixture
def queue(http: httpx.Client, unique: Unique) -> str:
    """On a topic of its own, with one message."""
    name = unique("work")
    http.post("/v1/queues", json={"queue": name}).raise_for_status()
    http.post(f"/v1/topics/{name}/records", json={"records": [{"value": "a"}]}).raise_for_status()
    return name


def test_a_queue_is_not_deleted_under_a_worker_that_is_connected(
    http: httpx.Client, broker: Broker, queue: str
) -> None:
    with working(
        broker.http_url, queue, queue, credit=0
    ) as worker:  # it neither waits for a job nor holds one
        worker.hear("working")
        answer = http.delete(f"/v1/queues/{queue}")
        facts = answer.json()["error"]
        assert (answer.status_code, facts["code"], facts["field"]) == (409, "non_empty_group", "queue")
        [consumer] = http.get(f"/v1/queues/{queue}").json()["consumers"]
        assert f"{consumer['name']} at {consumer['address']} (websocket)" in facts["message"]
        worker.say(type="credit", credit=1)
        assert [job["value"] for job in worker.jobs(1)] == ["a"], "it goes on"
        worker.socket.close()
        while http.delete(f"/v1/queues/{queue}").status_code == 409:
            pass
    assert http.get(f"/v1/queues/{queue}").status_code == 404


def test_a_receipt_of_a_deleted_queue_is_refused_and_the_queue_stays_deleted(
    http: httpx.Client, queue: str
) -> None:
    [job] = http.post(f"/v1/queues/{queue}/receive", json={}).json()["jobs"]
    assert http.delete(f"/v1/queues/{queue}").status_code == 204
    answer = http.post(f"/v1/queues/{queue}/settle", json={"accept": [job["receipt"]]})
    assert answer.status_code == 207
    assert [row["error"]["code"] for row in answer.json()["refused"]] == ["lease_over"]
    assert http.get(f"/v1/queues/{queue}").status_code == 404
