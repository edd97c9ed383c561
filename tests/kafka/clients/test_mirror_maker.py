"""MirrorMaker 2 copies topics and group offsets from one secured Penstock to another. Each of its two users has
rights on what is copied and on MirrorMaker's own topics, and no others."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.faults.waiting import eventually
from tests.kafka.programs.builds import java
from tests.kafka.programs.tools import properties
from tests.secured import PASSWORDS, PATIENCE_SECONDS, SecuredNode, secured_node

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
COPY_SECONDS = 90
ONE_REPLICA = (
    "replication.factor",
    "offset-syncs.topic.replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "config.storage.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
)
SETTINGS = {
    "clusters": "source, target",
    "source->target.enabled": "true",
    "source->target.topics": "orders.*",
    "source->target.groups": "billing",
    "target->source.enabled": "false",
    "emit.heartbeats.enabled": "false",
    "offset-syncs.topic.location": "target",
    "sync.topic.acls.enabled": "false",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "offset.lag.max": "0",
    **dict.fromkeys(ONE_REPLICA, "1"),
}

LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, CREATE, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
)
CONFIGS = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
SOURCE_RIGHTS = (
    (TOPIC, "orders", PREFIXED, (READ, AclOperation.DESCRIBE_CONFIGS)),
    (GROUP, "billing", LITERAL, (DESCRIBE,)),
)
TARGET_RIGHTS = (
    (TOPIC, "source.", PREFIXED, (CREATE, READ, WRITE, AclOperation.ALTER, *CONFIGS)),
    (TOPIC, "mm2-", PREFIXED, (CREATE, READ, WRITE, *CONFIGS)),
    (GROUP, "source-mm2", LITERAL, (READ,)),
    (GROUP, "billing", LITERAL, (READ,)),
)
Rights = tuple[tuple[ResourceType, str, ResourcePatternType, tuple[AclOperation, ...]], ...]


def allow(node: SecuredNode, user: str, rights: Rights) -> None:
    bindings = [
        AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operations in rights
        for operation in operations
    ]
    admin = node.admin()  # in a variable: its requests end with it
    for created in admin.create_acls(bindings).values():
        created.result(PATIENCE_SECONDS)


def librdkafka(node: SecuredNode, user: str, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": node.address("plain"),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        **more,
    }


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SecuredNode]:
    """Ten records in `orders`, which the group `billing` has read; and a topic that MirrorMaker may not see."""
    with secured_node(tmp_path / "source") as node:
        admin = node.admin()
        for created in admin.create_topics([NewTopic("orders", 1), NewTopic("secrets", 1)]).values():
            created.result(PATIENCE_SECONDS)
        producer = Producer(librdkafka(node, "admin"))
        for number in range(10):
            producer.produce("orders", str(number))
        producer.produce("secrets", "hidden")
        assert producer.flush(PATIENCE_SECONDS) == 0
        commit(node, "orders", 10)
        allow(node, "alice", SOURCE_RIGHTS)
        yield node


@pytest.fixture
def target(tmp_path: Path) -> Iterator[SecuredNode]:
    with secured_node(tmp_path / "target") as node:
        allow(node, "bob", TARGET_RIGHTS)
        yield node


def commit(node: SecuredNode, topic: str, offset: int) -> None:
    member = Consumer(librdkafka(node, "admin", **{"group.id": "billing"}))
    member.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    member.close()


def committed(node: SecuredNode, topic: str) -> int:
    reader = Consumer(librdkafka(node, "admin", **{"group.id": "billing"}))
    try:
        [place] = reader.committed([TopicPartition(topic, 0)], PATIENCE_SECONDS)
    finally:
        reader.close()
    return int(place.offset)


@contextmanager
def mirror_maker(
    source: SecuredNode, target: SecuredNode, folder: Path, **changes: str
) -> Iterator[Callable[[], str]]:
    """Yields how to see the end of its log."""
    settings = SETTINGS | {name.replace("_", "."): value for name, value in changes.items()}
    for name, node, user in (("source", source, "alice"), ("target", target, "bob")):
        settings |= {f"{name}.{key}": value for key, value in properties(node, user).items()}
    file, log = folder / "mm2.properties", folder / "mm2.log"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with log.open("wb") as output:
        process = subprocess.Popen(java(MAIN, str(file), log_level="warn"), stdout=output, stderr=output)
    try:
        yield lambda: log.read_text()[-8000:]
    finally:
        process.kill()
        process.wait()


def values_of(node: SecuredNode, topic: str, count: int) -> list[str]:
    """The first `count` records, once the topic has them."""
    reader = Consumer(librdkafka(node, "admin", **{"group.id": "unused", "enable.auto.commit": False}))
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []
        deadline = time.monotonic() + COPY_SECONDS
        while len(values) < count and time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is not None and message.error() is None:
                values.append((message.value() or b"").decode())
        return values
    finally:
        reader.close()


def test_mirror_maker_copies_records_and_the_offsets_of_groups_without_rights_on_the_cluster(
    source: SecuredNode, target: SecuredNode, tmp_path: Path
) -> None:
    with mirror_maker(source, target, tmp_path) as last_lines:
        assert values_of(target, "source.orders", 10) == [str(number) for number in range(10)], last_lines()
        eventually(lambda: committed(target, "source.orders") == 10, "offsets are copied", COPY_SECONDS)
        copied = target.admin().list_topics(timeout=PATIENCE_SECONDS).topics
        assert not any("secrets" in name for name in copied)
        assert "AuthorizationException" not in last_lines()


def rules_for(node: SecuredNode, topic: str) -> set[tuple[str, AclOperation]]:
    """Who may do what with the topic."""
    wanted = AclBindingFilter(TOPIC, topic, LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY)
    admin = node.admin()
    return {(one.principal, one.operation) for one in admin.describe_acls(wanted).result(PATIENCE_SECONDS)}


def test_mirror_maker_copies_access_rules_if_it_may_read_and_change_them(
    source: SecuredNode, target: SecuredNode, tmp_path: Path
) -> None:
    source.allow("carol", TOPIC, "orders", READ)
    allow(source, "alice", ((ResourceType.BROKER, "kafka-cluster", LITERAL, (DESCRIBE,)),))
    allow(target, "bob", ((ResourceType.BROKER, "kafka-cluster", LITERAL, (AclOperation.ALTER,)),))
    changes = {"sync_topic_acls_enabled": "true", "sync_topic_acls_interval_seconds": "1"}
    with mirror_maker(source, target, tmp_path, **changes) as last_lines:
        expected = {("User:carol", READ)}
        eventually(lambda: rules_for(target, "source.orders") == expected, "rules are copied", COPY_SECONDS)
        assert "AuthorizationException" not in last_lines()
