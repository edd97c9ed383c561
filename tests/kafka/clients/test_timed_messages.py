"""Messages with headers for delay and expiry, from an unmodified producer."""

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer

from penstock import Broker
from tests.kafka.clients.queues import PATIENCE_SECONDS, configure, publish, take, work_off, worker


def send(servers: str, topic: str, rows: list[tuple[str, dict[str, str]]]) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for value, headers in rows:
        producer.produce(topic, value.encode(), headers=list(headers.items()))
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_delayed_message_is_delivered_when_it_is_due_and_not_before(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topic, group, servers = unique("jobs"), unique("workers"), broker.bootstrap_servers
    configure(servers, group, share_auto_offset_reset="earliest")
    due_ms = now_ms() + 2000
    rows: list[tuple[str, dict[str, str]]] = [
        ("at", {"penstock-deliver-at": str(due_ms)}),
        ("delay", {"penstock-delay-ms": "2000"}),
        ("now", {}),
        ("nonsense", {"penstock-delay-ms": "soon"}),
    ]
    send(servers, topic, rows)
    with worker(servers, group, topic) as consumer:
        arrived_ms: dict[bytes | None, int] = {}
        while len(arrived_ms) < len(rows):
            for message in take(consumer, lambda got: bool(got)):
                arrived_ms[message.value()] = now_ms()
                consumer.acknowledge(message)
    assert arrived_ms.keys() == {b"at", b"delay", b"now", b"nonsense"}
    assert min(arrived_ms[b"at"], arrived_ms[b"delay"]) >= due_ms


def test_readers_and_consumer_groups_ignore_delay_and_expiry(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topic, servers = unique("jobs"), broker.bootstrap_servers
    send(servers, topic, [("later", {"penstock-delay-ms": "600000"}), ("gone", {"penstock-ttl-ms": "1"})])
    reader = Consumer(
        {"bootstrap.servers": servers, "group.id": unique("g"), "auto.offset.reset": "earliest"}
    )
    reader.subscribe([topic])
    seen: list[Message] = []
    while len(seen) < 2:
        message = reader.poll(PATIENCE_SECONDS)
        assert message is not None
        seen.append(message)
    reader.close()
    assert [message.value() for message in seen] == [b"later", b"gone"]


def test_an_expired_message_is_not_delivered(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group, servers = unique("jobs"), unique("workers"), broker.bootstrap_servers
    configure(servers, group, share_auto_offset_reset="earliest")
    long_ago = now_ms() - 60_000
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    producer.produce(topic, b"stale", timestamp=long_ago, headers=[("penstock-ttl-ms", b"59000")])
    producer.produce(topic, b"fresh", timestamp=long_ago, headers=[("penstock-ttl-ms", b"600000")])
    assert producer.flush(PATIENCE_SECONDS) == 0
    publish(servers, topic, ["last"])
    with worker(servers, group, topic) as consumer:
        assert work_off(consumer, lambda message: message.value() == b"last") == ["fresh", "last"]


def test_scheduled_messages_survive_a_restart_none_lost_and_none_early(tmp_path: Path) -> None:
    count = 5000
    for delay_ms in (3000, 20_000, 120_000):  # a busy machine may need longer until all are published
        folder = tmp_path / str(delay_ms)
        with Broker(data_dir=folder) as broker:
            servers = broker.bootstrap_servers
            configure(servers, "workers", share_auto_offset_reset="earliest")
            due_ms = now_ms() + delay_ms
            rows = [(str(one), {"penstock-deliver-at": str(due_ms + one % 100)}) for one in range(count)]
            send(servers, "jobs", rows)
            publish(servers, "jobs", ["now"])
            with worker(servers, "workers", "jobs") as consumer:
                first = work_off(consumer, lambda message: message.value() == b"now")
        if now_ms() < due_ms:
            break
    assert first == ["now"]
    with Broker(data_dir=folder) as broker:
        got: list[str] = []
        with worker(broker.bootstrap_servers, "workers", "jobs") as consumer:
            while now_ms() < due_ms - 10_000:
                assert not consumer.poll(1.0)
            while len(got) < count:
                messages = take(consumer, lambda found: bool(found))
                assert now_ms() >= due_ms
                got += [(message.value() or b"").decode() for message in messages]
                for message in messages:
                    consumer.acknowledge(message)
                consumer.commit_sync()
    assert sorted(got, key=int) == [str(number) for number in range(count)]
