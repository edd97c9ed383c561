"""Consumer groups over HTTP."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from confluent_kafka import Consumer

from penstock import Broker

Unique = Callable[[str], str]


@pytest.fixture
def topic(http: httpx.Client, unique: Unique) -> str:
    """Two partitions with five records each, at the times 1000, 1010, ..."""
    name = unique("read")
    http.post("/v1/topics", json={"name": name, "partitions": 2}).raise_for_status()
    records = [
        {"value": number, "partition": part, "timestamp_ms": 1000 + 10 * number}
        for part in (0, 1)
        for number in range(5)
    ]
    http.post(f"/v1/topics/{name}/records", json={"records": records}).raise_for_status()
    return name


@contextmanager
def consuming(broker: Broker, group: str, topic: str, count: int) -> Iterator[list[Any]]:
    """A member that has read and committed some records, as long as the block lasts."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found = consumer.consume(count, 20)
    assert len(found) == count
    consumer.commit(asynchronous=False)
    try:
        yield found
    finally:
        consumer.close()


def test_a_group_is_listed_and_described_with_members_offsets_and_lag(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique
) -> None:
    group = unique("group")
    with consuming(broker, group, topic, 10):
        [row] = [row for row in http.get("/v1/groups").json()["groups"] if row["group"] == group]
        assert row.pop("lag") in (None, 0)  # of the last sample
        assert row == {
            "group": group,
            "state": "Stable",
            "type": "classic",
            "protocol_type": "consumer",
            "coordinator": 1,
        }
        http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": 1, "partition": 1}] * 3})
        facts = http.get(f"/v1/groups/{group}").json()
    assert (facts["state"], facts["protocol"], facts["coordinator"]) == ("Stable", "range", 1)
    [member] = facts["members"]
    assert (member["client_id"], member["client_host"]) == ("reader", "/127.0.0.1")
    assert member["assignment"] == [{"topic": topic, "partitions": [0, 1]}]
    assert facts["offsets"] == [
        {"topic": topic, "partition": 0, "committed_offset": 5, "metadata": "", "latest_offset": 5, "lag": 0},
        {"topic": topic, "partition": 1, "committed_offset": 5, "metadata": "", "latest_offset": 8, "lag": 3},
    ]
    assert facts["lag"] == 3


def test_a_group_with_members_is_neither_deleted_nor_reset(
    http: httpx.Client, broker: Broker, topic: str, unique: Unique
) -> None:
    group = unique("busy")
    with consuming(broker, group, topic, 1):
        for refused in (
            http.delete(f"/v1/groups/{group}"),
            http.post(f"/v1/groups/{group}/offsets", json={"topic": topic, "to": "earliest"}),
        ):
            assert refused.status_code == 409
            assert refused.json()["error"]["code"] == "non_empty_group"
            assert "stop its consumers" in refused.json()["error"]["message"]
    assert http.delete(f"/v1/groups/{group}").status_code == 204
    assert http.get(f"/v1/groups/{group}").status_code == 404


@pytest.mark.parametrize(
    ("wish", "offsets"),
    [
        ({"to": "earliest"}, {0: 0, 1: 0}),
        ({"to": "latest"}, {0: 5, 1: 5}),
        ({"to": 3}, {0: 3, 1: 3}),
        ({"to": 2, "partitions": [1, 1]}, {1: 2}),
        ({"timestamp_ms": 1015}, {0: 2, 1: 2}),
        ({"timestamp_ms": 99_999}, {0: 5, 1: 5}),
    ],
    ids=str,
)
def test_a_group_continues_where_it_was_reset_to(
    http: httpx.Client,
    broker: Broker,
    topic: str,
    unique: Unique,
    wish: dict[str, Any],
    offsets: dict[int, int],
) -> None:
    group = unique("moved")
    answer = http.post(f"/v1/groups/{group}/offsets", json={"topic": topic, **wish})
    assert answer.status_code == 200
    assert {row["partition"]: row["offset"] for row in answer.json()["offsets"]} == offsets
    facts = http.get(f"/v1/groups/{group}").json()
    assert {row["partition"]: row["committed_offset"] for row in facts["offsets"]} == offsets
    left = sum(5 - offset for offset in offsets.values())
    assert facts["lag"] == left
    if left:
        with consuming(broker, group, topic, left) as found:
            assert {(one.partition(), one.offset()) for one in found} >= {
                (part, offset) for part, offset in offsets.items() if offset < 5
            }


def test_a_dry_run_shows_what_would_change_and_changes_nothing(
    http: httpx.Client, topic: str, unique: Unique
) -> None:
    path = f"/v1/groups/{unique('planned')}/offsets"
    http.post(path, json={"topic": topic, "to": 3, "partitions": [1]}).raise_for_status()
    plan = http.post(path, json={"topic": topic, "to": "latest", "dry_run": True}).json()
    assert plan["dry_run"] is True
    assert plan["offsets"] == [
        {"partition": 0, "offset": 5, "before": None},
        {"partition": 1, "offset": 5, "before": 3},
    ]
    [left] = http.get(path.removesuffix("/offsets")).json()["offsets"]
    assert (left["partition"], left["committed_offset"]) == (1, 3)


@pytest.mark.parametrize(
    ("wish", "status", "field"),
    [
        ({"to": 6}, 400, "to"),
        ({"to": "soon"}, 400, "to"),
        ({"to": -1}, 400, "to"),
        ({}, 400, "to"),
        ({"to": 1, "timestamp_ms": 1}, 400, "to"),
        ({"to": 1, "partitions": [2]}, 400, "partitions"),
        ({"to": 1, "partitions": []}, 400, "partitions"),
        ({"to": 1, "topic": "nowhere"}, 404, "topic"),
        ({"to": 1, "force": True}, 400, "force"),
    ],
    ids=str,
)
def test_an_invalid_offset_is_named_and_nothing_is_committed(
    http: httpx.Client, topic: str, unique: Unique, wish: dict[str, Any], status: int, field: str
) -> None:
    group = unique("wrong")
    refused = http.post(f"/v1/groups/{group}/offsets", json={"topic": topic, **wish})
    assert (refused.status_code, refused.json()["error"]["field"]) == (status, field)
    assert http.get(f"/v1/groups/{group}").status_code == 404


def test_a_groups_name_may_contain_any_character(http: httpx.Client, topic: str, unique: Unique) -> None:
    group = unique("team/größe ?#%2F")
    path = f"/v1/groups/{quote(group, safe='')}"
    assert http.post(f"{path}/offsets", json={"topic": topic, "to": "latest"}).json()["group"] == group
    assert http.get(path).json()["group"] == group
    assert group in {row["group"] for row in http.get("/v1/groups").json()["groups"]}
    assert http.delete(path).status_code == 204


def test_a_missing_group_is_404_also_before_the_first_group() -> None:
    with Broker() as fresh:
        assert httpx.get(f"{fresh.http_url}/v1/groups").json() == {"groups": [], "unanswered": []}
        refused = httpx.get(f"{fresh.http_url}/v1/groups/missing")
        assert (refused.status_code, refused.json()["error"]["field"]) == (404, "group")
        assert httpx.delete(f"{fresh.http_url}/v1/groups/missing").status_code == 404
        topics = httpx.get(f"{fresh.http_url}/v1/topics?internal=true").json()["topics"]
        assert topics == []  # reading creates no topic


@pytest.mark.parametrize("name", [".", "..", "~.", "~~..", "~", "..."])
def test_a_group_whose_name_is_dots_is_named_with_a_tilde(
    http: httpx.Client, unique: Callable[[str], str], name: str
) -> None:
    """A client that follows the URL standard takes the segments . and .. out of a path."""
    topic = unique("dots")
    http.post("/v1/topics", json={"name": topic}).raise_for_status()
    segment = f"~{name}" if name.strip("~") in (".", "..") else name
    http.post(f"/v1/groups/{segment}/offsets", json={"topic": topic, "to": 0}).raise_for_status()
    assert http.get(f"/v1/groups/{segment}").json()["group"] == name
    assert name in [one["group"] for one in http.get("/v1/groups").json()["groups"]]
    http.delete(f"/v1/groups/{segment}").raise_for_status()
