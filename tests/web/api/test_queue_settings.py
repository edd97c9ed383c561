"""A queue's settings over HTTP, when it is created and later."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from penstock import Broker
from penstock.config import Limits
from tests.web.workers import working

Unique = Callable[[str], str]
Create = Callable[..., str]


def alter(http: httpx.Client, queue: str, **changes: Any) -> Any:
    answer = http.patch(f"/v1/queues/{queue}", json=changes)
    assert answer.status_code == 200, answer.text
    return answer.json()["settings"]


def publish(http: httpx.Client, topic: str, *records: dict[str, Any]) -> None:
    http.post(f"/v1/topics/{topic}/records", json={"records": list(records)}).raise_for_status()


def receive(http: httpx.Client, queue: str, **wish: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000, "consumer": "till", **wish})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


# --- changes


def test_only_the_named_settings_change(http: httpx.Client, create: Create) -> None:
    queue = create(lease_ms=60_000, delivery_limit=3)
    changed = alter(http, queue, lease_ms=90_000, retry_backoff_ms=250, dead_letter_topic="lost")
    assert (changed["lease_ms"], changed["delivery_limit"]) == (90_000, 3)
    assert (changed["retry_backoff_ms"], changed["dead_letter_topic"]) == (250, "lost")
    assert http.get(f"/v1/queues/{queue}").json()["settings"] == changed


def test_null_restores_the_default(http: httpx.Client, create: Create) -> None:
    queue = create(lease_ms=60_000, delivery_limit=3, dead_letters=False)
    changed = alter(http, queue, delivery_limit=None, configs={"penstock.dead.letter.enable": None})
    assert (changed["lease_ms"], changed["delivery_limit"], changed["dead_letters"]) == (60_000, 5, True)


def test_a_change_applies_to_connected_workers(http: httpx.Client, broker: Broker, create: Create) -> None:
    queue = create(lease_ms=60_000)
    publish(http, queue, {"value": "slow"})
    with working(broker.http_url, queue, queue):
        alter(http, queue, lease_ms=1_000, order="key")
    [job] = receive(http, queue)
    [again] = receive(http, queue)
    assert (job["offset"], again["offset"]) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "invalid_body"),
        ({"lease_ms": 1}, "invalid_field"),
        ({"partitions": 3}, "invalid_field"),
        ({"configs": {"share.nonsense": 1}}, "invalid_config"),
        ({"retry_backoff_ms": 2_000, "retry_backoff_max_ms": 1_000}, "invalid_config"),
    ],
)
def test_invalid_values_are_refused_and_change_nothing(
    changes: dict[str, Any], code: str, http: httpx.Client, create: Create
) -> None:
    queue = create()
    before = http.get(f"/v1/queues/{queue}").json()["settings"]
    refused = http.patch(f"/v1/queues/{queue}", json=changes)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
    assert http.get(f"/v1/queues/{queue}").json()["settings"] == before


def test_a_missing_queue_cannot_be_changed(http: httpx.Client, unique: Unique) -> None:
    refused = http.patch(f"/v1/queues/{unique('missing')}", json={"lease_ms": 60_000})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_queue")


# --- dead letters


@pytest.mark.parametrize("by_name", [False, True])
def test_a_queue_is_not_created_with_its_own_topic_for_dead_letters(
    by_name: bool, http: httpx.Client, unique: Unique
) -> None:
    name = unique("work")
    wish = {"configs": {"penstock.dead.letter.topic": name}} if by_name else {"dead_letter_topic": name}
    refused = http.post("/v1/queues", json={"queue": name, **wish})
    assert refused.status_code == 400
    assert refused.json()["error"]["field"] == "dead_letter_topic"
    assert http.get(f"/v1/topics/{name}").status_code == 404, "nothing was made"


def test_a_queue_does_not_get_its_own_topic_for_dead_letters_later(
    http: httpx.Client, create: Create
) -> None:
    queue = create()
    refused = http.patch(f"/v1/queues/{queue}", json={"dead_letter_topic": queue})
    assert refused.status_code == 400
    assert refused.json()["error"]["field"] == "dead_letter_topic"


def test_a_queue_does_not_get_an_internal_topic_for_dead_letters(
    http: httpx.Client, create: Create, unique: Unique
) -> None:
    queue, wish = create(), {"dead_letter_topic": "__share_group_state"}
    for refused in (
        http.patch(f"/v1/queues/{queue}", json=wish),
        http.post("/v1/queues", json={"queue": unique("work"), **wish}),
    ):
        assert refused.status_code == 400
        assert "__share_group_state is internal" in refused.json()["error"]["message"]
    assert http.get(f"/v1/queues/{queue}").json()["settings"]["dead_letter_topic"] is None


# --- a refused create leaves nothing behind


@pytest.mark.parametrize(
    "wish",
    [
        {"configs": {"foo": "bar"}},
        {"configs": {"share.record.lock.duration.ms": "1"}},
        {"retry_backoff_ms": 5_000, "retry_backoff_max_ms": 1_000},
        {"replication_factor": 7},
    ],
)
def test_a_queue_that_is_refused_for_its_settings_leaves_no_topic_and_no_group(
    wish: dict[str, Any], http: httpx.Client, unique: Unique
) -> None:
    queue = unique("work")
    assert http.post("/v1/queues", json={"queue": queue, "partitions": 2, **wish}).status_code == 400
    assert http.get(f"/v1/topics/{queue}").status_code == 404
    assert queue not in [row["group"] for row in http.get("/v1/groups").json()["groups"]]


def test_a_queue_above_the_limit_leaves_no_topic() -> None:
    one_each = Limits(max_groups=1)  # for each partition of the groups' topic
    with Broker(limits=one_each) as broker, httpx.Client(base_url=broker.http_url) as http:
        names = (f"work-{number}" for number in range(1_000))
        refused = next(name for name in names if http.post("/v1/queues", json={"queue": name}).is_error)
        answer = http.post("/v1/queues", json={"queue": refused})
        assert answer.status_code == 409
        assert "max_groups" in answer.json()["error"]["message"]
        assert http.get(f"/v1/topics/{refused}").status_code == 404


# --- settings that cannot be unset


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("share.delivery.count.limits", "did you mean share.delivery.count.limit?"),
        ("lease", "expected one of "),
    ],
)
def test_an_unknown_setting_cannot_be_unset(name: str, told: str, http: httpx.Client, create: Create) -> None:
    answer = http.patch(f"/v1/queues/{create()}", json={"lease_ms": 5_000, "configs": {name: None}})
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (400, "configs")
    assert f"unknown config {name}; {told}" in error["message"]
