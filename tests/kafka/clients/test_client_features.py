"""Features of the clients that few programs use, and that need exact behaviour of the broker."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import Consumer, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from penstock import Broker

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.05
LONG_AGO_MS = 1000
METADATA = 'naïve ☂ {"position": 7}\n'


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def make(broker: Broker) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers that are closed with the test."""
    made: list[Consumer] = []

    def new(group: str, **settings: object) -> Consumer:
        defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        servers = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
        made.append(Consumer({**servers, **defaults, **settings}))
        return made[-1]

    yield new
    for consumer in made:
        consumer.close()


def fill(broker: Broker, topic: str, count: int, partition: int = 0) -> None:
    """One batch of `count` records, a millisecond apart."""
    writer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 50}
    )
    for number in range(count):
        writer.produce(topic, str(number).encode(), partition=partition, timestamp=LONG_AGO_MS + number)
    assert writer.flush(PATIENCE_SECONDS) == 0


def next_message(reader: Consumer) -> Message:
    message = reader.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.error() is None, message.error()
    return message


def poll_until(condition: Callable[[], bool], *readers: Consumer) -> None:
    for _ in range(int(PATIENCE_SECONDS / POLL_SECONDS)):
        for reader in readers:
            reader.poll(POLL_SECONDS / len(readers))
        if condition():
            return
    raise AssertionError("it did not happen")


def assigned(reader: Consumer) -> set[int]:
    return {row.partition for row in reader.assignment()}


# --- librdkafka


def test_a_reader_may_start_in_the_middle_of_a_batch_and_pause(
    broker: Broker, unique: Unique, make: Callable[..., Consumer]
) -> None:
    topic = unique("seek")
    fill(broker, topic, 100)
    reader = make(unique("g"))
    reader.assign([TopicPartition(topic, 0, 55)])
    assert next_message(reader).offset() == 55
    reader.seek(TopicPartition(topic, 0, 7))
    assert next_message(reader).offset() == 7
    reader.pause([TopicPartition(topic, 0)])
    assert reader.poll(0.3) is None
    reader.resume([TopicPartition(topic, 0)])
    assert next_message(reader).offset() == 8
    [found] = reader.offsets_for_times([TopicPartition(topic, 0, LONG_AGO_MS + 42)], timeout=PATIENCE_SECONDS)
    assert found.offset == 42
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS) == (0, 100)


def test_commit_metadata_is_kept_unchanged(
    broker: Broker, unique: Unique, make: Callable[..., Consumer]
) -> None:
    topic, group = unique("meta"), unique("g")
    fill(broker, topic, 10)
    wanted = TopicPartition(topic, 0, 7, metadata=METADATA, leader_epoch=0)
    make(group).commit(offsets=[wanted], asynchronous=False)
    [found] = make(group).committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    assert (found.offset, found.metadata, found.leader_epoch) == (7, METADATA, 0)


def test_partitions_move_one_by_one_with_the_cooperative_assignor(
    broker: Broker, admin: AdminClient, unique: Unique, make: Callable[..., Consumer]
) -> None:
    topic, group = unique("coop"), unique("g")
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(PATIENCE_SECONDS)
    settings = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 200}
    first, second = make(group, **settings), make(group, **settings)
    lost: list[int] = []
    first.subscribe([topic], on_revoke=lambda _, rows: lost.extend(row.partition for row in rows))
    poll_until(lambda: len(assigned(first)) == 4, first)
    second.subscribe([topic])
    poll_until(lambda: len(assigned(first)) == len(assigned(second)) == 2, first, second)
    assert set(lost) == assigned(second), "only what moved was taken away"


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    broker: Broker, admin: AdminClient, unique: Unique, make: Callable[..., Consumer]
) -> None:
    topic, group = unique("static"), unique("g")
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(PATIENCE_SECONDS)
    settings = {"heartbeat.interval.ms": 200, "session.timeout.ms": 30_000}
    stays = make(group, **{"group.instance.id": "stays"}, **settings)
    goes = make(group, **{"group.instance.id": "goes"}, **settings)
    revoked: list[int] = []
    stays.subscribe([topic], on_revoke=lambda _, rows: revoked.append(len(rows)))
    goes.subscribe([topic])
    poll_until(lambda: len(assigned(stays)) == len(assigned(goes)) == 2, stays, goes)
    before, revoked_before = assigned(goes), len(revoked)
    goes.close()
    back = make(group, **{"group.instance.id": "goes"}, **settings)
    back.subscribe([topic])
    poll_until(lambda: bool(assigned(back)), stays, back)
    assert (assigned(back), len(revoked)) == (before, revoked_before)


def test_a_pattern_finds_topics_that_are_created_later(
    broker: Broker, admin: AdminClient, unique: Unique, make: Callable[..., Consumer]
) -> None:
    prefix = unique("pattern")
    fill(broker, f"{prefix}-a", 1)
    reader = make(unique("g"), **{"topic.metadata.refresh.interval.ms": 200})
    reader.subscribe([f"^{prefix}-.*"])
    assert next_message(reader).topic() == f"{prefix}-a"
    reader.commit(asynchronous=False)
    fill(broker, f"{prefix}-b", 1)
    assert next_message(reader).topic() == f"{prefix}-b"


def test_topic_ids_are_stable_and_new_for_a_new_topic(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    name = unique("id")

    def topic_id() -> str:
        future = admin.describe_topics(TopicCollection([name]))[name]
        return str(future.result(PATIENCE_SECONDS).topic_id)

    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_SECONDS)
    first = topic_id()
    assert first == topic_id()
    admin.delete_topics([name])[name].result(PATIENCE_SECONDS)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_SECONDS)
    assert topic_id() != first


def test_clients_get_their_authorized_operations(broker: Broker, admin: AdminClient, unique: Unique) -> None:
    name = unique("may")
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_SECONDS)
    described = admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)[name]
    assert {AclOperation.READ, AclOperation.WRITE} <= set(
        described.result(PATIENCE_SECONDS).authorized_operations
    )
    cluster = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_SECONDS)
    assert AclOperation.CREATE in cluster.authorized_operations
    assert [node.id for node in cluster.nodes] == [cluster.controller.id]


# --- aiokafka


def test_aiokafka_seeks_pauses_and_keeps_its_metadata(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        topic, group = unique("aio"), unique("g")
        servers = {"bootstrap_servers": broker.bootstrap_servers}
        async with AIOKafkaProducer(linger_ms=20, **servers) as producer:
            sent = [
                await producer.send(topic, str(n).encode(), timestamp_ms=LONG_AGO_MS + n) for n in range(50)
            ]
            await asyncio.gather(*sent)
        place = AioPartition(topic, 0)
        async with AIOKafkaConsumer(group_id=group, enable_auto_commit=False, **servers) as consumer:
            consumer.assign([place])
            consumer.seek(place, 33)
            assert (await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).offset == 33
            consumer.pause(place)
            assert await consumer.getmany(timeout_ms=200) == {}
            consumer.resume(place)
            assert (await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).offset == 34
            assert (await consumer.offsets_for_times({place: LONG_AGO_MS + 7}))[place].offset == 7
            assert await consumer.end_offsets([place]) == {place: 50}
            await consumer.commit({place: OffsetAndMetadata(12, METADATA)})
            assert await consumer.committed(place) == 12
        async with AIOKafkaConsumer(group_id=group, **servers) as consumer:
            consumer.assign([place])
            assert (await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).offset == 12

    asyncio.run(scenario())


def test_aiokafka_subscribes_by_pattern(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        prefix = unique("aio-pattern")
        servers = {"bootstrap_servers": broker.bootstrap_servers}
        async with (
            AIOKafkaProducer(**servers) as producer,
            AIOKafkaConsumer(
                group_id=unique("g"), auto_offset_reset="earliest", metadata_max_age_ms=200, **servers
            ) as consumer,
        ):
            await producer.send_and_wait(f"{prefix}-a", b"1")
            consumer.subscribe(pattern=f"^{prefix}-.*")
            assert (await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).topic == f"{prefix}-a"
            await producer.send_and_wait(f"{prefix}-b", b"2")
            assert (await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).topic == f"{prefix}-b"

    asyncio.run(scenario())
