"""Dead letters over HTTP: how many there are, sent back in steps, and edited."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from penstock import Broker
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.web.api import offset_ranges
from tests.web.api.secured import PASSWORDS, caller

Create = Callable[..., str]
PATIENCE_SECONDS = 60


def rejected(http: httpx.Client, queue: str, values: list[dict[str, Any]]) -> None:
    """Publishes these, has a worker reject them, and waits for their dead letters."""
    http.post(f"/v1/topics/{queue}/records", json={"records": values}).raise_for_status()
    reject(http, queue, len(values))


def reject(http: httpx.Client, queue: str, count: int) -> None:
    jobs: list[Any] = []
    while len(jobs) < count:
        answer = http.post(f"/v1/queues/{queue}/receive", json={"max": count, "wait_ms": 30_000})
        jobs += answer.raise_for_status().json()["jobs"]
    receipts = [job["receipt"] for job in jobs]
    http.post(f"/v1/queues/{queue}/settle", json={"reject": receipts}).raise_for_status()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(letters(http, queue)) < count:
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


class OffsetRequests:
    """Counts the requests for offsets; with `answered` they get a response."""

    def __init__(self, patch: pytest.MonkeyPatch, *, answered: bool = True) -> None:
        self.count = 0
        ask = InnerClient.ask

        async def counted(client: InnerClient, key: ApiKey, *rest: Any, **more: Any) -> Any:
            self.count += key == ApiKey.LIST_OFFSETS
            if key == ApiKey.LIST_OFFSETS and not answered:
                await asyncio.Event().wait()
            return await ask(client, key, *rest, **more)

        patch.setattr(InnerClient, "ask", counted)


def test_the_dead_letters_of_many_queues_are_counted_with_few_requests(
    http: httpx.Client, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [create() for _ in range(5)]
    for number, queue in enumerate(queues):
        records = {"records": [{"value": number}] * number or [{"value": None}]}
        http.post(f"/v1/topics/{queue}.dlq/records", json=records).raise_for_status()
    requests = OffsetRequests(monkeypatch)
    rows = {row["queue"]: row["dead_letters"] for row in http.get("/v1/queues").json()["queues"]}
    assert [rows[queue] for queue in queues] == [1, 1, 2, 3, 4]
    assert requests.count == 2  # for the first and the last offsets
    http.get(f"/v1/queues/{queues[0]}/diagnosis").raise_for_status()
    assert requests.count == 2


def test_a_leader_that_does_not_answer_leaves_the_count_open(
    http: httpx.Client, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create()
    http.post(f"/v1/topics/{queue}.dlq/records", json={"records": [{"value": 1}]}).raise_for_status()
    monkeypatch.setattr(offset_ranges, "ASK_SECONDS", 0.05)
    OffsetRequests(monkeypatch, answered=False)
    assert counted(http, queue) == (None, None)


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


def invented(http: httpx.Client, queue: str, topic: str) -> dict[str, Any]:
    """The position of a letter that says that it comes from this topic."""
    headers = {"penstock-dead-group": queue, "penstock-dead-topic": topic}
    record = {"value": topic, "partition": 0, "headers": headers}
    answer = http.post(f"/v1/topics/{queue}.dlq/records", json={"records": [record]}).raise_for_status()
    return {"topic": f"{queue}.dlq", "partition": 0, "offset": answer.json()["records"][0]["offset"]}


def test_invented_letters_do_not_become_events_of_the_broker() -> None:
    with Broker(status_topic="events") as broker, httpx.Client(base_url=broker.http_url, timeout=30) as http:
        http.post("/v1/queues", json={"queue": "work"}).raise_for_status()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while http.get("/v1/topics/events").status_code == 404:
            assert time.monotonic() < deadline
        [refused] = send_back(http, "work", letters=[invented(http, "work", "events")])["refused"]
        assert refused["error"]["code"] == "invalid_topic_exception"


def test_invented_letters_do_not_go_to_other_topics(http: httpx.Client, create: Create) -> None:
    """Anybody who may write to a dead-letter topic can write what looks like a dead letter."""
    queue, other = create(), create()
    rejected(http, queue, [{"value": "genuine"}])

    foreign, internal = invented(http, queue, other), invented(http, queue, "__share_group_state")
    done = send_back(http, queue, all=True)
    assert [one["topic"] for one in done["sent_back"]] == [queue]
    assert {one["error"]["code"] for one in done["refused"]} == {"foreign_dead_letter"}
    [refused] = send_back(http, queue, letters=[internal])["refused"]
    assert refused["error"]["code"] == "invalid_topic_exception"
    [sent] = send_back(http, queue, letters=[foreign])["sent_back"]
    assert sent["topic"] == other


def test_steps_pass_letters_that_are_refused(http: httpx.Client, create: Create) -> None:
    """Letters without a copy of their message stay: a caller that starts again would get them again and again."""
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


def only_place(http: httpx.Client, queue: str) -> dict[str, Any]:
    [letter] = letters(http, queue)
    return {name: letter[name] for name in ("topic", "partition", "offset")}


@pytest.mark.parametrize(
    ("configs", "change", "code"),
    [
        ({"cleanup.policy": "compact"}, {"key": None}, "invalid_record"),
        (
            {"max.message.bytes": "100000"},
            {"value": random.Random(1).randbytes(100_000).hex()},
            "message_too_large",
        ),
        (
            {"dedup.window.ms": "0"},
            {"headers": [{"name": "penstock-message-id", "value": "1"}]},
            "no_dedup_window",
        ),
    ],
    ids=["compacted", "too large", "reserved header"],
)
def test_an_edited_letter_is_under_the_rules_of_its_topic(
    http: httpx.Client, create: Create, configs: dict[str, str], change: dict[str, Any], code: str
) -> None:
    queue = create()
    http.patch(f"/v1/topics/{queue}/configs", json={"set": configs}).raise_for_status()
    rejected(http, queue, [{"value": "v", "key": "k"}])
    [refused] = send_back(http, queue, letters=[{**only_place(http, queue), **change}])["refused"]
    assert refused["error"]["code"] == code
    assert len(letters(http, queue)) == 1
    assert send_back(http, queue, all=True)["refused"] == []


def test_a_letter_goes_back_although_its_topic_deduplicates_or_has_it_compressed(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    configs = {"dedup.window.ms": "600000", "max.message.bytes": "100000"}
    http.patch(f"/v1/topics/{queue}/configs", json={"set": configs}).raise_for_status()
    producer = Producer({**broker.client_settings(), "compression.type": "gzip"})
    producer.produce(queue, b'"' + b"x" * 500_000 + b'"', headers={"penstock-message-id": "1"})
    producer.flush()
    reject(http, queue, 1)
    [sent] = send_back(http, queue, letters=[only_place(http, queue)])["sent_back"]
    assert sent["offset"] == 1
    [job] = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000}).json()["jobs"]
    assert (job["offset"], job["value"], job["headers"][0]["name"]) == (
        1,
        "x" * 500_000,
        "penstock-message-id",
    )


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
