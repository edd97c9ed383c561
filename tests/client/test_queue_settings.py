"""Queues by their names and settings: one order of arguments, every setting, and the old order as an alias."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import Broker
from penstock.client import AsyncClient, Client
from penstock.client.arguments import queue_and_topics
from penstock.client.queue_settings import CONFIGS, QueueSettings, group_configs
from penstock.config.group import GROUP_CONFIGS

SOON = 60.0
FOR_KAFKA_CLIENTS = {
    *("share.heartbeat.interval.ms", "share.isolation.level", "share.session.timeout.ms"),
    *("errors.deadletterqueue.copy.record.enable", "errors.deadletterqueue.topic.name"),
}
"""About share consumers, and dead letters as Kafka writes them: the Python client has neither. `configs=` sets them."""


def test_every_config_of_a_queue_has_a_setting() -> None:
    named = {config for config, _ in CONFIGS.values()}
    of_queues = {config for config in GROUP_CONFIGS if not config.startswith("consumer.")}
    assert named | FOR_KAFKA_CLIENTS | {"share.auto.offset.reset"} == of_queues
    assert set(CONFIGS) == set(QueueSettings.__annotations__)


def test_a_queue_is_named_first_and_a_group_after_its_topics() -> None:
    assert queue_and_topics("workers", "orders", None) == ("workers", ("orders",))
    assert queue_and_topics("workers", ["orders", "returns"], None) == ("workers", ("orders", "returns"))
    assert queue_and_topics("orders", None, None) == ("orders", ("orders",))
    assert queue_and_topics("orders", None, "workers") == ("workers", ("orders",))
    assert queue_and_topics(["orders", "returns"], None, "workers") == ("workers", ("orders", "returns"))
    with pytest.raises(TypeError, match="name the queue first"):
        queue_and_topics("orders", "orders", "workers")
    with pytest.raises(TypeError, match="topic="):
        queue_and_topics(["orders", "returns"], None, None)


def test_both_orders_reach_the_same_queue(client: Client, unique: Callable[[str], str]) -> None:
    name, topic = unique("workers"), unique("orders")
    assert client.admin.create_queue(name, topic=topic)
    client.publish(topic, b"1")
    client.publish(topic, b"2")
    with client.queue(name, topic=topic, prefetch=1) as queue:
        first = queue.receive(SOON)
        assert first is not None
        first.ack()
    with client.queue(topic, group=name, prefetch=1) as queue:
        second = queue.receive(SOON)
        assert second is not None
        assert (first.value, second.value) == (b"1", b"2")


def test_settings_become_group_configs(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("workers")
    settings: QueueSettings = {
        "lease": 60,
        "max_deliveries": 7,
        "key_ordered": True,
        "exclusive": True,
        "dead_letters": False,
        "dead_letter_topic": "failed",
        "backoff": 0.5,
        "backoff_factor": 3.0,
        "max_backoff": 120,
        "max_leased": 10,
    }
    assert set(settings) == set(CONFIGS)
    client.admin.create_queue(name, topic=name, partitions=3, **settings)
    stored = client.admin.queue_configs(name)
    assert {config: stored[config] for config in group_configs(settings)} == group_configs(settings)
    [topic] = [one for one in client.admin.topics() if one.name == name]
    assert topic.partitions == 3
    client.admin.alter_queue(name, {"penstock.dead.letter.topic": None}, lease=90, exclusive=False)
    stored = client.admin.queue_configs(name)
    assert stored["share.record.lock.duration.ms"] == "90000"
    assert stored["penstock.queue.exclusive"] == "false"
    assert stored["penstock.dead.letter.topic"] == ""
    assert stored["share.delivery.count.limit"] == "7"


def test_invalid_settings_are_refused(client: Client, unique: Callable[[str], str]) -> None:
    with pytest.raises(TypeError, match="leese=60: a queue has no such setting"):
        client.admin.create_queue(unique("workers"), leese=60)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="exclusive='yes'"):
        client.admin.create_queue(unique("workers"), exclusive="yes")


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
def test_a_point_to_point_queue_has_one_partition_one_producer_and_one_consumer(
    client: Client, unique: Callable[[str], str], is_new: bool
) -> None:
    name = unique("payments")
    if not is_new:
        client.admin.create_queue(name, topic=name, partitions=1)
    assert client.admin.create_queue(name, point_to_point=True) is is_new
    assert client.admin.queue_configs(name)["penstock.queue.exclusive"] == "true"
    assert client.admin.topic_configs(name)["penstock.producer.exclusive"] == "true"
    assert [one.partitions for one in client.admin.topics() if one.name == name] == [1]


def test_clients_and_brokers_show_their_address(broker: Broker) -> None:
    client = Client("node1:9092,node2:9092")
    assert repr(client) == "<Client node1:9092,node2:9092>"
    client.close()
    assert repr(client) == "<Client node1:9092,node2:9092 (closed)>"
    assert repr(AsyncClient("node1:9092")) == "<AsyncClient node1:9092>"
    assert repr(broker) == f"<Broker {broker.bootstrap_servers}, {broker.http_url}>"
    with Broker(http=None) as other:
        assert repr(other) == f"<Broker {other.bootstrap_servers}>"
        address = other.bootstrap_servers
    assert repr(other) == f"<Broker {address} (closed)>"


def test_programs_that_start_together_may_create_the_same_queue(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    name = unique("workers")
    together = threading.Barrier(8)

    def create(_number: int) -> bool:
        with Client(broker.bootstrap_servers) as client:
            client.admin.queues()  # connects
            together.wait(SOON)
            return client.admin.create_queue(name, topic=name)

    with ThreadPoolExecutor(8) as threads:
        assert any(threads.map(create, range(8)))
