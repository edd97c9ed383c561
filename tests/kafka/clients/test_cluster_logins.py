"""Three nodes that require login: users and rules hold on all of them, and callers keep their names between nodes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.types import Caller, Operation
from penstock.types import ResourceType as Kind
from tests.kafka.trio import Trio

PATIENCE_SECONDS = 60.0
PASSWORDS = {"admin": "admin-password", "alice": "alice-password"}
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with Trio(users=PASSWORDS) as running:
        running.eventually(
            lambda: all("alice" in running.node(one).metadata.state.access.users for one in (1, 2, 3))
        )
        yield running


def settings(trio: Trio, user: str, password: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": trio.bootstrap_servers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password or PASSWORDS[user],
        "log_level": 0,
        **more,
    }


@pytest.fixture(scope="module")
def admin(trio: Trio) -> AdminClient:
    return AdminClient(settings(trio, "admin"))


def rule(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    allow = AclPermissionType.ALLOW
    return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, allow)


def test_the_first_users_are_made_by_one_node_and_shown_once(trio: Trio) -> None:
    assert trio.first_users == ["admin"]
    secrets = {trio.node(one).metadata.state.access.login_secret for one in (1, 2, 3)}
    assert len(secrets) == 1
    assert secrets != {b""}


def test_a_user_made_through_one_node_logs_in_on_every_node(
    trio: Trio, admin: AdminClient, unique: Unique
) -> None:
    user = unique("user")
    secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, secret, b"secret")])
    made[user].result(PATIENCE_SECONDS)
    for node_id in (1, 2, 3):
        trio.eventually(lambda one=node_id: user in trio.node(one).metadata.state.access.users)
        client = AdminClient(
            settings(trio, user, "secret", **{"bootstrap.servers": "{}:{}".format(*trio.address(node_id))})
        )
        assert len(client.list_topics(timeout=PATIENCE_SECONDS).brokers) == 3


def test_rules_hold_on_all_leaders_and_coordinators(trio: Trio, admin: AdminClient, unique: Unique) -> None:
    topic, group = unique("topic"), unique("group")
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(PATIENCE_SECONDS)
    rules = [
        rule(ResourceType.TOPIC, topic, AclOperation.WRITE),
        rule(ResourceType.TOPIC, topic, AclOperation.READ),
        rule(ResourceType.GROUP, group, AclOperation.READ),
    ]
    for created in admin.create_acls(rules).values():
        created.result(PATIENCE_SECONDS)
    caller = Caller("User:alice")
    for node_id in (1, 2, 3):
        trio.eventually(
            lambda one=node_id: trio.node(one).access.allows(caller, Operation.READ, Kind.GROUP, group)
        )
    failed: list[KafkaError] = []
    producer = Producer(settings(trio, "alice"))
    for partition in range(3):
        producer.produce(
            topic,
            b"...",
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failed == []
    consumer = Consumer(settings(trio, "alice", **{"group.id": group, "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    assert len(consumer.consume(3, PATIENCE_SECONDS)) == 3
    consumer.close()
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:alice",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert len(admin.delete_acls([everything])[everything].result(PATIENCE_SECONDS)) == 3
    for node_id in (1, 2, 3):
        trio.eventually(
            lambda one=node_id: not trio.node(one).access.allows(caller, Operation.READ, Kind.GROUP, group)
        )


def test_a_request_that_is_forwarded_to_the_controller_keeps_its_caller(trio: Trio, unique: Unique) -> None:
    """If it lost its caller on the way, the controller would take it for one of its own."""
    for node_id in (1, 2, 3):
        client = AdminClient(
            settings(trio, "alice", **{"bootstrap.servers": "{}:{}".format(*trio.address(node_id))})
        )
        topic = unique("topic")
        with pytest.raises(KafkaException) as refused:
            client.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_SECONDS)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
