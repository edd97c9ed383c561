"""Transactions of the clients that people use: commit, abort, several topics, a second instance, a timeout."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka.errors
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata

from penstock import Broker

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
PATIENCE_MS = 60_000
PARTITIONS = 2


@pytest.fixture
def topics(broker: Broker, unique: Unique) -> list[str]:
    names = [unique("orders"), unique("stock")]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    for future in made.values():
        future.result(PATIENCE_SECONDS)
    return names


def places(topics: list[str]) -> list[tuple[str, int]]:
    return [(topic, index) for topic in topics for index in range(PARTITIONS)]


def committed(broker: Broker, topics: list[str]) -> dict[tuple[str, int], list[str]]:
    """What a consumer with read_committed sees. It waits at the first open transaction of a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    seen: dict[tuple[str, int], list[str]] = {place: [] for place in places(topics)}
    at_end: set[tuple[str, int]] = set()
    try:
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in seen])
        while at_end != seen.keys():
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            place = (message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None:
                seen[place].append((message.value() or b"").decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                at_end.add(place)
    finally:
        consumer.close()
    return seen


def expect_everywhere(broker: Broker, topics: list[str], *values: str) -> None:
    """Markers are written after a commit is answered, so a consumer may be too early."""
    wanted = {place: list(values) for place in places(topics)}
    for _ in range(200):
        if (seen := committed(broker, topics)) == wanted:
            return
    assert seen == wanted


# --- confluent-kafka


def confluent_producer(broker: Broker, transactional_id: str, **settings: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, **settings}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def confluent_send(producer: Producer, topics: list[str], value: str) -> None:
    for topic, index in places(topics):
        producer.produce(topic, value, partition=index)


def test_confluent_kafka_commits_and_aborts(broker: Broker, topics: list[str], unique: Unique) -> None:
    producer = confluent_producer(broker, unique("confluent"))
    for value, commit in (("a", True), ("b", False), ("c", True), ("d", False)):
        producer.begin_transaction()
        confluent_send(producer, topics, value)
        assert producer.flush(PATIENCE_SECONDS) == 0
        if commit:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
    expect_everywhere(broker, topics, "a", "c")


def test_confluent_kafka_is_fenced_by_a_second_instance(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    name = unique("confluent")
    first = confluent_producer(broker, name)
    first.begin_transaction()
    confluent_send(first, topics, "zombie")
    assert first.flush(PATIENCE_SECONDS) == 0
    second = confluent_producer(broker, name)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(PATIENCE_SECONDS)
    assert caught.value.args[0].code() == KafkaError._FENCED
    second.begin_transaction()
    confluent_send(second, topics, "a")
    second.commit_transaction(PATIENCE_SECONDS)
    expect_everywhere(broker, topics, "a")


def test_confluent_kafka_is_told_that_its_transaction_timed_out(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    producer = confluent_producer(broker, unique("confluent"), **{"transaction.timeout.ms": 10_000})
    producer.begin_transaction()
    confluent_send(producer, topics, "late")
    assert producer.flush(PATIENCE_SECONDS) == 0
    expect_ended(broker, topics)
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(PATIENCE_SECONDS)
    assert caught.value.args[0].fatal() or caught.value.args[0].txn_requires_abort()
    expect_everywhere(broker, topics)


def expect_ended(broker: Broker, topics: list[str]) -> None:
    """Waits until no transaction is open: a consumer reaches the end of the log, which markers have moved."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none"})
    try:
        for topic, index in places(topics):
            partition = TopicPartition(topic, index)
            for _ in range(6000):
                if consumer.get_watermark_offsets(partition, PATIENCE_SECONDS)[1] == 2:
                    break
                consumer.poll(0.01)
            else:
                raise AssertionError(f"{partition} has an open transaction")
    finally:
        consumer.close()


def test_confluent_kafka_commits_offsets_with_its_transaction(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    producer, group = confluent_producer(broker, unique("confluent")), unique("group")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        for offset, commit in ((1, True), (2, False)):
            producer.begin_transaction()
            confluent_send(producer, topics, str(offset))
            positions = [TopicPartition(topics[0], 0, offset)]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            if commit:
                producer.commit_transaction(PATIENCE_SECONDS)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)
        assert committed_offset(broker, group, topics[0]) == 1
    finally:
        consumer.close()
    expect_everywhere(broker, topics, "1")


def committed_offset(broker: Broker, group: str, topic: str) -> int:
    """As a new member of the group finds it: it waits for transactions that are open."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    try:
        [found] = consumer.committed([TopicPartition(topic, 0)], PATIENCE_SECONDS)
        return int(found.offset)
    finally:
        consumer.close()


# --- aiokafka


async def aio_producer(broker: Broker, transactional_id: str, **settings: Any) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id, **settings
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await producer.start()
    return producer


async def aio_send(producer: AIOKafkaProducer, topics: list[str], value: str) -> None:
    for topic, index in places(topics):
        await producer.send_and_wait(topic, value.encode(), partition=index)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_SECONDS))


def test_aiokafka_commits_and_aborts(broker: Broker, topics: list[str], unique: Unique) -> None:
    async def act() -> None:
        producer = await aio_producer(broker, unique("aio"))
        try:
            for value, commit in (("a", True), ("b", False), ("c", True)):
                await producer.begin_transaction()
                await aio_send(producer, topics, value)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()

    run(act())
    expect_everywhere(broker, topics, "a", "c")


def test_aiokafka_is_fenced_by_a_second_instance(broker: Broker, topics: list[str], unique: Unique) -> None:
    name = unique("aio")

    async def act() -> None:
        first = await aio_producer(broker, name)
        await first.begin_transaction()
        await aio_send(first, topics, "zombie")
        second = await aio_producer(broker, name)
        try:
            with pytest.raises(aiokafka.errors.ProducerFenced):
                await first.commit_transaction()
            async with second.transaction():
                await aio_send(second, topics, "a")
        finally:
            await first.stop()
            await second.stop()

    run(act())
    expect_everywhere(broker, topics, "a")


def test_aiokafka_is_told_that_its_transaction_timed_out(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    async def act() -> None:
        producer = await aio_producer(broker, unique("aio"), transaction_timeout_ms=10_000)
        try:
            await producer.begin_transaction()
            await aio_send(producer, topics, "late")
            await asyncio.to_thread(expect_ended, broker, topics)
            with pytest.raises(aiokafka.errors.KafkaError):
                await producer.commit_transaction()
        finally:
            await producer.stop()

    run(act())
    expect_everywhere(broker, topics)


def test_aiokafka_commits_offsets_with_its_transaction(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    group, partition = unique("group"), AioPartition(topics[0], 0)

    async def act() -> None:
        producer = await aio_producer(broker, unique("aio"))
        try:
            for offset, commit in ((1, True), (2, False)):
                await producer.begin_transaction()
                await aio_send(producer, topics, str(offset))
                await producer.send_offsets_to_transaction({partition: offset}, group)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()

    run(act())
    assert committed_offset(broker, group, topics[0]) == 1
    expect_everywhere(broker, topics, "1")


# --- kafka-python


def python_producer(broker: Broker, transactional_id: str, **settings: Any) -> KafkaProducer:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=transactional_id,
        max_block_ms=PATIENCE_MS,
        **settings,
    )
    producer.init_transactions()
    return producer


def python_send(producer: KafkaProducer, topics: list[str], value: str) -> None:
    for topic, index in places(topics):
        producer.send(topic, value.encode(), partition=index).get(PATIENCE_SECONDS)


def test_kafka_python_commits_and_aborts(broker: Broker, topics: list[str], unique: Unique) -> None:
    producer = python_producer(broker, unique("python"))
    try:
        for value, commit in (("a", True), ("b", False), ("c", True)):
            producer.begin_transaction()
            python_send(producer, topics, value)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()
    expect_everywhere(broker, topics, "a", "c")


def test_kafka_python_is_fenced_by_a_second_instance(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    name = unique("python")
    first = python_producer(broker, name)
    first.begin_transaction()
    python_send(first, topics, "zombie")
    second = python_producer(broker, name)
    try:
        with pytest.raises(kafka.errors.KafkaError):
            first.commit_transaction()
        second.begin_transaction()
        python_send(second, topics, "a")
        second.commit_transaction()
    finally:
        first.close(timeout=0)
        second.close()
    expect_everywhere(broker, topics, "a")


def test_kafka_python_is_told_that_its_transaction_timed_out(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    producer = python_producer(broker, unique("python"), transaction_timeout_ms=10_000)
    try:
        producer.begin_transaction()
        python_send(producer, topics, "late")
        expect_ended(broker, topics)
        with pytest.raises(kafka.errors.KafkaError):
            producer.commit_transaction()
    finally:
        producer.close(timeout=0)
    expect_everywhere(broker, topics)


def test_kafka_python_commits_offsets_with_its_transaction(
    broker: Broker, topics: list[str], unique: Unique
) -> None:
    group, partition = unique("group"), PythonPartition(topics[0], 0)
    producer = python_producer(broker, unique("python"))
    try:
        for offset, commit in ((1, True), (2, False)):
            producer.begin_transaction()
            python_send(producer, topics, str(offset))
            positions = {partition: OffsetAndMetadata(offset, "", -1)}
            producer.send_offsets_to_transaction(positions, group)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()
    assert committed_offset(broker, group, topics[0]) == 1
    expect_everywhere(broker, topics, "1")
