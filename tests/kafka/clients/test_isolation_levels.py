"""Consumers of three clients on a log with transactions: each shows what its isolation level promises."""

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from penstock import Broker
from tests.transactional import ALL, COMMITTED, END, PATIENCE_SECONDS, TransactionalTopic

Unique = Callable[[str], str]
Seen = dict[int, str]
LEVELS = pytest.mark.parametrize(
    ("level", "wanted", "end"), [("read_committed", COMMITTED, END), ("read_uncommitted", ALL, END + 1)]
)


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> TransactionalTopic:
    """Filled, and with a transaction at its end that is open."""
    made = TransactionalTopic(broker, unique("isolated"))
    made.fill()
    made.send(1, "open")
    return made


def expected(level: str, wanted: Seen) -> Seen:
    return wanted if level == "read_committed" else {**wanted, END: "open"}


@LEVELS
def test_confluent_kafka(
    broker: Broker, topic: TransactionalTopic, level: str, wanted: Seen, end: int
) -> None:
    seen, at_end = read_to_the_end(broker, topic.name, level)
    assert seen == expected(level, wanted)
    assert at_end == end


def read_to_the_end(broker: Broker, topic: str, level: str) -> tuple[Seen, int]:
    """All messages by offset, and where the consumer found the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": level,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen: Seen = {}
        while True:
            message = consumer.poll(PATIENCE_SECONDS)
            assert isinstance(message, Message), "the consumer did not reach the end"
            problem = message.error()
            if problem is not None:
                assert problem.code() == KafkaError._PARTITION_EOF
                return seen, message.offset() or 0
            seen[message.offset() or 0] = (message.value() or b"").decode()
    finally:
        consumer.close()


@LEVELS
def test_kafka_python(broker: Broker, topic: TransactionalTopic, level: str, wanted: Seen, end: int) -> None:
    where = KafkaPythonPartition(topic.name, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        isolation_level=level,
        enable_auto_commit=False,
        consumer_timeout_ms=PATIENCE_SECONDS * 1000,
    )
    try:
        consumer.assign([where])
        consumer.seek(where, 0)
        assert consumer.end_offsets([where]) == {where: end}
        seen: Seen = {}
        for _ in expected(level, wanted):
            record = next(consumer)
            seen[record.offset] = record.value.decode()
    finally:
        consumer.close()
    assert seen == expected(level, wanted)


@LEVELS
def test_aiokafka(broker: Broker, topic: TransactionalTopic, level: str, wanted: Seen, end: int) -> None:
    async def scenario() -> None:
        where = AioPartition(topic.name, 0)
        async with AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, isolation_level=level, enable_auto_commit=False
        ) as consumer:
            consumer.assign([where])
            consumer.seek(where, 0)
            assert await consumer.end_offsets([where]) == {where: end}
            seen: Seen = {}
            for _ in expected(level, wanted):
                record = await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)
                seen[record.offset] = record.value.decode()
        assert seen == expected(level, wanted)

    asyncio.run(scenario())


def test_a_consumer_of_committed_records_gets_them_when_their_transaction_ends(
    broker: Broker, topic: TransactionalTopic
) -> None:
    """Its fetch waits at the last stable offset, and brings no bytes of its own: the marker must wake it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "none",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 250_000,
            "socket.timeout.ms": 300_000,
        }
    )
    try:
        consumer.assign([TopicPartition(topic.name, 0, END)])
        assert consumer.poll(0.5) is None
        topic.end(1, commit=True)
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert (message.offset(), message.value()) == (END, b"open")
    finally:
        consumer.close()
