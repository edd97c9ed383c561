"""Heartbeats over HTTP, the limits of cliques, and what people see of them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException

from penstock import Broker
from penstock.config import Limits
from penstock.ring import SLOTS, HeartbeatStatus
from penstock.ring.names import NAME_CHARS_MAX
from penstock.ring.slots import BITMAP_BYTES
from tests.kafka.clients.queues import configure, take
from tests.kafka.clients.queues import worker as share_consumer
from tests.node.status.status_events import TOPIC, events_until, told
from tests.web.clique_members import CliqueMember, errors, heartbeat_until, keys_of, publish_keys, settled
from tests.web.test_metrics_of_queues import samples

Unique = Callable[[str], str]


@pytest.fixture
def stream(http: httpx.Client, unique: Unique) -> str:
    name = unique("orders")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    return name


@pytest.fixture
def clique(unique: Unique) -> str:
    return unique("pricing")


@contextmanager
def limited(**limits: int) -> Iterator[httpx.Client]:
    with (
        Broker(limits=Limits(**limits)) as broker,
        httpx.Client(base_url=broker.http_url, timeout=30) as http,
    ):
        http.post("/v1/topics", json={"name": "orders"}).raise_for_status()
        yield http


# --- heartbeats


def test_the_first_heartbeat_introduces_a_worker_and_the_second_makes_it_a_member(
    http: httpx.Client, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream)
    assert one.heartbeat().status is HeartbeatStatus.INTRODUCED
    reply = one.heartbeat()
    assert reply.status is HeartbeatStatus.OK
    assert reply.table is not None
    assert reply.table.workers == ("one",)
    assert len(one.core.held) == SLOTS
    assert one.heartbeat().table is None, "it knows the newest one"


def test_settings_that_were_made_before_the_clique_stay(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    configure(broker.bootstrap_servers, clique, share_delivery_count_limit="9")
    one = CliqueMember(http, clique, "one", stream).join()
    with one.working(broker.http_url) as worker:
        worker.hear("working")
        settings = http.get(f"/v1/queues/{clique}").json()["settings"]
    assert (settings["order"], settings["delivery_limit"]) == ("owner", 9)


def test_a_clique_cannot_have_the_name_of_a_queue_whose_order_was_chosen(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    configure(broker.bootstrap_servers, clique, penstock_queue_order="key")
    refused = CliqueMember(http, clique, "one", stream).send()
    assert refused.status_code == 409
    assert "penstock.queue.order=key" in refused.json()["error"]["message"]


def test_a_reply_without_news_is_held_back_until_there_are_some(
    http: httpx.Client, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    replies: list[Any] = []
    waiting = threading.Thread(target=lambda: replies.append(one.heartbeat(wait_ms=30_000)))
    waiting.start()
    CliqueMember(http, clique, "two", stream).join()
    waiting.join(30)
    assert replies[0].table is not None
    assert replies[0].table.workers == ("one", "two")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"member_id": ""}, "member_id"),
        ({"member_id": "x" * 65}, "member_id"),
        ({"sequence": 0}, "sequence"),
        ({"epoch": -1}, "epoch"),
        ({"lease_ms": 499}, "lease_ms"),
        ({"lease_ms": 600_001}, "lease_ms"),
        ({"held": "!"}, "held"),
        ({"held": "A" * 4 * (BITMAP_BYTES // 3 + 1)}, "held"),
        ({"streams": ["no spaces"]}, "streams[0]"),
        ({"streams": ["s"] * 65}, "streams"),
        ({"wait_ms": 30_001}, "wait_ms"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_heartbeat_that_no_worker_sends_is_refused_with_its_field(
    http: httpx.Client, clique: str, stream: str, changes: dict[str, Any], field: str
) -> None:
    refused = CliqueMember(http, clique, "one", stream).send(**changes)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["field"] == field


def test_a_bitmap_of_another_size_is_refused(http: httpx.Client, clique: str, stream: str) -> None:
    refused = CliqueMember(http, clique, "one", stream).send(held="AAAA")
    assert refused.status_code == 400
    assert "bitmap" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "name", ["x" * (NAME_CHARS_MAX + 1), "a%20b", ".a", "a.", "a..b", "a%0A", "caf%C3%A9"]
)
def test_names_that_the_client_refuses_are_refused_with_their_field(
    http: httpx.Client, clique: str, stream: str, name: str
) -> None:
    for member, field in (
        (CliqueMember(http, name, "one", stream), "clique"),
        (CliqueMember(http, clique, name, stream), "worker"),
        (CliqueMember(http, clique, "one", unquote(name)), "streams[0]"),
    ):
        refused = member.send()
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert error["field"] == field
        expected = "1 to 200 of a-z" if len(name) <= NAME_CHARS_MAX else "at most 200 characters"
        assert expected in error["message"]
    assert http.get(f"/v1/queues/{name}").status_code in (400, 404), "no queue was created"


def test_a_clique_cannot_have_the_name_of_a_consumer_group(
    http: httpx.Client, broker: Broker, unique: Unique, stream: str
) -> None:
    group = unique("readers")
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    reader.subscribe([stream])
    reader.poll(5)
    while http.get(f"/v1/groups/{group}").status_code != 200:
        reader.poll(0.1)
    refused = CliqueMember(http, group, "one", stream).send()
    reader.close()
    assert refused.status_code == 409, refused.text
    assert refused.json()["error"]["code"] == "not_a_clique"


def test_share_consumers_get_no_messages_of_a_clique(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    publish_keys(http, stream, "a")
    with (
        one.working(broker.http_url) as worker,
        share_consumer(broker.bootstrap_servers, clique, stream) as stranger,
    ):
        assert keys_of(worker.jobs(1)) == ["a"]
        publish_keys(http, stream, "b")
        assert keys_of(worker.jobs(1)) == ["b"]
        with pytest.raises(KafkaException, match="only the clique's workers get its messages"):
            take(stranger, lambda messages: False)


# --- limits


def test_a_clique_has_a_limited_number_of_members() -> None:
    with limited(max_clique_members=2) as http:
        for name in ("one", "two"):
            CliqueMember(http, "pricing", name, "orders").join()
        third = CliqueMember(http, "pricing", "three", "orders")
        third.heartbeat()
        reply = third.heartbeat()
        assert reply.status is HeartbeatStatus.FULL
        assert reply.retry_ms > 0


def test_a_coordinator_has_a_limited_number_of_cliques() -> None:
    with limited(max_cliques=1) as http:
        statuses = set()
        for number in range(20):
            member = CliqueMember(http, f"clique-{number}", "one", "orders")
            member.send()
            response = member.send(epoch=1)
            statuses.add(response.status_code)
            if response.status_code == 400:
                assert "limits.max_cliques" in response.json()["error"]["message"]
                return
        raise AssertionError(f"20 cliques on 8 partitions, one each: {statuses}")


def test_a_worker_has_a_limited_number_of_streams() -> None:
    with limited(max_clique_streams=1) as http:
        refused = CliqueMember(http, "pricing", "one", "orders", "payments").send()
        assert refused.status_code == 400
        assert "at most 1" in refused.json()["error"]["message"]


# --- people


def test_a_clique_is_listed_and_described(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one, two = (CliqueMember(http, clique, name, stream).join() for name in ("one", "two"))
    settled(one, two)
    publish_keys(http, stream, *one.keys(3), *two.keys(4))
    with one.working(broker.http_url) as worker:
        worker.jobs(3)
        facts = http.get(f"/v1/cliques/{clique}").json()
    [row] = [row for row in http.get("/v1/cliques").json()["cliques"] if row["clique"] == clique]
    assert (row["members"], row["handovers"], row["epoch"]) == (2, 0, one.epoch)
    assert (facts["epoch"], facts["slots"], facts["handovers"]) == (one.epoch, SLOTS, 0)
    first, second = facts["members"]
    assert (first["worker"], first["slots"], first["share"]) == ("one", SLOTS // 2, 0.5)
    assert (first["in_flight"], second["in_flight"]) == ({stream: 3}, {})
    assert first["member_id"] == one.core.member_id
    assert 0 < first["lease_left_ms"] <= first["lease_ms"]
    [described] = facts["streams"]
    assert (described["stream"], described["undone"], described["leased"]) == (stream, 7, 3)
    assert (described["dead_letter_topic"], described["dead_letters"]) == (f"{stream}.dlq", 0)


def test_messages_wait_before_a_worker_has_asked_for_them(
    http: httpx.Client, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    settled(one)
    publish_keys(http, stream, *one.keys(3))
    [described] = http.get(f"/v1/cliques/{clique}").json()["streams"]
    assert (described["undone"], described["available"]) == (3, 3)
    assert (described["leased"], described["deferred"]) == (0, 0)


def test_handovers_under_way_are_shown(http: httpx.Client, clique: str, stream: str) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    CliqueMember(http, clique, "two", stream).join()
    facts = http.get(f"/v1/cliques/{clique}").json()
    assert facts["handovers"] == facts["members"][0]["revoking"] == SLOTS // 2
    assert [row["slots"] for row in facts["members"]] == [SLOTS, 0]
    assert one.core.is_member


def test_a_clique_that_does_not_exist_is_not_found(http: httpx.Client, unique: Unique) -> None:
    response = http.get(f"/v1/cliques/{unique('nobody')}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_clique"


def test_workers_that_come_and_go_are_counted_and_told() -> None:
    with (
        Broker(status_topic=TOPIC) as broker,
        httpx.Client(base_url=broker.http_url, timeout=30) as http,
    ):
        http.post("/v1/topics", json={"name": "orders"}).raise_for_status()
        one = CliqueMember(http, "pricing", "one", "orders").join()
        two = CliqueMember(http, "pricing", "two", "orders").join()
        settled(one, two)
        two.leave()
        brief = CliqueMember(http, "pricing", "brief", "orders", lease_ms=500).join()
        heartbeat_until(one, lambda member: len(member.core.held) == SLOTS and member.epoch > brief.epoch)
        publish_keys(http, "orders", "a")
        with one.working(broker.http_url) as worker:
            job = worker.jobs(1)
            assert set(errors(worker.settle(job, epoch=1))) == {"fenced"}
            found = samples(broker)
        events = events_until(
            broker.bootstrap_servers, lambda seen: bool(told(seen, "clique.worker_expired"))
        )

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("penstock_cliques") == 1
    assert value("penstock_clique_members", clique="pricing") == 1
    assert value("penstock_clique_revoked_slots", clique="pricing") == 0
    for event, times in (("joined", 3), ("left", 1), ("expired", 1)):
        assert value("penstock_clique_member_changes_total", event=event) == times
    assert value("penstock_clique_handovers_total") >= SLOTS
    assert value("penstock_clique_fenced_total") == 1
    [gone] = told(events, "clique.worker_expired")
    assert (gone["clique"], gone["worker"]) == ("pricing", "brief")
    [left] = told(events, "clique.worker_left")
    assert left["member"] == two.claim["member_id"] or left["worker"] == "two"
    assert [each["worker"] for each in told(events, "clique.worker_joined")] == ["one", "two", "brief"]
