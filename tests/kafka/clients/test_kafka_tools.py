"""Kafka's own tools manage access rules, passwords and quotas: `kafka-acls` and `kafka-configs --entity-type users`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.types import Caller, Operation, ResourceType
from tests.kafka.programs.tools import ACLS, CONFIGS, Done, run_tool
from tests.secured import PASSWORDS, PATIENCE_SECONDS, SecuredNode, secured_node

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

Tool = Callable[..., Done]
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def tool(node: SecuredNode, tmp_path: Path) -> Tool:
    def run(main: str, *arguments: str, **login: str) -> Done:
        return run_tool(node, tmp_path, main, *arguments, **login)

    return run


def worked(done: Done) -> str:
    assert done.code == 0, done.output
    return done.output


def may(node: SecuredNode, user: str, operation: Operation, topic: str, host: str = "127.0.0.1") -> bool:
    access = node.thread.service.node.access
    return access.allows(Caller(f"User:{user}", host=host), operation, ResourceType.TOPIC, topic)


# --- kafka-acls


def test_kafka_acls_adds_lists_and_removes_rules(node: SecuredNode, tool: Tool, unique: Unique) -> None:
    topic = unique("orders")
    rule = ("--allow-principal", "User:alice", "--operation", "Write", "--topic", topic)
    worked(tool(ACLS, "--add", *rule))
    assert may(node, "alice", Operation.WRITE, topic)
    listed = worked(tool(ACLS, "--list", "--topic", topic))
    assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in listed
    worked(tool(ACLS, "--remove", "--force", *rule))
    assert not may(node, "alice", Operation.WRITE, topic)


def test_kafka_acls_knows_prefixes_hosts_and_denials(node: SecuredNode, tool: Tool, unique: Unique) -> None:
    prefix = unique("orders")
    everything = ("--topic", prefix, "--resource-pattern-type", "prefixed")
    worked(tool(ACLS, "--add", "--allow-principal", "User:alice", "--allow-host", "10.0.0.1", *everything))
    worked(tool(ACLS, "--add", "--deny-principal", "User:alice", "--topic", f"{prefix}-secret"))
    assert may(node, "alice", Operation.READ, f"{prefix}-eu", host="10.0.0.1")
    assert not may(node, "alice", Operation.READ, f"{prefix}-eu", host="10.0.0.2")
    assert not may(node, "alice", Operation.READ, f"{prefix}-secret", host="10.0.0.1")
    matching = worked(tool(ACLS, "--list", "--topic", f"{prefix}-secret", "--resource-pattern-type", "match"))
    assert "permissionType=ALLOW" in matching
    assert "permissionType=DENY" in matching


def test_the_shortcuts_of_kafka_acls_give_what_producers_and_consumers_need(
    node: SecuredNode, tool: Tool, unique: Unique
) -> None:
    topic, group = unique("orders"), unique("billing")
    worked(tool(ACLS, "--add", "--allow-principal", "User:alice", "--producer", "--topic", topic))
    consumer = ("--consumer", "--topic", topic, "--group", group)
    worked(tool(ACLS, "--add", "--allow-principal", "User:bob", *consumer))
    assert [may(node, "alice", one, topic) for one in (Operation.WRITE, Operation.CREATE)] == [True, True]
    assert [may(node, "bob", one, topic) for one in (Operation.READ, Operation.WRITE)] == [True, False]


def test_kafka_acls_is_refused_for_a_user_without_the_right(tool: Tool) -> None:
    rule = ("--allow-principal", "User:bob", "--operation", "Write", "--topic", "orders")
    for arguments in (("--add", *rule), ("--list",)):
        done = tool(ACLS, *arguments, user="bob")
        assert "ClusterAuthorizationException" in done.output


# --- kafka-configs --entity-type users


def can_log_in(node: SecuredNode, user: str, password: str, mechanism: str) -> bool:
    client = AdminClient(
        {
            "bootstrap.servers": node.address("plain"),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }
    )
    try:
        client.list_topics(timeout=PATIENCE_SECONDS)
    except KafkaException:
        return False
    return True


def of_user(user: str) -> tuple[str, ...]:
    return "--entity-type", "users", "--entity-name", user


def test_kafka_configs_makes_shows_and_deletes_the_passwords_of_a_user(
    node: SecuredNode, tool: Tool, unique: Unique
) -> None:
    user = unique("carol")
    both = "SCRAM-SHA-256=[iterations=8192,password=first-password],SCRAM-SHA-512=[password=second-password]"
    worked(tool(CONFIGS, "--alter", "--add-config", both, *of_user(user)))
    assert can_log_in(node, user, "first-password", "SCRAM-SHA-256")
    assert can_log_in(node, user, "second-password", "SCRAM-SHA-512")
    shown = worked(tool(CONFIGS, "--describe", *of_user(user)))
    assert "SCRAM-SHA-256=iterations=8192" in shown
    assert "SCRAM-SHA-512=iterations=4096" in shown
    assert "-password" not in shown
    worked(tool(CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-256", *of_user(user)))
    assert "SCRAM-SHA-256" not in worked(tool(CONFIGS, "--describe", *of_user(user)))
    assert can_log_in(node, user, "second-password", "SCRAM-SHA-512")


def test_kafka_configs_sets_shows_and_removes_the_quotas_of_a_user(tool: Tool, unique: Unique) -> None:
    user = unique("dave")
    worked(tool(CONFIGS, "--alter", "--add-config", "producer_byte_rate=1000", *of_user(user)))
    assert "producer_byte_rate=1000" in worked(tool(CONFIGS, "--describe", *of_user(user)))
    worked(tool(CONFIGS, "--alter", "--delete-config", "producer_byte_rate", *of_user(user)))
    assert "producer_byte_rate" not in worked(tool(CONFIGS, "--describe", *of_user(user)))


def test_kafka_configs_is_refused_for_a_user_without_the_right(node: SecuredNode, tool: Tool) -> None:
    for change in ("SCRAM-SHA-512=[password=stolen-password]", "producer_byte_rate=1"):
        done = tool(CONFIGS, "--alter", "--add-config", change, *of_user("admin"), user="bob")
        assert done.code != 0
        assert "ClusterAuthorizationException" in done.output
    assert can_log_in(node, "admin", PASSWORDS["admin"], "SCRAM-SHA-512")
