"""A caller without permissions learns of a node where its HTTP port is, and nothing else of its configs."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock import Broker

PASSWORDS = {"admin": "admin-password-1", "alice": "alice-password-1"}


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users=PASSWORDS) as broker:
        yield broker


def admin(broker: Broker, user: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }
    )


def configs(broker: Broker, user: str, kind: ResourceType, name: str) -> dict[str, str | None]:
    client = admin(broker, user)  # held: its requests die with it
    [future] = client.describe_configs([ConfigResource(kind, name)]).values()
    return {key: entry.value for key, entry in future.result(30).items()}


def test_everybody_who_logs_in_finds_the_http_port(secured: Broker) -> None:
    assert configs(secured, "alice", ResourceType.BROKER, "1") == {"penstock.http.url": secured.http_url}
    assert len(configs(secured, "admin", ResourceType.BROKER, "1")) > 20


def test_configs_of_topics_are_refused(secured: Broker) -> None:
    with pytest.raises(KafkaException) as refused:
        configs(secured, "alice", ResourceType.TOPIC, "orders")
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
