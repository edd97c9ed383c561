"""Scheduled messages over HTTP, on one node and on three."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.web.web_trio import WebTrio

Unique = Callable[[str], str]
HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000


def publish(http: httpx.Client, topic: str, *records: dict[str, Any]) -> None:
    answer = http.post(f"/v1/topics/{topic}/records", json={"records": list(records)})
    assert answer.status_code == 200, answer.text


def scheduled(http: httpx.Client, queue: str, **wish: Any) -> Any:
    answer = http.get(f"/v1/queues/{queue}/scheduled", params=wish)
    assert answer.status_code == 200, answer.text
    return answer.json()


def due(facts: Any) -> list[tuple[int, int, int]]:
    return [(row["partition"], row["offset"], row["due_ms"]) for row in facts["messages"]]


@pytest.fixture
def queue(http: httpx.Client, unique: Unique) -> str:
    """A queue with two partitions, of which no job was ever received."""
    name = unique("reminders")
    http.post("/v1/queues", json={"queue": name, "partitions": 2}).raise_for_status()
    return name


def test_scheduled_messages_are_counted_and_listed_before_the_first_receive(
    http: httpx.Client, queue: str
) -> None:
    publish(
        http,
        queue,
        {"value": 1, "partition": 0, "deliver_at_ms": FAR_MS + 3},
        {"value": 2, "partition": 0},
        {"value": 3, "partition": 0, "deliver_at_ms": FAR_MS + 1},
        {"value": 4, "partition": 1, "deliver_at_ms": FAR_MS + 2},
    )
    facts = scheduled(http, queue)
    assert facts["partitions"] == [
        {"topic": queue, "partition": 0, "deferred": 2, "next_due_ms": FAR_MS + 1, "unread": 0},
        {"topic": queue, "partition": 1, "deferred": 1, "next_due_ms": FAR_MS + 2, "unread": 0},
    ]
    assert due(facts) == [(0, 2, FAR_MS + 1), (1, 0, FAR_MS + 2), (0, 0, FAR_MS + 3)]
    assert due(scheduled(http, queue, max_records=2)) == due(facts)[:2]
    part = scheduled(http, queue, topic=queue, partition=1)
    assert (len(part["partitions"]), due(part)) == (1, [(1, 0, FAR_MS + 2)])


def test_a_due_message_is_not_scheduled_and_a_delayed_retry_is(http: httpx.Client, queue: str) -> None:
    publish(http, queue, {"value": "soon", "partition": 0, "delay_ms": 50})
    answer = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000}).json()
    [job] = answer["jobs"]
    facts = scheduled(http, queue)
    assert [row["deferred"] for row in facts["partitions"]] == [0, 0]
    assert [row["next_due_ms"] for row in facts["partitions"]] == [None, None]
    before_ms = int(time.time() * 1000)
    retry = {"retry": [{"receipt": job["receipt"], "delay_ms": HOUR_MS}]}
    http.post(f"/v1/queues/{queue}/settle", json=retry).raise_for_status()
    [(partition, offset, due_ms)] = due(scheduled(http, queue))
    assert (partition, offset) == (0, 0)
    assert before_ms + HOUR_MS - 1000 <= due_ms <= int(time.time() * 1000) + HOUR_MS + 1000


def test_an_incomplete_answer_says_so_and_the_next_one_continues(
    http: httpx.Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(http, queue, *({"value": number, "partition": 0} for number in range(3)))
    publish(http, queue, {"value": "late", "partition": 0, "deliver_at_ms": FAR_MS})
    monkeypatch.setattr("penstock.node.queues.driver.READ_ON_SECONDS", 0)
    facts = scheduled(http, queue)["partitions"][0]
    assert (facts["deferred"], facts["unread"]) == (0, 4)
    monkeypatch.undo()
    facts = scheduled(http, queue)["partitions"][0]
    assert (facts["deferred"], facts["unread"]) == (1, 0)


def test_a_missing_queue_and_a_partition_without_its_topic_are_refused(
    http: httpx.Client, queue: str
) -> None:
    absent = http.get("/v1/queues/there-is-none/scheduled")
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "unknown_queue")
    for wish in ({"partition": 0}, {"max_records": 0}, {"max_records": 1001}, {"encoding": "json"}):
        assert http.get(f"/v1/queues/{queue}/scheduled", params=wish).status_code == 400


# --- three nodes


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    with WebTrio() as nodes:
        yield nodes


def test_every_node_lists_scheduled_messages_of_all_leaders_also_after_a_leader_change(
    trio: WebTrio, unique: Unique
) -> None:
    name = unique("reminders")
    with trio.caller(1) as one, trio.caller(2) as two, trio.caller(3) as three:
        wish = {"queue": name, "partitions": 3, "replication_factor": 3}
        one.post("/v1/queues", json=wish).raise_for_status()
        for node in (1, 2, 3):
            trio.hand_over(name, node, node - 1)
        records = [
            {"value": number, "partition": number % 3, "deliver_at_ms": FAR_MS - number}
            for number in range(6)
        ]
        publish(two, name, *records)
        expected = [(number % 3, number // 3, FAR_MS - number) for number in range(5, -1, -1)]
        for http in (one, two, three):
            facts = scheduled(http, name)
            assert [row["deferred"] for row in facts["partitions"]] == [2, 2, 2]
            assert due(facts) == expected
        trio.hand_over(name, 2, 0)
        assert due(scheduled(three, name)) == expected
