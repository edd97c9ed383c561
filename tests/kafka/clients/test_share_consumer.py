"""confluent-kafka's share consumer on a queue, unmodified: accept, release, reject, expired locks, many workers."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Message, ShareConsumer

from penstock import Broker
from tests.kafka.clients.queues import PATIENCE_SECONDS, configure, publish, take, work_off, worker

EARLIEST = {"share_auto_offset_reset": "earliest"}


def values(messages: list[Message]) -> list[str]:
    return [(message.value() or b"").decode() for message in messages]


@pytest.fixture
def queue(broker: Broker, unique: Callable[[str], str]) -> tuple[str, str, str]:
    """Servers, topic and group, with ten messages."""
    topic, group = unique("jobs"), unique("workers")
    servers = broker.bootstrap_servers
    configure(servers, group, **EARLIEST)
    publish(servers, topic, [str(number) for number in range(10)])
    return servers, topic, group


def test_accepted_messages_do_not_come_back_and_others_do(queue: tuple[str, str, str]) -> None:
    servers, topic, group = queue
    with worker(servers, group, topic) as consumer:
        messages = take(consumer, lambda got: len(got) == 10)
        for message in messages:
            odd = int(message.value() or b"0") % 2
            consumer.acknowledge(message, AcknowledgeType.RELEASE if odd else AcknowledgeType.ACCEPT)
        assert all(error is None for error in consumer.commit_sync().values())
        again = take(consumer, lambda got: len(got) == 5)
        assert values(again) == ["1", "3", "5", "7", "9"]
        assert {message.delivery_count() for message in again} == {2}
        for message in again:
            consumer.acknowledge(message)


def test_a_consumer_that_closes_gives_its_messages_to_the_next(queue: tuple[str, str, str]) -> None:
    servers, topic, group = queue
    with worker(servers, group, topic) as consumer:
        assert len(take(consumer, lambda got: bool(got))) == 10
    with worker(servers, group, topic) as consumer:
        again = take(consumer, lambda got: bool(got))
        assert values(again) == [str(number) for number in range(10)]
        for message in again:
            consumer.acknowledge(message)


def test_messages_come_back_when_their_lock_runs_out(queue: tuple[str, str, str]) -> None:
    servers, topic, group = queue
    configure(servers, group, share_record_lock_duration_ms="3000")
    with worker(servers, group, topic) as slow, worker(servers, group, topic) as next_one:
        held = take(slow, lambda got: bool(got))
        again = take(next_one, lambda got: bool(got))
        assert set(values(held)) & set(values(again))
        for message in again:
            next_one.acknowledge(message)
        for message in held:
            slow.acknowledge(message)
        late = slow.commit_sync()
        assert any(error is not None for error in late.values()), "what another has by now cannot be accepted"


def test_a_message_that_is_delivered_too_often_becomes_a_complete_dead_letter(
    queue: tuple[str, str, str],
) -> None:
    servers, topic, group = queue
    configure(servers, group, share_delivery_count_limit="2")
    with worker(servers, group, topic) as consumer:
        deliveries: Counter[str] = Counter()
        while sum(deliveries.values()) < 20:
            for message in take(consumer, lambda got: bool(got)):
                deliveries[(message.value() or b"").decode()] += 1
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            consumer.commit_sync()
    assert set(deliveries.values()) == {2}
    letters = read_all(servers, f"{topic}.dlq", 10)
    assert sorted(values(letters), key=int) == [str(number) for number in range(10)]
    assert {message.key() for message in letters} == {str(number).encode() for number in range(10)}
    headers = dict(letters[0].headers() or [])
    assert headers["penstock-dead-reason"] == b"delivery_limit"
    assert headers["penstock-dead-topic"] == topic.encode()
    assert headers["penstock-dead-deliveries"] == b"2"


def test_a_rejected_message_is_a_dead_letter_at_once(queue: tuple[str, str, str]) -> None:
    servers, topic, group = queue
    with worker(servers, group, topic) as consumer:
        for message in take(consumer, lambda got: len(got) == 10):
            bad = message.value() == b"7"
            consumer.acknowledge(message, AcknowledgeType.REJECT if bad else AcknowledgeType.ACCEPT)
        consumer.commit_sync()
    [letter] = read_all(servers, f"{topic}.dlq", 1)
    assert letter.value() == b"7"
    assert dict(letter.headers() or [])["penstock-dead-reason"] == b"rejected"


def test_many_workers_share_the_messages_and_each_is_done_once(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topic, group, servers = unique("jobs"), unique("workers"), broker.bootstrap_servers
    configure(servers, group, **EARLIEST)
    wanted = [str(number) for number in range(2000)]
    publish(servers, topic, wanted[:1000], **{"batch.num.messages": 20})
    done: Counter[str] = Counter()
    by: Counter[int] = Counter()
    lock, finished = threading.Lock(), threading.Event()
    all_have_some = threading.Barrier(4)  # or the others could have done everything before the last one joins

    def work(number: int) -> None:
        with worker(servers, group, topic, **{"max.poll.records": 50}) as consumer:
            while not finished.is_set():
                accept_some(consumer, number)

    def accept_some(consumer: ShareConsumer, number: int) -> None:
        messages = [one for one in consumer.poll(0.1) if one.error() is None]
        if messages and not by[number]:
            all_have_some.wait(PATIENCE_SECONDS)
        for message in messages:
            consumer.acknowledge(message)
        if messages and all(error is None for error in consumer.commit_sync().values()):
            with lock:
                done.update(values(messages))
                by[number] += len(messages)
                if len(done) == len(wanted):
                    finished.set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    publish(servers, topic, wanted[1000:], **{"batch.num.messages": 20})
    finished.wait(PATIENCE_SECONDS)
    finished.set()
    for thread in threads:
        thread.join()
    assert done == Counter(wanted)
    assert len(by) == 4, f"a consumer starved: {by}"


def test_accepted_messages_are_not_delivered_after_a_restart(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        configure(broker.bootstrap_servers, "workers", **EARLIEST)
        publish(broker.bootstrap_servers, "jobs", [str(number) for number in range(10)])
        with worker(broker.bootstrap_servers, "workers", "jobs") as consumer:
            for message in take(consumer, lambda got: len(got) == 10)[:6]:
                consumer.acknowledge(message)
            assert all(error is None for error in consumer.commit_sync().values())
    with Broker(data_dir=tmp_path) as broker:
        publish(broker.bootstrap_servers, "jobs", ["last"])
        with worker(broker.bootstrap_servers, "workers", "jobs") as consumer:
            accepted = work_off(consumer, lambda message: message.value() == b"last")
    assert accepted == ["6", "7", "8", "9", "last"]


def read_all(servers: str, topic: str, count: int) -> list[Message]:
    reader = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    try:
        found: list[Message] = []
        for _ in range(int(PATIENCE_SECONDS * 10)):
            message = reader.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message)
            if len(found) == count:
                return found
    finally:
        reader.close()
    raise AssertionError(f"{len(found)} of {count} came")
