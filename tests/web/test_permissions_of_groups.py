"""Users with a permission on a group, but not on the topics of its queue or subscription."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType
from websockets.sync.client import ClientConnection, connect

from penstock import Broker
from tests.web.clique_members import CliqueMember
from tests.web.test_login import (
    PATIENCE_SECONDS,
    admin,
    allow,
    allow_reading,
    ask,
    basic,
    broker,
    forbid,
    received,
    rule,
    socket_url,
)

__all__ = ["admin", "broker"]

Unique = Callable[[str], str]


def make_queue(broker: Broker, queue: str, topic: str, **settings: object) -> None:
    """A queue with two messages."""
    body = {"queue": queue, "topic": topic, **settings}
    assert ask(broker, "/v1/queues", basic("admin"), "POST", body)[0] == 201
    records = {"records": [{"value": "a"}, {"value": "b"}]}
    assert ask(broker, f"/v1/topics/{topic}/records", basic("admin"), "POST", records)[0] == 200


def test_delete_on_the_group_is_enough_to_delete_a_queue_with_settings(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    queue = unique("queue")
    make_queue(broker, queue, unique("secret"), lease_ms=20_000)
    allow(admin, rule(ResourceType.GROUP, queue, AclOperation.DELETE, "bob"))
    answer = ask(broker, f"/v1/queues/{queue}", basic("bob"), "DELETE")
    assert answer[0] == 204, answer
    node = broker._thread.service.node
    assert node is not None
    assert queue not in node.metadata.state.group_configs, "a later queue of this name has the defaults"


def test_a_consumer_that_has_lost_read_on_the_topic_settles_no_job_that_it_holds(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    queue, topic = unique("queue"), unique("secret")
    make_queue(broker, queue, topic)
    allow_reading(admin, "bob", topic, queue)
    status, received, _ = ask(broker, f"/v1/queues/{queue}/receive", basic("bob"), "POST", {"max": 2})
    assert status == 200, received
    first, second = (job["receipt"] for job in received["jobs"])
    settle = f"/v1/queues/{queue}/settle"
    assert ask(broker, settle, basic("bob"), "POST", {"accept": [first]})[1]["settled"] == 1
    forbid(admin, "bob", ResourceType.TOPIC, topic)
    status, answer, _ = ask(broker, settle, basic("bob"), "POST", {"accept": [second]})
    assert (status, answer["settled"]) == (207, 0)
    [refused] = answer["refused"]
    assert refused["error"]["code"] == "topic_authorization_failed"
    assert topic not in refused["error"]["message"]


# --- subscriptions


@contextmanager
def subscribed(
    broker: Broker, user: str, subscription: str, topic: str, **settings: object
) -> Iterator[tuple[ClientConnection, dict[str, Any]]]:
    """The socket of a subscriber, and the broker's first frame."""
    with connect(socket_url(broker, "/v1/push"), additional_headers=basic(user)) as socket:
        frame = {"type": "subscribe", "subscription": subscription, "topics": [topic], **settings}
        socket.send(json.dumps(frame))
        yield socket, json.loads(socket.recv(PATIENCE_SECONDS))


def unsubscribe(socket: ClientConnection) -> dict[str, Any]:
    """The broker's last frame."""
    socket.send(json.dumps({"type": "unsubscribe"}))
    return [json.loads(frame) for frame in received(socket)][-1]  # type: ignore[no-any-return]


def topics_of(broker: Broker, subscription: str) -> list[str]:
    status, facts, _ = ask(broker, f"/v1/subscriptions/{subscription}", basic("admin"))
    assert status == 200, facts
    return facts["topics"]  # type: ignore[no-any-return]


@pytest.fixture
def topics(admin: AdminClient, unique: Unique) -> tuple[str, str]:
    names = unique("secret"), unique("open")
    for made in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result(PATIENCE_SECONDS)
    return names


def test_a_subscription_is_not_taken_over_without_read_on_all_of_its_topics(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    subscription, (secret, readable) = unique("sub"), topics
    allow_reading(admin, "bob", readable, subscription)
    with subscribed(broker, "admin", subscription, secret) as (owner, first):
        assert first["type"] == "subscribed"
        with subscribed(broker, "bob", subscription, readable, take_over=True) as (_, refusal):
            assert refusal.get("code") == "topic_authorization_failed", refusal
            assert secret not in refusal["message"]
        owner.send(json.dumps({"type": "ping"}))
        assert json.loads(owner.recv(PATIENCE_SECONDS)) == {"type": "pong"}, "the owner is still attached"
    assert topics_of(broker, subscription) == [secret]


def test_unsubscribe_needs_delete_on_the_group_of_a_subscription_that_existed_before(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    subscription, (_, readable) = unique("sub"), topics
    allow_reading(admin, "bob", readable, subscription)
    with subscribed(broker, "admin", subscription, readable) as (_, first):
        assert first["type"] == "subscribed"
    with subscribed(broker, "bob", subscription, readable, take_over=True) as (socket, first):
        assert first["resumed"]
        assert unsubscribe(socket).get("code") == "group_authorization_failed"
    assert topics_of(broker, subscription) == [readable]
    allow(admin, rule(ResourceType.GROUP, subscription, AclOperation.DELETE, "bob"))
    with subscribed(broker, "bob", subscription, readable, take_over=True) as (socket, _):
        assert unsubscribe(socket) == {"type": "unsubscribed"}
    assert ask(broker, f"/v1/subscriptions/{subscription}", basic("admin"))[0] == 404


def test_a_subscriber_unsubscribes_from_the_subscription_that_it_has_created(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    subscription, (_, readable) = unique("sub"), topics
    allow_reading(admin, "bob", readable, subscription)
    with subscribed(broker, "bob", subscription, readable) as (socket, first):
        assert not first["resumed"]
        assert unsubscribe(socket) == {"type": "unsubscribed"}
    assert ask(broker, f"/v1/subscriptions/{subscription}", basic("admin"))[0] == 404


# --- names of topics


def test_facts_of_a_group_leave_out_topics_that_the_caller_may_not_describe(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    name, (secret, readable) = unique("group"), topics
    make_queue(broker, name, secret)
    allow(admin, rule(ResourceType.GROUP, name, AclOperation.DESCRIBE, "bob"))
    hidden = ask(broker, f"/v1/queues/{name}", basic("bob"))[1]
    assert (hidden["queue"], hidden["partitions"]) == (name, [])
    make_queue(broker, name, readable)
    allow(admin, rule(ResourceType.TOPIC, readable, AclOperation.DESCRIBE, "bob"))
    listed = ask(broker, "/v1/queues", basic("bob"))[1]
    [row] = [row for row in listed["queues"] if row["queue"] == name]
    assert (row["topics"], row["partitions"], row["end_offset"]) == ([readable], 1, 2)
    facts = ask(broker, f"/v1/queues/{name}", basic("bob"))[1]
    assert [one["topic"] for one in facts["partitions"]] == [readable]
    scheduled = ask(broker, f"/v1/queues/{name}/scheduled", basic("bob"))[1]
    assert [one["topic"] for one in scheduled["partitions"]] == [readable]
    assert secret not in json.dumps([listed, facts, scheduled, hidden])
    [all_of_it] = [
        row for row in ask(broker, "/v1/queues", basic("admin"))[1]["queues"] if row["queue"] == name
    ]
    assert all_of_it["topics"] == sorted(topics), "others still see it"


def test_consumers_of_topics_that_the_caller_may_not_describe_are_left_out(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    queue, (secret, _) = unique("queue"), topics
    make_queue(broker, queue, secret)
    allow(admin, rule(ResourceType.GROUP, queue, AclOperation.DESCRIBE, "bob"))
    received = ask(broker, f"/v1/queues/{queue}/receive", basic("admin"), "POST", {"consumer": "one"})
    assert len(received[1]["jobs"]) == 2
    assert [one["name"] for one in ask(broker, f"/v1/queues/{queue}", basic("admin"))[1]["consumers"]]
    assert ask(broker, f"/v1/queues/{queue}", basic("bob"))[1]["consumers"] == []


def test_assignments_of_members_leave_out_topics_that_the_caller_may_not_describe(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    group, (_, readable) = unique("group"), topics
    allow(
        admin,
        rule(ResourceType.GROUP, group, AclOperation.DESCRIBE, "bob"),
        rule(ResourceType.TOPIC, readable, AclOperation.DESCRIBE, "bob"),
    )

    def assigned(user: str) -> list[str]:
        facts = ask(broker, f"/v1/groups/{group}", basic(user))[1]
        return sorted(row["topic"] for member in facts["members"] for row in member["assignment"])

    consumer = Consumer({**broker.client_settings("admin"), "group.id": group})
    try:
        consumer.subscribe(list(topics))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert assigned("admin") == sorted(topics)
        assert assigned("bob") == [readable]
    finally:
        consumer.close()


def test_facts_of_a_clique_leave_out_topics_that_the_caller_may_not_describe(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    clique, (secret, readable) = unique("clique"), topics
    allow(
        admin,
        rule(ResourceType.GROUP, clique, AclOperation.DESCRIBE, "bob"),
        rule(ResourceType.TOPIC, readable, AclOperation.DESCRIBE, "bob"),
    )
    with httpx.Client(base_url=broker.http_url, headers=basic("admin"), timeout=PATIENCE_SECONDS) as http:
        CliqueMember(http, clique, "one", *topics).join()
    facts = ask(broker, f"/v1/cliques/{clique}", basic("bob"))[1]
    assert [one["streams"] for one in facts["members"]] == [[readable]]
    assert secret not in json.dumps(facts)
    whole = ask(broker, f"/v1/cliques/{clique}", basic("admin"))[1]
    assert [sorted(one["streams"]) for one in whole["members"]] == [sorted(topics)]


REQUESTS = [
    ("GET", "peek", None),
    ("POST", "receive", {"wait_ms": 0}),
    ("POST", "purge", {}),
    ("POST", "reset", {"to": "earliest"}),
    ("POST", "reset", {"to": "earliest", "dry_run": True}),
]


@pytest.mark.parametrize(("method", "what", "body"), REQUESTS)
def test_a_refusal_names_only_topics_that_the_caller_has_named(
    broker: Broker,
    admin: AdminClient,
    unique: Unique,
    topics: tuple[str, str],
    method: str,
    what: str,
    body: Any,
) -> None:
    queue, (secret, elsewhere) = unique("queue"), topics
    make_queue(broker, queue, secret)
    allow(admin, rule(ResourceType.GROUP, queue, AclOperation.READ, "bob"))
    status, answer, _ = ask(broker, f"/v1/queues/{queue}/{what}", basic("bob"), method, body)
    assert (status, answer["error"]["code"]) == (403, "topic_authorization_failed"), answer
    assert secret not in answer["error"]["message"]

    def named(topic: str) -> str:
        """The refusal of a request that names this topic."""
        path = f"/v1/queues/{queue}/{what}" + (f"?topic={topic}" if body is None else "")
        wanted = None if body is None else {**body, "topics": [topic]}
        status, answer, _ = ask(broker, path, basic("bob"), method, wanted)
        assert status == 403, answer
        return str(answer["error"]["message"]).replace(topic, "it")

    assert named(secret) == named(elsewhere), "nor does it tell which topics the queue is on"


def test_facts_of_a_subscription_leave_out_topics_that_the_caller_may_not_describe(
    broker: Broker, admin: AdminClient, unique: Unique, topics: tuple[str, str]
) -> None:
    subscription, (secret, readable) = unique("sub"), topics
    with connect(socket_url(broker, "/v1/push"), additional_headers=basic("admin")) as socket:
        frame = {"type": "subscribe", "subscription": subscription, "topics": list(topics)}
        socket.send(json.dumps(frame))
        assert json.loads(socket.recv(PATIENCE_SECONDS))["type"] == "subscribed"
    allow(
        admin,
        rule(ResourceType.GROUP, subscription, AclOperation.DESCRIBE, "bob"),
        rule(ResourceType.TOPIC, readable, AclOperation.DESCRIBE, "bob"),
    )
    facts = ask(broker, f"/v1/subscriptions/{subscription}", basic("bob"))[1]
    assert (facts["topics"], [one["topic"] for one in facts["positions"]]) == ([readable], [readable])
    listed = ask(broker, "/v1/subscriptions", basic("bob"))[1]
    assert [row["topics"] for row in listed["subscriptions"] if row["subscription"] == subscription] == [
        [readable]
    ]
    assert secret not in json.dumps([facts, listed])
    assert topics_of(broker, subscription) == sorted(topics)
