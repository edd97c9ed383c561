"""Messages with an id are stored once, from any client, also if a new producer sends them again after a kill -9."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from penstock import Broker
from tests.node.processes import BrokerProcess

Unique = Callable[[str], str]
Send = Callable[[str, str, list[str]], list[int]]
"""Sends one message for each id, with a new producer, waits for each, and returns the acknowledged offsets."""
Read = Callable[[str, str, int], list[str]]
"""The values of that many records from the beginning."""

PATIENCE_SECONDS = 60
NAME = "penstock-message-id"
ID_COUNT = 12


def make_topic(bootstrap_servers: str, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    wishes = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=wishes)])[topic].result(PATIENCE_SECONDS)


def by_confluent_kafka(idempotent: bool) -> Send:
    def send(bootstrap_servers: str, topic: str, ids: list[str]) -> list[int]:
        told: list[int] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            told.append(message.offset() or 0)

        producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "enable.idempotence": idempotent, "acks": "all"}
        )
        for one in ids:
            producer.produce(topic, one, headers={NAME: one.encode()}, on_delivery=delivered)
            assert producer.flush(PATIENCE_SECONDS) == 0
        return told

    return send


def by_aiokafka(idempotent: bool) -> Send:
    async def send_all(bootstrap_servers: str, topic: str, ids: list[str]) -> list[int]:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, enable_idempotence=idempotent, acks="all"
        ) as producer:
            return [
                (await producer.send_and_wait(topic, one.encode(), headers=[(NAME, one.encode())])).offset
                for one in ids
            ]

    return lambda *arguments: asyncio.run(send_all(*arguments))


def by_kafka_python(idempotent: bool) -> Send:
    def send(bootstrap_servers: str, topic: str, ids: list[str]) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers, enable_idempotence=idempotent, acks="all"
        )
        try:
            return [
                producer.send(topic, one.encode(), headers=[(NAME, one.encode())])
                .get(timeout=PATIENCE_SECONDS)
                .offset
                for one in ids
            ]
        finally:
            producer.close()

    return send


def with_confluent_kafka(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    reader = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "reader"})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values = []
    for _ in range(count):
        message = reader.poll(PATIENCE_SECONDS)
        assert message is not None
        values.append((message.value() or b"").decode())
    reader.close()
    return values


def with_aiokafka(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    async def read() -> list[str]:
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest"
        ) as reader:
            return [
                (await asyncio.wait_for(anext(reader), PATIENCE_SECONDS)).value.decode() for _ in range(count)
            ]

    return asyncio.run(read())


def with_kafka_python(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    reader = KafkaConsumer(bootstrap_servers=bootstrap_servers, consumer_timeout_ms=PATIENCE_SECONDS * 1000)
    reader.assign([PythonPartition(topic, 0)])
    reader.seek_to_beginning()
    values = [next(reader).value.decode() for _ in range(count)]
    reader.close()
    return values


SENDERS = [
    pytest.param(make(idempotent), id=f"{make.__name__}{'_idempotent' if idempotent else ''}")
    for make in (by_confluent_kafka, by_aiokafka, by_kafka_python)
    for idempotent in (False, True)
]
READERS = [with_confluent_kafka, with_aiokafka, with_kafka_python]


@pytest.mark.parametrize("send", SENDERS)
def test_a_new_producer_that_sends_all_again_gets_the_first_offsets(
    broker: Broker, unique: Unique, send: Send
) -> None:
    topic, ids = unique("once"), [f"id {number}" for number in range(ID_COUNT)]
    make_topic(broker.bootstrap_servers, topic, dedup_window_ms="600000")
    first = send(broker.bootstrap_servers, topic, ids)
    assert first == list(range(ID_COUNT))
    assert send(broker.bootstrap_servers, topic, ids) == first
    [last] = send(broker.bootstrap_servers, topic, ["last"])
    assert last >= ID_COUNT
    assert with_confluent_kafka(broker.bootstrap_servers, topic, ID_COUNT + 1) == [*ids, "last"]


@pytest.mark.parametrize("read", READERS)
def test_consumers_skip_the_empty_batches_of_an_idempotent_producers_duplicates(
    broker: Broker, unique: Unique, read: Read
) -> None:
    topic, send = unique("once"), by_confluent_kafka(True)
    make_topic(broker.bootstrap_servers, topic, dedup_window_ms="600000")
    for ids in (["a", "b"], ["b", "a", "b"], ["c"], ["a"] * 20, ["d"]):
        send(broker.bootstrap_servers, topic, ids)
    assert read(broker.bootstrap_servers, topic, 4) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_rest_of_a_deduplicated_batch_is_readable_with_every_codec(
    broker: Broker, unique: Unique, codec: str
) -> None:
    topic = unique("once")
    make_topic(broker.bootstrap_servers, topic, dedup_window_ms="600000")
    told: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        told[message.value() or b""] = message.offset() or 0

    for start in (0, 50):
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 200,
            }
        )
        for number in range(start, start + 100):
            name = b"%d" % number
            producer.produce(topic, name, headers={NAME: name}, on_delivery=delivered)
        assert producer.flush(PATIENCE_SECONDS) == 0
    expected = [str(number) for number in range(150)]
    for read in READERS:
        assert read(broker.bootstrap_servers, topic, 150) == expected
    assert [told[b"%d" % number] for number in (0, 49, 149)] == [0, 49, 199]


# --- kill -9


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    running.kill()


def test_messages_sent_again_after_kill_9_are_still_stored_once(process: BrokerProcess) -> None:
    ids = [f"id {number}" for number in range(ID_COUNT)]
    senders: dict[str, Send] = {param.id or "": param.values[0] for param in SENDERS}  # type: ignore[misc]
    for topic, send in senders.items():
        make_topic(process.bootstrap_servers, topic, dedup_window_ms="600000")
        assert send(process.bootstrap_servers, topic, ids) == list(range(ID_COUNT))
    for _ in range(2):
        process.kill()
        process.start()
        for topic, send in senders.items():
            assert send(process.bootstrap_servers, topic, ids) == list(range(ID_COUNT))
    for topic, send in senders.items():
        send(process.bootstrap_servers, topic, ["new"])
        assert with_confluent_kafka(process.bootstrap_servers, topic, ID_COUNT + 1) == [*ids, "new"]


def test_a_job_that_restarts_after_each_kill_9_stores_each_message_once(process: BrokerProcess) -> None:
    """It does not know which messages were stored when the broker died, so it sends all again, with a new producer."""
    topic, count = "jobs", 400
    make_topic(process.bootstrap_servers, topic, dedup_window_ms="600000")
    for kill_after in (50, 150, 300):
        with_idempotence = kill_after != 150
        start_over(process.bootstrap_servers, topic, count, kill_after, idempotent=with_idempotence)
        process.kill()
        process.start()
    assert start_over(process.bootstrap_servers, topic, count, count, idempotent=True) == count
    by_confluent_kafka(True)(process.bootstrap_servers, topic, ["extra"])
    *values, extra = with_confluent_kafka(process.bootstrap_servers, topic, count + 1)
    assert sorted(values, key=int) == [str(number) for number in range(count)]
    assert extra == "extra"


def start_over(bootstrap_servers: str, topic: str, count: int, until: int, *, idempotent: bool) -> int:
    """Sends all messages; returns as soon as `until` are acked."""
    acked: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acked.append(message.offset() or 0)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": idempotent,
            "linger.ms": 1,
            "log_level": 0,
        }
    )
    for number in range(count):
        name = b"%d" % number
        producer.produce(topic, name, headers={NAME: name}, on_delivery=delivered)
        if number % 10 == 0:
            producer.poll(0.01)
    while len(acked) < until:
        assert producer.poll(PATIENCE_SECONDS), "nothing more was acked"
    producer.purge()
    return len(acked)


# --- one producer at a time


def test_a_second_producer_is_refused_with_the_name_of_the_first_until_that_one_closes(
    broker: Broker, unique: Unique
) -> None:
    topic, refusals = unique("payments"), list[KafkaError]()
    make_topic(broker.bootstrap_servers, topic, penstock_producer_exclusive="true")

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refusals.append(error)

    def producer(name: str) -> Producer:
        return Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "client.id": name, "enable.idempotence": True}
        )

    first, second = producer("billing"), producer("standby")
    first.produce(topic, b"1", on_delivery=delivered)
    assert first.flush(PATIENCE_SECONDS) == 0
    assert refusals == []
    second.produce(topic, b"2", on_delivery=delivered)
    assert second.flush(PATIENCE_SECONDS) == 0
    assert [error.name() for error in refusals] == ["POLICY_VIOLATION"]
    first.produce(topic, b"3", on_delivery=delivered)
    assert first.flush(PATIENCE_SECONDS) == 0
    del first  # the broker sees that a moment later
    while refusals:
        refusals.clear()
        second.produce(topic, b"4", on_delivery=delivered)
        assert second.flush(PATIENCE_SECONDS) == 0
    assert with_confluent_kafka(broker.bootstrap_servers, topic, 3) == ["1", "3", "4"]
