"""Topics over HTTP."""

import time
from collections.abc import Callable

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60


def test_a_topic_is_created_as_requested_and_kafka_clients_see_it(
    http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    name = unique("made")
    wish = {
        "name": name,
        "partitions": 3,
        "replication_factor": 1,
        "configs": {"retention.ms": 60000, "cleanup.policy": "compact", "preallocate": False},
    }
    answer = http.post("/v1/topics", json=wish)
    assert answer.status_code == 201
    assert answer.json()["partitions"] == 3
    found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(name, 10).topics[name]
    assert sorted(found.partitions) == [0, 1, 2]
    configs = http.get(f"/v1/topics/{name}").json()["configs"]
    assert configs["retention.ms"] == {"value": "60000", "inherited": False}
    assert configs["cleanup.policy"] == {"value": "compact", "inherited": False}
    assert configs["max.message.bytes"]["inherited"] is True


def test_a_topic_of_a_kafka_client_is_listed_and_described(
    http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    name = unique("theirs")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    http.post(f"/v1/topics/{name}/records", json={"records": [{"value": 1, "partition": 1}]})
    [row] = [row for row in http.get("/v1/topics").json()["topics"] if row["name"] == name]
    assert (row["partitions"], row["replication_factor"], row["internal"]) == (2, 1, False)
    described = http.get(f"/v1/topics/{name}").json()
    assert described["topic_id"] == row["topic_id"]
    first, second = described["partitions"]
    assert first == {
        "partition": 0,
        "leader": 1,
        "leader_address": broker.bootstrap_servers,
        "leader_epoch": first["leader_epoch"],
        "replicas": [1],
        "in_sync": [1],
        "earliest_offset": 0,
        "latest_offset": 0,
    }
    assert (second["earliest_offset"], second["latest_offset"]) == (0, 1)


def test_internal_topics_are_listed_only_when_asked_for(http: httpx.Client, unique: Unique) -> None:
    name = unique("plain")
    http.post("/v1/topics", json={"name": name})
    http.post(f"/v1/groups/{unique('group')}/offsets", json={"topic": name, "to": "latest"})
    usual = {row["name"] for row in http.get("/v1/topics").json()["topics"]}
    every = {row["name"]: row["internal"] for row in http.get("/v1/topics?internal=true").json()["topics"]}
    assert "__consumer_offsets" not in usual
    assert every["__consumer_offsets"] is True


def test_the_brokers_own_logs_are_listed_with_the_internal_topics() -> None:
    with (
        Broker(status_topic="penstock.status") as broker,
        httpx.Client(base_url=broker.http_url, timeout=60) as http,
    ):
        http.post("/v1/topics", json={"name": "orders"}).raise_for_status()

        def names(query: str) -> set[str]:
            return {row["name"] for row in http.get(f"/v1/topics{query}").json()["topics"]}

        deadline = time.monotonic() + PATIENCE_SECONDS
        while "penstock.status" not in names("?internal=true"):
            assert time.monotonic() < deadline
        assert names("") == {"orders"}
        assert http.get("/v1/cluster/summary").json()["topics"] == 1


def test_configs_are_set_and_unset_and_the_others_stay(http: httpx.Client, unique: Unique) -> None:
    name = unique("altered")
    http.post("/v1/topics", json={"name": name, "configs": {"retention.ms": 1000, "segment.ms": 2000}})
    changes = {"set": {"max.message.bytes": 5000}, "unset": ["retention.ms"]}
    answer = http.patch(f"/v1/topics/{name}/configs", json=changes)
    assert answer.status_code == 200
    configs = answer.json()["configs"]
    assert configs["max.message.bytes"] == {"value": "5000", "inherited": False}
    assert configs["segment.ms"] == {"value": "2000", "inherited": False}
    assert configs["retention.ms"]["inherited"] is True


def test_a_topic_gets_more_partitions_and_never_fewer(http: httpx.Client, unique: Unique) -> None:
    name = unique("growing")
    http.post("/v1/topics", json={"name": name, "partitions": 2})
    answer = http.post(f"/v1/topics/{name}/partitions", json={"count": 4})
    assert (answer.status_code, answer.json()) == (200, {"name": name, "partitions": 4})
    assert len(http.get(f"/v1/topics/{name}").json()["partitions"]) == 4
    refused = http.post(f"/v1/topics/{name}/partitions", json={"count": 3})
    assert refused.status_code == 400
    assert refused.json()["error"]["field"] == "count"


def test_a_deleted_topic_is_404(http: httpx.Client, unique: Unique) -> None:
    name = unique("short-lived")
    http.post("/v1/topics", json={"name": name})
    gone = http.delete(f"/v1/topics/{name}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert http.get(f"/v1/topics/{name}").status_code == 404
    assert http.delete(f"/v1/topics/{name}").status_code == 404


def test_a_name_that_is_taken_is_409(http: httpx.Client, unique: Unique) -> None:
    name = unique("taken")
    http.post("/v1/topics", json={"name": name})
    refused = http.post("/v1/topics", json={"name": name})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "topic_already_exists"


@pytest.mark.parametrize(
    ("wish", "code", "field"),
    [
        ({}, "invalid_field", "name"),
        ({"name": "a/b"}, "invalid_field", "name"),
        ({"name": ".."}, "invalid_topic_exception", "name"),
        ({"name": "__consumer_offsets"}, "invalid_topic_exception", "name"),
        ({"name": "x" * 250}, "invalid_field", "name"),
        ({"name": "fine", "partitions": 0}, "invalid_field", "partitions"),
        ({"name": "fine", "partitions": 10**6}, "invalid_partitions", "partitions"),
        ({"name": "fine", "partitions": "3"}, "invalid_field", "partitions"),
        ({"name": "fine", "replication_factor": 9}, "invalid_replication_factor", "replication_factor"),
        ({"name": "fine", "configs": {"retention.mss": 1}}, "invalid_field", "configs"),
        ({"name": "fine", "configs": {"retention.ms": "soon"}}, "invalid_config", "configs"),
        ({"name": "fine", "configs": {"retention.ms": []}}, "invalid_field", "configs[...]"),
        ({"name": "fine", "replicas": 1}, "invalid_field", "replicas"),
        ([], "invalid_body", None),
    ],
    ids=str,
)
def test_an_invalid_request_names_the_field_and_creates_nothing(
    http: httpx.Client, wish: object, code: str, field: str | None
) -> None:
    refused = http.post("/v1/topics", json=wish)
    assert refused.status_code == 400
    said = refused.json()["error"]
    assert (said["code"], said["field"]) == (code, field)
    assert said["message"]
    assert "fine" not in {row["name"] for row in http.get("/v1/topics").json()["topics"]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/topics/nowhere", None),
        ("DELETE", "/v1/topics/nowhere", None),
        ("PATCH", "/v1/topics/nowhere/configs", {"set": {"retention.ms": 1}}),
        ("POST", "/v1/topics/nowhere/partitions", {"count": 3}),
        ("GET", "/v1/topics/nowhere/partitions/0/records", None),
    ],
)
def test_a_missing_topic_is_404(
    http: httpx.Client, method: str, path: str, body: dict[str, object] | None
) -> None:
    refused = http.request(method, path, json=body)
    assert refused.status_code == 404
    said = refused.json()["error"]
    assert (said["code"], said["field"]) == ("unknown_topic_or_partition", "topic")


def test_internal_topics_cannot_be_changed(http: httpx.Client, unique: Unique) -> None:
    http.post("/v1/topics", json={"name": (name := unique("plain"))})
    http.post(f"/v1/groups/{unique('group')}/offsets", json={"topic": name, "to": "latest"})
    offsets = "/v1/topics/__consumer_offsets"
    for refused in (
        http.delete(offsets),
        http.post(f"{offsets}/partitions", json={"count": 1000}),
        http.post(f"{offsets}/records", json={"records": [{"value": 1}]}),
    ):
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "invalid_topic_exception"


@pytest.mark.parametrize(
    "query", ["internal=yes", "internal=1", "internal=", "intern=true", "internal=true&internal=true"]
)
def test_an_unknown_query_parameter_is_refused(http: httpx.Client, query: str) -> None:
    refused = http.get(f"/v1/topics?{query}")
    assert refused.status_code == 400
    assert refused.json()["error"]["field"] == query.partition("=")[0]


def test_a_wrong_method_is_answered_with_the_allowed_ones(http: httpx.Client) -> None:
    refused = http.put("/v1/topics/orders")
    assert refused.status_code == 405
    assert set(refused.headers["allow"].replace(" ", "").split(",")) == {"GET", "HEAD", "DELETE"}
    assert refused.json()["error"]["code"] == "method_not_allowed"


def test_an_unknown_config_cannot_be_unset(http: httpx.Client, unique: Unique) -> None:
    topic = unique("orders")
    http.post("/v1/topics", json={"name": topic}).raise_for_status()
    changes = {"set": {"retention.ms": 1_000}, "unset": ["retention.msx"]}
    answer = http.patch(f"/v1/topics/{topic}/configs", json=changes)
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (400, "unset")
    assert error["message"] == "unknown config retention.msx; did you mean retention.ms?"
    assert http.get(f"/v1/topics/{topic}").json()["configs"]["retention.ms"]["inherited"], (
        "and nothing changed"
    )
