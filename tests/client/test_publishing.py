"""Publishing: acknowledged, in the background, deduplicated, delayed, and with an expiry."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock import Broker
from penstock.client import Client, ClientError, Closed, PublishFailed, publishing
from penstock.client.arguments import record_headers
from tests.ports import free_ports

SOON = 60.0


def stored_headers(broker: Broker, topic: str, offset: int) -> list[tuple[str, bytes]]:
    """A record's headers, as any Kafka client sees them."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "looks"})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        message = consumer.poll(SOON)
        assert message is not None
        return message.headers() or []
    finally:
        consumer.close()


def test_publish_returns_partition_and_offset(client: Client, topic: str) -> None:
    first = client.publish(topic, b"one", key="k")
    second = client.publish(topic, "two")
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert second.offset == 1
    assert abs(second.timestamp_ms - datetime.now(UTC).timestamp() * 1000) < 60_000


class BrokenProducer:
    """Refuses messages at once, as librdkafka does after a fatal error, and tells the polling thread later why."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.refused = threading.Event()
        self.told = False

    def produce(self, *_: object, **__: object) -> None:
        self.refused.set()
        raise KafkaException(KafkaError(KafkaError._FATAL))

    def poll(self, timeout_s: float) -> int:
        if not self.refused.wait(timeout_s) or self.told:
            return 0
        threading.Event().wait(0.05)  # long enough for the refusal to reach the caller first
        self.told = True
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))

    def flush(self, timeout_s: float) -> int:
        return 0

    def purge(self) -> None:
        return None


def test_a_message_that_librdkafka_refuses_after_a_fatal_error_fails_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "_Producer", BrokenProducer)
    monkeypatch.setattr(publishing, "REASON_SECONDS", SOON)
    publisher = publishing.Publisher("127.0.0.1:9", {}, lambda *_: {}, lambda *_: None)
    try:
        with pytest.raises(PublishFailed) as failed:
            publisher.offer(publishing.outgoing("orders", b"one", None, None, None))
        assert failed.value.kafka_code == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        assert publisher.is_broken
    finally:
        publisher.close(SOON)


def test_background_messages_are_stored_in_order(client: Client, topic: str) -> None:
    futures = [client.publish_soon(topic, str(number)) for number in range(1_000)]
    client.flush()
    assert [future.result(0).offset for future in futures] == list(range(1_000))


def test_closing_waits_for_messages_in_flight(broker: Broker, topic: str) -> None:
    with Client(broker.bootstrap_servers) as client:
        futures = [client.publish_soon(topic, str(number)) for number in range(100)]
    assert all(future.done() for future in futures)
    assert [future.result(0).offset for future in futures] == list(range(100))


def test_a_message_id_is_stored_once_from_any_client(
    broker: Broker, client: Client, topic: str, unique: Callable[[str], str]
) -> None:
    client.admin.alter_topic(topic, {"dedup.window.ms": "60000"})
    first = client.publish(topic, b"paid", message_id="order-17")
    client.publish(topic, b"other", message_id="order-18")
    with Client(broker.bootstrap_servers) as another:
        again = another.publish(topic, b"paid", message_id="order-17")
    assert again.offset == first.offset
    client.publish(topic, b"end")
    with client.subscribe(topic, name=unique("reader"), read_old=True) as subscription:
        stored = [subscription.receive(SOON) for _ in range(3)]
    assert [message.value for message in stored if message] == [b"paid", b"other", b"end"]


def test_an_id_that_the_topic_would_not_remember_is_an_error_that_says_what_to_set(
    broker: Broker, client: Client, topic: str
) -> None:
    with pytest.raises(PublishFailed, match=r"does not deduplicate.*dedup\.window\.ms.*Nothing was stored"):
        client.publish(topic, b"paid", message_id="order-17")
    with pytest.raises(PublishFailed, match="does not deduplicate"):
        client.publish_soon(topic, b"paid", key="k", message_id="order-17")
    with pytest.raises(PublishFailed, match="does not deduplicate"):
        client.publish(topic, b"paid", headers={"penstock-message-id": "order-17"})
    client.admin.alter_topic(topic, {"dedup.window.ms": "60000"})
    first = client.publish(topic, b"paid", message_id="order-17")
    assert first.offset == 0
    assert client.publish(topic, b"paid", message_id="order-17").offset == first.offset


def test_a_queue_can_be_created_with_a_window_for_ids(client: Client, unique: Callable[[str], str]) -> None:
    """On a topic that is new, on one that exists, and when the queue exists."""
    new, existing = unique("mail"), unique("mail")
    client.admin.create_queue(new, dedup=600)
    client.admin.create_topic(existing)
    client.admin.create_queue(existing, dedup=600)
    for topic in (new, existing):
        assert client.admin.topic_configs(topic)["dedup.window.ms"] == "600000"
        first = client.publish(topic, b"paid", message_id="order-17")
        assert client.publish(topic, b"paid", message_id="order-17").offset == first.offset
        client.admin.create_queue(topic, topic=topic, dedup=timedelta(hours=1))
        assert client.admin.topic_configs(topic)["dedup.window.ms"] == "3600000"


def test_a_message_that_retention_would_delete_before_it_is_due_is_refused(
    client: Client, topic: str, unique: Callable[[str], str]
) -> None:
    month = timedelta(days=30)
    for when in ({"delay": month}, {"deliver_at": datetime.now(UTC) + month}):
        with pytest.raises(PublishFailed, match=r"due after the topic's retention\.ms.*keep\.undone"):
            client.publish(topic, b"later", **when)
    client.publish(topic, b"later", delay=timedelta(days=6))
    client.admin.alter_topic(topic, {"penstock.retention.keep.undone": "true"})
    client.publish(topic, b"later", delay=month)
    queue = unique("mail")
    client.admin.create_queue(queue, topic=queue)
    client.publish(queue, b"later", delay=month)


def test_delay_and_expiry_are_stored_in_headers(broker: Broker, client: Client, topic: str) -> None:
    client.admin.alter_topic(topic, {"dedup.window.ms": "60000", "retention.ms": "-1"})
    at = datetime(2030, 1, 1, tzinfo=UTC)
    client.publish(topic, b"x", delay=timedelta(minutes=1), ttl=2.5, headers={"trace": "a", "none": None})
    client.publish(topic, b"x", deliver_at=at, message_id="m")
    assert stored_headers(broker, topic, 0) == [
        ("trace", b"a"),
        ("none", None),
        ("penstock-delay-ms", b"60000"),
        ("penstock-ttl-ms", b"2500"),
    ]
    assert stored_headers(broker, topic, 1) == [
        ("penstock-message-id", b"m"),
        ("penstock-deliver-at", b"1893456000000"),
    ]


def test_headers_may_repeat_a_name() -> None:
    assert record_headers([("a", "1"), ("a", b"2")]) == [("a", b"1"), ("a", b"2")]


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"delay": -1}, "delay=-1"),
        ({"ttl": float("nan")}, "ttl=nan"),
        ({"deliver_at": datetime(2030, 1, 1)}, "no time zone"),
        ({"delay": 1, "deliver_at": 2}, "give one of them"),
    ],
)
def test_invalid_times_are_refused_before_they_are_sent(
    client: Client, topic: str, wish: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        client.publish(topic, b"x", **wish)  # type: ignore[arg-type]
    assert client.publish(topic, b"first").offset == 0


def test_a_too_large_message_is_refused_with_the_setting_to_raise(client: Client, topic: str) -> None:
    with pytest.raises(PublishFailed, match=r"message\.max\.bytes"):
        client.publish(topic, bytes(2_000_000))


def test_a_missing_partition_is_named(client: Client, topic: str) -> None:
    assert client.publish(topic, b"x", partition=0).partition == 0
    with pytest.raises(PublishFailed, match="partition"):
        client.publish(topic, b"x", partition=5)


@pytest.mark.usefixtures("gives_up_soon")
def test_an_unreachable_broker_is_an_error_that_says_what_to_check() -> None:
    [port] = free_ports(1)
    servers = f"127.0.0.1:{port}"
    impatient = {"message.timeout.ms": 1_000}
    with (
        Client(servers, kafka=impatient) as client,
        pytest.raises(PublishFailed, match=rf"no broker answers at {servers}"),
    ):
        client.publish("orders", b"x", timeout=SOON)


def test_settings_that_librdkafka_does_not_know_are_named() -> None:
    unknown = {"no.such.setting": 1}
    with (
        Client("127.0.0.1:1", kafka=unknown) as client,
        pytest.raises(ClientError, match=r"no\.such\.setting"),
    ):
        client.publish("orders", b"x")


def test_a_closed_client_says_so(broker: Broker) -> None:
    client = Client(broker.bootstrap_servers)
    client.close()
    client.close()
    with pytest.raises(Closed):
        client.publish("orders", b"x")
    with pytest.raises(Closed):
        client.queue("orders", group="g")
    with pytest.raises(Closed):
        client.subscribe("orders", name="n")


@pytest.mark.parametrize(
    ("code", "is_doubtful"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),
        (KafkaError._UNKNOWN_TOPIC, False),
        (KafkaError.POLICY_VIOLATION, False),
        (KafkaError.INVALID_REPLICATION_FACTOR, False),
        (KafkaError.MSG_SIZE_TOO_LARGE, False),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
        (KafkaError.REQUEST_TIMED_OUT, True),
        (KafkaError._MSG_TIMED_OUT, True),
    ],
)
def test_only_errors_with_an_unknown_outcome_are_marked_doubtful(code: int, is_doubtful: bool) -> None:
    failed = publishing._failed("orders", KafkaError(code))
    assert ("may be stored all the same" in str(failed)) == is_doubtful
