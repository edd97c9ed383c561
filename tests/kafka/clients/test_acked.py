"""`cleanup.policy=acked` with real clients: a consumer group, a queue and a subscription on one topic."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from tests.kafka.clients.queues import PATIENCE_SECONDS, configure, publish, take, worker
from tests.web.pushing import subscriber

LOOK_AGAIN_SECONDS = 0.1
EARLIEST = {"share_auto_offset_reset": "earliest"}


def create(servers: str, topic: str, **configs: str) -> None:
    """Configs are written with underscores for their dots."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, 1, config=named)])[topic].result(PATIENCE_SECONDS)


def with_ten_records(servers: str, topic: str) -> str:
    create(servers, topic, cleanup_policy="acked", penstock_acked_min_age_ms="0")
    publish(servers, topic, [str(number) for number in range(10)])
    return topic


@pytest.fixture
def topic(broker: Broker, unique: Callable[[str], str]) -> str:
    return with_ten_records(broker.bootstrap_servers, unique("acked"))


@contextmanager
def consumer(servers: str, group: str) -> Iterator[Consumer]:
    one = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        yield one
    finally:
        one.close()


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    with consumer(servers, group) as one:
        one.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def starts_at(servers: str, topic: str, offset: int) -> None:
    """Returns when the records before this offset, and no others, are deleted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with consumer(servers, "reader") as one:
        while (start := one.get_watermark_offsets(TopicPartition(topic, 0), 10.0)[0]) < offset:
            assert time.monotonic() < deadline, f"the log starts at {start}"
            time.sleep(LOOK_AGAIN_SECONDS)
    assert start == offset


def accept(servers: str, queue: str, topic: str, count: int) -> None:
    """Accepts the first messages; the others are released."""
    with worker(servers, queue, topic) as one:
        messages = take(one, lambda got: len(got) >= count)
        for message in messages[:count]:
            one.acknowledge(message)
        one.commit_sync(PATIENCE_SECONDS)


def test_records_are_deleted_when_group_queue_and_subscription_have_acked_them(
    broker: Broker, topic: str, unique: Callable[[str], str]
) -> None:
    servers, group, queue = broker.bootstrap_servers, unique("group"), unique("queue")
    configure(servers, queue, **EARLIEST)
    with subscriber(broker.http_url) as pushed:
        pushed.subscribe(unique("subscription"), topic, read_old=True)
        messages = pushed.take(10)
        accept(servers, queue, topic, 5)
        commit(servers, group, topic, 7)
        pushed.ack_durably(messages[2])
        starts_at(servers, topic, 3)
        pushed.ack_durably(messages[9])
        starts_at(servers, topic, 5)
        accept(servers, queue, topic, 5)
        starts_at(servers, topic, 7)
        commit(servers, group, topic, 10)
        starts_at(servers, topic, 10)


def test_a_deleted_group_no_longer_holds_records_back(
    broker: Broker, topic: str, unique: Callable[[str], str]
) -> None:
    servers, slow = broker.bootstrap_servers, unique("slow")
    commit(
        servers, slow, topic, 4
    )  # the slow one first: records that are deleted already cannot be held back
    commit(servers, unique("quick"), topic, 10)
    starts_at(servers, topic, 4)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_consumer_groups([slow])[slow].result(PATIENCE_SECONDS)
    starts_at(servers, topic, 10)


def test_a_deleted_subscription_no_longer_holds_records_back(
    broker: Broker, topic: str, unique: Callable[[str], str]
) -> None:
    servers = broker.bootstrap_servers
    with subscriber(broker.http_url) as pushed:
        pushed.subscribe(unique("subscription"), topic, read_old=True)
        pushed.ack_durably(pushed.take(3)[2])
        commit(servers, unique("group"), topic, 10)
        starts_at(servers, topic, 3)
        pushed.say(type="unsubscribe")
        starts_at(servers, topic, 10)


def test_a_consumer_that_has_committed_nothing_so_far_loses_nothing(
    broker: Broker, topic: str, unique: Callable[[str], str]
) -> None:
    """A topic without such a consumer shows when a cleanup round over both topics has ended."""
    servers, quick = broker.bootstrap_servers, unique("quick")
    other = with_ten_records(servers, unique("other"))
    with consumer(servers, unique("reader")) as reader:
        reader.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (first := reader.poll(0.1)) is None:
            assert time.monotonic() < deadline
        commit(servers, quick, topic, 10)
        commit(servers, quick, other, 10)
        starts_at(servers, other, 10)
        starts_at(servers, topic, 0)
        reader.commit(message=first, asynchronous=False)
        starts_at(servers, topic, 1)


def test_acked_and_compact_together_are_refused(broker: Broker, unique: Callable[[str], str]) -> None:
    with pytest.raises(KafkaException, match="acked and compact together") as caught:
        create(broker.bootstrap_servers, unique("both"), cleanup_policy="compact,acked")
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_a_memory_topic_beside_topics_on_disk_is_emptied_by_its_queue(
    disk_broker: Broker, unique: Callable[[str], str]
) -> None:
    servers, jobs, workers = disk_broker.bootstrap_servers, unique("jobs"), unique("workers")
    create(
        servers,
        jobs,
        cleanup_policy="acked",
        penstock_acked_min_age_ms="0",
        penstock_storage="memory",
    )
    configure(servers, workers, **EARLIEST)
    publish(servers, jobs, ["x" * 1000 + str(number) for number in range(100)])
    accept(servers, workers, jobs, 100)
    starts_at(servers, jobs, 100)
