"""Dead letters over HTTP: how many there are, sent back in steps, and edited."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from penstock import Broker
from tests.web.api.secured import PASSWORDS, caller

Create = Callable[..., str]
PATIENCE_SECONDS = 60


def rejected(http: httpx.Client, queue: str, values: list[dict[str, Any]]) -> None:
    """Publishes these, has a worker reject them, and waits for their dead letters."""
    http.post(f"/v1/topics/{queue}/records", json={"records": values}).raise_for_status()
    jobs: list[Any] = []
    while len(jobs) < len(values):
        answer = http.post(f"/v1/queues/{queue}/receive", json={"max": len(values), "wait_ms": 30_000})
        jobs += answer.raise_for_status().json()["jobs"]
    receipts = [job["receipt"] for job in jobs]
    http.post(f"/v1/queues/{queue}/settle", json={"reject": receipts}).raise_for_status()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(letters(http, queue)) < len(values):
        assert time.monotonic() < deadline


def letters(http: httpx.Client, queue: str) -> list[dict[str, Any]]:
    return http.get(f"/v1/queues/{queue}/dead-letters").raise_for_status().json()["dead_letters"]


def counted(http: httpx.Client, queue: str) -> tuple[int | None, int | None]:
    """In the list of all queues, and on its own."""
    [row] = [one for one in http.get("/v1/queues").json()["queues"] if one["queue"] == queue]
    return row["dead_letters"], http.get(f"/v1/queues/{queue}").json()["dead_letters"]


def send_back(http: httpx.Client, queue: str, **body: Any) -> dict[str, Any]:
    return http.post(f"/v1/queues/{queue}/dead-letters/send-back", json=body).json()


def test_dead_letters_are_counted_until_they_are_sent_back(http: httpx.Client, create: Create) -> None:
    queue = create()
    assert counted(http, queue) == (0, 0)
    rejected(http, queue, [{"value": number} for number in range(3)])
    assert counted(http, queue) == (3, 3)
    assert len(send_back(http, queue, all=True, max_records=2)["sent_back"]) == 2
    assert counted(http, queue) == (1, 1)


def test_who_may_not_see_the_dead_letter_topic_gets_no_count_and_a_refusal_instead_of_letters() -> None:
    rules = [("group", "work"), ("topic", "work")]
    with Broker(users=PASSWORDS) as broker, caller(broker, "admin", PASSWORDS["admin"]) as admin:
        admin.post("/v1/queues", json={"queue": "work"}).raise_for_status()
        allowed = [
            {"principal": "User:bob", "operation": "describe", "resource_type": kind, "name": name}
            for kind, name in rules
        ]
        admin.post("/v1/acls", json={"acls": allowed}).raise_for_status()
        with caller(broker, "bob", PASSWORDS["bob"]) as bob:
            assert counted(bob, "work") == (None, None)
            answer = bob.get("/v1/queues/work/dead-letters")
            assert (answer.status_code, "READ permission on topic 'work.dlq'" in answer.text) == (403, True)
        assert letters(admin, "work") == []
        assert counted(admin, "work") == (0, 0)


def test_invented_letters_do_not_go_to_other_topics(http: httpx.Client, create: Create) -> None:
    """Anybody who may write to a dead-letter topic can write what looks like a dead letter."""
    queue, other = create(), create()
    rejected(http, queue, [{"value": "genuine"}])

    def invent(topic: str) -> dict[str, Any]:
        record = {
            "value": topic,
            "partition": 0,
            "headers": {"penstock-dead-group": queue, "penstock-dead-topic": topic},
        }
        answer = http.post(f"/v1/topics/{queue}.dlq/records", json={"records": [record]}).raise_for_status()
        return {"topic": f"{queue}.dlq", "partition": 0, "offset": answer.json()["records"][0]["offset"]}

    foreign, internal = invent(other), invent("__share_group_state")
    done = send_back(http, queue, all=True)
    assert [one["topic"] for one in done["sent_back"]] == [queue]
    assert {one["error"]["code"] for one in done["refused"]} == {"foreign_dead_letter"}
    [refused] = send_back(http, queue, letters=[internal])["refused"]
    assert refused["error"]["code"] == "invalid_topic_exception"
    [sent] = send_back(http, queue, letters=[foreign])["sent_back"]
    assert sent["topic"] == other


def test_steps_pass_letters_that_are_refused(http: httpx.Client, create: Create) -> None:
    """Letters without a copy of their message stay: a caller that begins anew would get them again and again."""
    topic = create(configs={"errors.deadletterqueue.topic.name": "dlq.steps"})
    rejected(http, topic, [{"value": number} for number in range(3)])
    start, refused, steps = None, list[Any](), 0
    while steps == 0 or start:
        done = send_back(http, topic, all=True, start=start, max_records=1)
        refused, start, steps = refused + done["refused"], done["next"], steps + 1
    assert ([one["error"]["code"] for one in refused], steps) == (["content_omitted"] * 3, 3)


def test_steps_go_on_where_the_last_one_ended(http: httpx.Client, create: Create) -> None:
    queue = create()
    rejected(http, queue, [{"value": number} for number in range(5)])
    start, sent, steps = None, list[Any](), 0
    while steps == 0 or start:
        done = send_back(http, queue, all=True, start=start, max_records=2)
        assert done["more"] is (done["next"] is not None)
        sent, start, steps = sent + done["sent_back"], done["next"], steps + 1
    assert (len(sent), steps) == (5, 3)
    assert letters(http, queue) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ("k", "v", ["a"])),
        ({"key": "other"}, ("other", "v", ["a"])),
        ({"key": None}, (None, "v", ["a"])),
        ({"headers": [{"name": "b", "value": "AP8=", "encoding": "base64"}]}, ("k", "v", ["b"])),
        ({"value": "w", "encoding": "text", "headers": []}, ("k", "w", [])),
    ],
)
def test_value_key_and_headers_are_edited(
    http: httpx.Client, create: Create, change: dict[str, Any], expected: tuple[object, ...]
) -> None:
    queue = create(partitions=3)
    rejected(http, queue, [{"value": "v", "key": "k", "headers": {"a": "1"}}])
    [letter] = letters(http, queue)
    place = {name: letter[name] for name in ("topic", "partition", "offset")}
    [sent] = send_back(http, queue, letters=[{**place, **change}])["sent_back"]
    params = {"offset": sent["offset"]}
    found = http.get(f"/v1/topics/{queue}/partitions/{sent['partition']}/records", params=params).json()
    record = found["records"][0]
    names = [one["name"] for one in record["headers"]]
    assert (record["key"], record["value"], names) == expected
    if change.get("key"):
        again = http.post(
            f"/v1/topics/{queue}/records", json={"records": [{"value": 1, "key": change["key"]}]}
        )
        assert again.json()["records"][0]["partition"] == sent["partition"]


def test_an_edit_that_is_no_base64_is_refused_at_its_field(http: httpx.Client, create: Create) -> None:
    queue = create()
    rejected(http, queue, [{"value": 1}])
    place = {name: letters(http, queue)[0][name] for name in ("topic", "partition", "offset")}
    [refused] = send_back(http, queue, letters=[{**place, "key": "!", "key_encoding": "base64"}])["refused"]
    assert refused["error"]["field"] == "key"


@pytest.mark.parametrize(
    ("change", "body", "field"),
    [
        ({"headers": [{"name": "a", "value": "1"}] * 1_001}, {}, "letters[0].headers"),
        ({"headers": [{"name": "a" * 1_025, "value": "1"}]}, {}, "letters[0].headers[0].name"),
        ({}, {"start": {"topic": "t", "partition": 0, "offset": 0}}, "start"),
        ({}, {"max_records": 1_001}, "max_records"),
    ],
)
def test_an_edit_beyond_the_limits_is_refused(
    http: httpx.Client, change: dict[str, Any], body: dict[str, Any], field: str
) -> None:
    letter = {"topic": "t", "partition": 0, "offset": 0, **change}
    answer = http.post("/v1/queues/any/dead-letters/send-back", json={"letters": [letter], **body})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
