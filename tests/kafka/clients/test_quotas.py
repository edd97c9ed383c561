"""Real clients that are throttled."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from penstock import Broker
from tests.kafka.programs.builds import java
from tests.kafka.programs.tools import CONFIGS
from tests.kafka.quota_requests import described, set_quotas
from tests.kafka.raw import RawClient

PATIENCE_SECONDS = 60.0
VALUE = bytes(50_000)
Unique = Callable[[str], str]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http=None) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for made in admin.create_topics([NewTopic("orders", 1, 1)]).values():
        made.result(PATIENCE_SECONDS)
    return "orders"


@pytest.fixture
def quota(broker: Broker) -> Callable[..., None]:
    def put(client_id: str, **quotas: float) -> None:
        with RawClient(broker) as client:
            set_quotas(client, {"client_id": client_id}, **quotas)

    return put


def test_a_producer_of_librdkafka_hears_that_it_is_throttled(
    broker: Broker, topic: str, quota: Callable[..., None]
) -> None:
    heard: list[ThrottleEvent] = []
    quota("fast", producer_byte_rate=10_000)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "fast",
            "linger.ms": 0,
            "throttle_cb": heard.append,
        }
    )
    for _ in range(3):
        producer.produce(topic, VALUE)
        assert producer.flush(PATIENCE_SECONDS) == 0
    while not heard:
        producer.poll(PATIENCE_SECONDS)
    assert heard[0].throttle_time > 0


def test_a_consumer_of_librdkafka_hears_that_it_is_throttled_and_gets_all_records(
    broker: Broker, topic: str, quota: Callable[..., None]
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for _ in range(4):
        producer.produce(topic, VALUE)
        assert producer.flush(PATIENCE_SECONDS) == 0
    heard: list[ThrottleEvent] = []
    quota("slow", consumer_byte_rate=12_000)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "slow",
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "throttle_cb": heard.append,
        }
    )
    try:
        consumer.subscribe([topic])
        for _ in range(4):
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None
        assert heard
        assert heard[0].throttle_time > 0
    finally:
        consumer.close()


def test_a_producer_of_kafka_python_hears_that_it_is_throttled(
    broker: Broker, topic: str, quota: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    quota("python", producer_byte_rate=10_000)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id="python")
    try:
        for _ in range(3):
            producer.send(topic, VALUE).get(PATIENCE_SECONDS)
        assert "ProduceResponse throttled by broker" in caplog.text
    finally:
        producer.close()


@pytest.mark.long
@pytest.mark.xdist_group("programs")
def test_kafkas_own_tool_sets_shows_and_removes_quotas(broker: Broker) -> None:
    users = ("--entity-type", "users", "--entity-name", "alice")
    run_tool(broker, "--alter", "--add-config", "producer_byte_rate=1000", *users)
    everyone = ("--entity-type", "clients", "--entity-default")
    run_tool(broker, "--alter", "--add-config", "request_percentage=50", *everyone)
    assert "producer_byte_rate=1000" in run_tool(broker, "--describe", *users)
    with RawClient(broker) as client:
        assert described(client) == [
            ({"client-id": None}, {"request_percentage": 50.0}),
            ({"user": "alice"}, {"producer_byte_rate": 1000.0}),
        ]
        run_tool(broker, "--alter", "--delete-config", "producer_byte_rate", *users)
        assert len(described(client)) == 1


def run_tool(broker: Broker, *arguments: str) -> str:
    command = java(CONFIGS, "--bootstrap-server", broker.bootstrap_servers, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
