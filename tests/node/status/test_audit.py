"""The audit log: who did what to which resource from where."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock import Broker
from penstock.kafka.handlers.registry import _TABLE
from penstock.node.access import logins
from penstock.node.status import audit as audit_log
from penstock.node.status.audit import MAX_CALLERS, MAX_EVENTS, MAX_SAMPLED, WINDOW_SECONDS, Audit, AuditSplit
from penstock.types import BROKER_PRINCIPAL, NO_EVENTS, Caller, Operation
from penstock.types import ResourceType as Kind
from tests.kafka.quota_requests import set_quotas
from tests.kafka.raw import RawClient
from tests.kafka.requests import create
from tests.kafka.server.test_logins import PASSWORDS, log_in
from tests.kafka.trio import Trio

from .status_events import PATIENCE_SECONDS, TOPIC, Event, events_until, has, told

ALICE = Caller("User:alice", "10.0.0.1", "app")
READ, WRITE = Operation.READ, Operation.WRITE


class Recorded:
    """An EventSink, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.told: list[tuple[str, dict[str, object]]] = []

    def tell(self, kind: str, /, **facts: object) -> None:
        self.told.append((kind, {name: fact for name, fact in facts.items() if fact is not None}))

    def audit(self, data_sample_ms: int = 0) -> Audit:
        return Audit(self, lambda: self.now, data_sample_ms)


@pytest.fixture
def events() -> Recorded:
    return Recorded()


# --- limits


def test_a_refusal_names_the_caller_the_operation_and_the_resource(events: Recorded) -> None:
    events.audit().refused(ALICE, READ, Kind.TOPIC, "orders")
    facts = {"principal": "User:alice", "client": "10.0.0.1", "client_id": "app"}
    facts |= {"operation": "read", "resource": "topic", "name": "orders"}
    assert events.told == [("audit.refused", facts)]


def test_the_same_refusal_is_one_event_in_a_window_and_the_next_counts_the_others(events: Recorded) -> None:
    audit = events.audit()
    for _ in range(5):
        audit.refused(ALICE, READ, Kind.TOPIC, "orders")
    assert len(events.told) == 1
    events.now += WINDOW_SECONDS
    audit.refused(ALICE, READ, Kind.TOPIC, "orders")
    assert len(events.told) == 2
    assert events.told[-1][1]["count"] == 4


def test_a_caller_that_asks_for_many_names_causes_few_events_and_others_are_heard(events: Recorded) -> None:
    audit = events.audit()
    for number in range(1_000):
        audit.refused(ALICE, READ, Kind.TOPIC, f"topic-{number}")
    assert len(events.told) == MAX_EVENTS
    audit.refused(Caller("User:bob", "10.0.0.1"), READ, Kind.TOPIC, "orders")
    assert len(events.told) == MAX_EVENTS + 1


def test_failed_logins_of_one_address_are_limited(events: Recorded) -> None:
    audit = events.audit()
    for _ in range(100):
        audit.login_failed("10.0.0.1", "10.0.0.1:5", "kafka", "PLAIN", "wrong password")
    assert len(events.told) == 1


def test_the_callers_that_are_remembered_are_bounded(events: Recorded) -> None:
    audit = events.audit()
    for number in range(MAX_CALLERS + 10):
        audit.refused(Caller("User:alice", f"host-{number}"), READ, Kind.TOPIC, "orders")
    assert len(audit._limit._windows) == MAX_CALLERS


def test_data_operations_are_reported_once_in_their_interval(events: Recorded) -> None:
    audit = events.audit(data_sample_ms=5_000)
    assert audit.samples
    for _ in range(3):
        audit.used(ALICE, WRITE, Kind.TOPIC, "orders")
        audit.used(ALICE, READ, Kind.TOPIC, "orders")
    assert [facts["operation"] for _, facts in events.told] == ["write", "read"]
    events.now += 5
    audit.used(ALICE, WRITE, Kind.TOPIC, "orders")
    assert len(events.told) == 3


def test_the_samples_that_are_remembered_are_bounded(
    events: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_SAMPLED > 10
    monkeypatch.setattr(audit_log, "MAX_SAMPLED", 10)
    audit = events.audit(data_sample_ms=5_000)
    for number in range(20):
        audit.used(ALICE, WRITE, Kind.TOPIC, f"topic-{number}")
    assert len(audit._sampled) == 10


def test_nodes_of_the_cluster_are_not_audited(events: Recorded) -> None:
    audit = events.audit(data_sample_ms=1)
    audit.changed(Caller(BROKER_PRINCIPAL), "CREATE_TOPICS", "topic", "orders", None)
    audit.used(Caller(BROKER_PRINCIPAL), WRITE, Kind.TOPIC, "orders")
    assert events.told == []


def test_a_password_that_an_operator_resets_is_audited(events: Recorded) -> None:
    events.audit().password_reset("admin")
    [(kind, facts)] = events.told
    assert (kind, facts["operation"], facts["resource"], facts["name"]) == (
        "audit.changed",
        "reset_password",
        "user",
        "admin",
    )


def test_without_a_status_log_nothing_is_measured() -> None:
    audit = Audit(NO_EVENTS, lambda: 0.0, 5)
    assert not audit.is_on
    assert not audit.samples


def test_audit_events_go_to_a_log_of_their_own_if_there_is_one() -> None:
    status, audit = Recorded(), Recorded()
    both = AuditSplit(status, audit)
    both.tell("audit.login", principal="User:alice")
    both.tell("topic.created", topic="orders")
    assert [kind for kind, _ in audit.told] == ["audit.login"]
    assert [kind for kind, _ in status.told] == ["topic.created"]


def test_every_kafka_api_that_changes_something_says_where_its_results_are() -> None:
    changes = {Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS}
    moves_nothing = {"ALTER_REPLICA_LOG_DIRS"}
    silent = {
        key.name
        for key, row in _TABLE.items()
        if changes & {row.on_topic, row.on_group, row.on_cluster} and row.results is None
    }
    assert silent == moves_nothing


# --- a broker


def login(user: str, password: str | None = None) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password or PASSWORDS[user],
    }


@pytest.fixture
def broker() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)
        with Broker(users=PASSWORDS, status_topic=TOPIC) as broker:
            yield broker


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, **login("admin")})


def audited(broker: Broker, enough: Callable[[list[Event]], bool]) -> list[Event]:
    return events_until(broker.bootstrap_servers, enough, settings=login("admin"))


def done(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(PATIENCE_SECONDS)


def test_logins_that_succeed_and_fail_are_events(broker: Broker) -> None:
    with RawClient(broker) as client:
        log_in(client, "alice")
    stranger = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **login("alice", "not-the-one")})
    with pytest.raises(KafkaException):
        stranger.list_topics(timeout=2)
    allowed = has("audit.login", principal="User:alice", outcome="allowed", mechanism="PLAIN")
    refused = has("audit.login", outcome="refused", mechanism="SCRAM-SHA-256", protocol="kafka")
    found = audited(broker, lambda events: allowed(events) and refused(events))
    assert "not-the-one" not in json.dumps(found)


def test_refusals_are_events_over_kafka_and_the_reason_is_named(broker: Broker, admin: AdminClient) -> None:
    done(admin.create_topics([NewTopic("orders", 1, 1)]))
    alice = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **login("alice")})
    with pytest.raises(KafkaException):
        done(alice.delete_topics(["orders"]))
    refused = {"operation": "delete", "resource": "topic", "name": "orders", "client": "127.0.0.1"}
    audited(broker, has("audit.refused", principal="User:alice", **refused))


def test_changes_over_kafka_are_events_with_their_outcome_and_without_secrets(
    broker: Broker, admin: AdminClient
) -> None:
    done(admin.create_topics([NewTopic("orders", 1, 1)]))
    with pytest.raises(KafkaException):
        done(admin.create_topics([NewTopic("orders", 1, 1)]))
    longer = ConfigEntry("retention.ms", "987654321", incremental_operation=AlterConfigOpType.SET)
    orders = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[longer])
    done(admin.incremental_alter_configs([orders]))
    rule = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    done(admin.create_acls([rule]))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    done(
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", info, b"carols-password")])
    )
    with RawClient(broker) as client:
        log_in(client)
        set_quotas(client, {"user": "carol"}, producer_byte_rate=1000)
    done(admin.delete_topics(["orders"]))
    found = audited(broker, has("audit.changed", operation="delete_topics", name="orders"))
    changes = [event for event in found if event["kind"] == "audit.changed"]
    assert [(one["operation"], one["resource"], one["name"], one["outcome"]) for one in changes] == [
        ("create_topics", "topic", "orders", "allowed"),
        ("create_topics", "topic", "orders", "failed"),
        ("incremental_alter_configs", "topic", "orders", "allowed"),
        ("create_acls", "cluster", "allow User:alice read topic orders", "allowed"),
        ("alter_user_scram_credentials", "user", "carol", "allowed"),
        ("alter_client_quotas", "cluster", "user carol", "allowed"),
        ("delete_topics", "topic", "orders", "allowed"),
    ]
    assert changes[1]["reason"] == "topic_already_exists"
    assert {one["principal"] for one in changes} == {"User:admin"}
    assert {one["client"] for one in changes} == {"127.0.0.1"}
    text = json.dumps([event for event in found if event["kind"].startswith("audit.")])
    assert "carols-password" not in text
    assert "987654321" not in text
    assert not any(password in json.dumps(found) for password in PASSWORDS.values())


# --- several nodes


def test_a_change_that_is_forwarded_is_one_event_of_its_client() -> None:
    settings = {"audit_topic": "audits", "audit_data_sample_ms": 3_600_000}
    with Trio(status_topic=TOPIC, settings=settings) as trio:
        controller = trio.controller()
        other = next(one for one in trio.running if one != controller)
        with trio.client(other) as client:
            create(client, "orders")
        servers = trio.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "client.id": "writer"})
        for _ in range(3):
            producer.produce("orders", b"v")
            assert producer.flush(PATIENCE_SECONDS) == 0
        written = has("audit.data", operation="write", name="orders", client_id="writer")
        changed = has("audit.changed", operation="create_topics", name="orders")
        # Two nodes write them, each when its turn comes.
        found = events_until(servers, lambda events: written(events) and changed(events), topic="audits")
        changes = told(found, "audit.changed", operation="create_topics", name="orders")
        assert [(one["node_id"], one["client"]) for one in changes] == [(controller, "127.0.0.1")]
        assert all(event["kind"].startswith("audit.") for event in found)
        status = events_until(servers, has("topic.created", topic="orders"))
        assert not any(event["kind"].startswith("audit.") for event in status)
