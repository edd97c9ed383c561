"""Real clients of a cluster: leaders and coordinators move, a node stops and returns, and nothing is lost."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PythonTopic

from penstock.cluster import offsets_partition
from penstock.raft import RaftRefused
from tests.faults.waiting import eventually
from tests.kafka.trio import Trio

T = TypeVar("T")
Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
FAST: dict[str, str | int | float] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 20,
}
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with Trio() as running:
        yield running


@pytest.fixture
def topic(trio: Trio, unique: Unique) -> str:
    name = unique("t")
    admin = AdminClient({"bootstrap.servers": trio.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 3)])[name].result(PATIENCE_SECONDS)
    trio.leader(name)
    return name


def follower(trio: Trio, topic: str, index: int = 0) -> int:
    return next(one for one in trio.running if one != trio.leader(topic, index))


def read(reader: Consumer, count: int) -> list[Message]:
    """Ignores events about unreachable brokers."""
    found: list[Message] = []
    for _ in range(int(PATIENCE_SECONDS * 20)):
        message = reader.poll(0.05)
        if message is not None and message.error() is None:
            found.append(message)
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {count} arrived")


def values(messages: list[Message]) -> list[int]:
    return [int(message.value() or b"-1") for message in messages]


# --- librdkafka


def test_an_idempotent_producer_follows_every_leader_without_loss_or_repetition(
    trio: Trio, topic: str
) -> None:
    writer = Producer(
        {
            "bootstrap.servers": trio.bootstrap_servers,
            "enable.idempotence": True,
            **FAST,
        }
    )
    failed: list[object] = []
    number = 0
    for _ in range(6):
        for _ in range(50):
            writer.produce(
                topic,
                str(number).encode(),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            number += 1
        writer.poll(0)
        trio.hand_over(topic, follower(trio, topic))
    assert writer.flush(PATIENCE_SECONDS) == 0
    assert failed == []
    reader = Consumer(
        {
            "bootstrap.servers": trio.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            **FAST,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found = read(reader, number)
    reader.close()
    assert values(found) == list(range(number))
    assert [message.offset() for message in found] == list(range(number))


def test_a_network_cut_loses_nothing_that_was_acknowledged(trio: Trio, topic: str) -> None:
    writer = Producer(
        {
            "bootstrap.servers": trio.bootstrap_servers,
            "enable.idempotence": True,
            "socket.timeout.ms": 2000,
            **FAST,
        }
    )
    acked: list[int] = []

    def note(error: object, message: Message) -> None:
        if error is None:
            acked.append(int(message.value() or b"-1"))

    for number in range(20):
        writer.produce(topic, str(number).encode(), on_delivery=note)
    assert writer.flush(PATIENCE_SECONDS) == 0
    old = trio.leader(topic)
    with trio.cut_off(old):
        for number in range(20, 40):
            writer.produce(topic, str(number).encode(), on_delivery=note)
        trio.leader(topic, among=tuple(one for one in trio.running if one != old))
        assert writer.flush(PATIENCE_SECONDS) == 0
    assert sorted(acked) == list(range(40))
    reader = Consumer({"bootstrap.servers": trio.bootstrap_servers, "group.id": topic, **FAST})
    reader.assign([TopicPartition(topic, 0, 0)])
    assert values(read(reader, 40)) == list(range(40))
    reader.close()


def test_a_reader_continues_at_its_offset_under_the_next_leader(trio: Trio, topic: str) -> None:
    """It checks by epoch whether its records were truncated, and they were not."""
    servers = {"bootstrap.servers": trio.bootstrap_servers, **FAST}
    writer, seen = Producer({**servers, "enable.idempotence": True}), []
    reader = Consumer({**servers, "group.id": topic, "auto.offset.reset": "error"})
    reader.assign([TopicPartition(topic, 0, 0)])
    for number in range(5):
        writer.produce(topic, str(number).encode())
        assert writer.flush(PATIENCE_SECONDS) == 0
        seen += values(read(reader, 1))
        trio.hand_over(topic, follower(trio, topic))
    watermarks = _until_answered(
        reader, lambda: reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS)
    )
    reader.close()
    assert seen == list(range(5))
    assert watermarks == (0, 5)


def test_a_group_continues_when_its_coordinator_moves(trio: Trio, topic: str, unique: Unique) -> None:
    servers = {"bootstrap.servers": trio.bootstrap_servers, **FAST}
    group = unique("g")
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    writer = Producer({**servers, "enable.idempotence": True})
    reader = Consumer({**servers, **settings})
    reader.subscribe([topic])
    for number in range(3):
        writer.produce(topic, str(number).encode())
        assert writer.flush(PATIENCE_SECONDS) == 0
        assert values(read(reader, 1)) == [number]
        _until_answered(reader, lambda: reader.commit(asynchronous=False))
        for index in range(3):
            trio.hand_over(OFFSETS_TOPIC, follower(trio, OFFSETS_TOPIC, index), index)
    [committed] = _until_answered(
        reader, lambda: reader.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    )
    reader.close()
    assert committed.offset == 3


def _until_answered(reader: Consumer, question: Callable[[], T]) -> T:
    """As an application does: librdkafka leaves it to its caller to ask again when a leader or coordinator moved."""
    for _ in range(100):
        try:
            return question()
        except KafkaException:
            reader.poll(0.05)
    raise AssertionError("never answered")


def test_clients_continue_while_a_node_stops_and_returns(trio: Trio, topic: str) -> None:
    servers = {"bootstrap.servers": trio.bootstrap_servers, **FAST}
    writer = Producer({**servers, "enable.idempotence": True})
    failed: list[object] = []
    for number in range(60):
        writer.produce(
            topic, str(number).encode(), on_delivery=lambda error, _: failed.append(error) if error else None
        )
        if number == 20:
            stopped = trio.leader(topic)
            trio.stop(stopped)
        if number == 40:
            trio.start(stopped)
        writer.poll(0)
    assert writer.flush(PATIENCE_SECONDS) == 0
    assert failed == []
    leader = trio.leader(topic)
    trio.eventually(lambda: all(trio.replica(one, topic).log.end_offset == 60 for one in (1, 2, 3)))
    reader = Consumer({**servers, "group.id": topic})
    reader.assign([TopicPartition(topic, 0, 0)])
    assert values(read(reader, 60)) == list(range(60))
    reader.close()
    assert leader in trio.running


def test_administration_by_librdkafka_reaches_the_controller_from_any_node(
    trio: Trio, unique: Unique
) -> None:
    for node_id in trio.running:
        host, port = trio.address(node_id)
        admin = AdminClient({"bootstrap.servers": f"{host}:{port}", **FAST})
        name = unique("admin")
        admin.create_topics([NewTopic(name, 1, 3)])[name].result(PATIENCE_SECONDS)
        trio.leader(name)
        admin.create_partitions([NewPartitions(name, 2)])[name].result(PATIENCE_SECONDS)
        trio.leader(name, 1)
        for broker in trio.running:
            resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
            described = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
            assert described["node.id"].value == str(broker)
        cluster = admin.describe_cluster().result(PATIENCE_SECONDS)
        assert sorted(node.id for node in cluster.nodes) == [1, 2, 3]
        assert cluster.controller.id == trio.controller()
        admin.delete_topics([name])[name].result(PATIENCE_SECONDS)


def test_a_coordinator_that_hands_over_its_leadership_logs_no_error(
    trio: Trio, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses to store offsets meanwhile, which is ordinary: the member asks again."""
    caplog.set_level(logging.INFO, "penstock")
    member = Consumer(
        {"bootstrap.servers": trio.bootstrap_servers, "group.id": topic, "log_level": 0, **FAST}
    )
    stored = TopicPartition(topic, 0, 7)
    eventually(lambda: commits(member, stored), "a commit")
    index = offsets_partition(topic, trio.node(1).metadata.state.topics[OFFSETS_TOPIC].partitions)
    eventually(lambda: is_refused(trio, index, member, stored, caplog), "a write during a hand-over")
    eventually(lambda: commits(member, stored), "a commit")
    member.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def is_refused(
    trio: Trio, index: int, member: Consumer, offset: TopicPartition, caplog: pytest.LogCaptureFixture
) -> bool:
    """Commits while the coordinator waits for the next one, which lacks the first commit."""
    leader = trio.leader(OFFSETS_TOPIC, index)
    to = trio.replica(follower(trio, OFFSETS_TOPIC, index), OFFSETS_TOPIC, index).replica.me
    with trio.cut_off(to.node), suppress(RaftRefused):
        commits(member, offset)
        trio.call(lambda: trio.replica(leader, OFFSETS_TOPIC, index).replica.consensus.transfer(to))
        commits(member, offset)
    return any("cannot store its state" in line for line in caplog.messages)


def commits(member: Consumer, offset: TopicPartition) -> bool:
    try:
        member.commit(offsets=[offset], asynchronous=False)
    except KafkaException:
        return False
    return True


# --- kafka-python, aiokafka, kcat


def test_kafka_python_works_with_a_cluster(trio: Trio, unique: Unique) -> None:
    servers = trio.bootstrap_servers.split(",")
    name = unique("python")
    admin = KafkaAdminClient(bootstrap_servers=servers[-1])
    admin.create_topics([PythonTopic(name, 1, 3)])
    trio.leader(name)
    writer = KafkaProducer(bootstrap_servers=servers, enable_idempotence=True, retry_backoff_ms=50)
    for number in range(4):
        writer.send(name, str(number).encode()).get(PATIENCE_SECONDS)
        trio.hand_over(name, follower(trio, name))
    writer.close()
    reader = KafkaConsumer(
        name,
        bootstrap_servers=servers,
        group_id=name,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_SECONDS * 1000),
    )
    found = [next(reader) for _ in range(4)]
    reader.commit()
    reader.close()
    assert [int(record.value) for record in found] == [0, 1, 2, 3]
    assert name in {description["group_id"] for description in admin.list_groups()}
    admin.delete_topics([name])
    admin.close()


def test_aiokafka_works_with_a_cluster(trio: Trio, unique: Unique) -> None:
    asyncio.run(_follow_leaders(trio, unique("aio")))


async def _follow_leaders(trio: Trio, name: str) -> None:
    writer = AIOKafkaProducer(
        bootstrap_servers=trio.bootstrap_servers, enable_idempotence=True, retry_backoff_ms=50
    )
    await writer.start()
    reader = AIOKafkaConsumer(
        name,
        bootstrap_servers=trio.bootstrap_servers,
        group_id=name,
        auto_offset_reset="earliest",
        retry_backoff_ms=50,
    )
    await writer.send_and_wait(name, b"0")
    await reader.start()
    try:
        seen = [int((await asyncio.wait_for(reader.getone(), PATIENCE_SECONDS)).value or b"-1")]
        for number in range(1, 4):
            await asyncio.to_thread(lambda: trio.hand_over(name, follower(trio, name)))
            await writer.send_and_wait(name, str(number).encode())
            message = await asyncio.wait_for(reader.getone(), PATIENCE_SECONDS)
            seen.append(int(message.value or b"-1"))
        await reader.commit()
    finally:
        await reader.stop()
        await writer.stop()
    assert seen == [0, 1, 2, 3]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_shows_all_nodes_and_the_leader(trio: Trio, topic: str) -> None:
    listed = subprocess.run(
        ["kcat", "-L", "-b", trio.bootstrap_servers, "-t", topic],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    ).stdout
    assert " 3 brokers:" in listed
    assert f"partition 0, leader {trio.leader(topic)}, replicas: " in listed
