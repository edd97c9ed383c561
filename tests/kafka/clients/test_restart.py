"""A broker that restarts on the same port with the same folder: clients continue at their positions."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from penstock import Broker
from tests.ports import free_port

PATIENCE_SECONDS = 60.0
FAST: dict[str, object] = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
Start = Callable[[], AbstractContextManager[Broker]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the broker, again and again, on one port and one folder."""
    address = f"127.0.0.1:{free_port()}"
    return lambda: Broker(data_dir=tmp_path / "data", kafka=address, http=None)


def next_message(reader: Consumer) -> Message:
    """The next message. Ignores events about an unreachable broker."""
    for _ in range(int(PATIENCE_SECONDS * 10)):
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            return message
    raise AssertionError("nothing arrived")


@pytest.mark.parametrize("static", [False, True])
def test_librdkafka_continues_under_each_new_leader_epoch(start: Start, static: bool) -> None:
    with start() as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers, **FAST}
        settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        reader = Consumer({**servers, **settings, **({"group.instance.id": "me"} if static else {})})
        writer = Producer({**servers, "enable.idempotence": True})
        reader.subscribe(["t"])
        writer.produce("t", b"0")
        assert writer.flush(PATIENCE_SECONDS) == 0
        seen = [next_message(reader)]
        reader.commit(asynchronous=False)
    for life in (1, 2):
        with start():
            writer.produce("t", str(life).encode())
            assert writer.flush(PATIENCE_SECONDS) == 0
            seen.append(next_message(reader))
    with start():
        reader.commit(asynchronous=False)
        [committed] = reader.committed([TopicPartition("t", 0)], timeout=PATIENCE_SECONDS)
        reader.close()
    assert [(message.offset(), message.value()) for message in seen] == [(0, b"0"), (1, b"1"), (2, b"2")]
    epochs = [message.leader_epoch() or 0 for message in seen]
    assert all(older < newer for older, newer in itertools.pairwise(epochs))
    assert (committed.offset, committed.leader_epoch) == (3, epochs[-1])


def test_an_idempotent_producer_repeats_nothing_and_loses_nothing(start: Start) -> None:
    acked: list[int | None] = []
    with start() as broker:
        writer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                **FAST,
            }
        )
        numbers = itertools.count()
        for _ in range(500):
            writer.produce(
                "t", str(next(numbers)).encode(), on_delivery=lambda _, sent: acked.append(sent.offset())
            )
        writer.poll(0)
    for _ in range(500):  # the broker is down, perhaps with requests that were never answered
        writer.produce(
            "t", str(next(numbers)).encode(), on_delivery=lambda _, sent: acked.append(sent.offset())
        )
    with start() as broker:
        assert writer.flush(PATIENCE_SECONDS) == 0
        assert acked == list(range(1000))
        reader = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        reader.subscribe(["t"])
        assert [next_message(reader).value() for _ in range(1000)] == [b"%d" % n for n in range(1000)]
        reader.close()


def test_aiokafka_continues(start: Start) -> None:
    async def scenario() -> None:
        broker = start().__enter__()
        servers = broker.bootstrap_servers
        quick = {"bootstrap_servers": servers, "retry_backoff_ms": 50}
        producer = AIOKafkaProducer(enable_idempotence=True, **quick)
        consumer = AIOKafkaConsumer("t", group_id="g", auto_offset_reset="earliest", **quick)
        await producer.start()
        await producer.send_and_wait("t", b"0")
        await consumer.start()
        try:
            values = [(await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).value]
            for life in (b"1", b"2"):
                broker.close()
                broker = start().__enter__()
                await asyncio.wait_for(producer.send_and_wait("t", life), PATIENCE_SECONDS)
                values.append((await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS)).value)
        finally:
            await consumer.stop()
            await producer.stop()
            broker.close()
        assert values == [b"0", b"1", b"2"]

    asyncio.run(scenario())


def test_kafka_python_continues(start: Start) -> None:
    with start() as broker:
        quick = {"bootstrap_servers": broker.bootstrap_servers, "reconnect_backoff_max_ms": 200}
        producer = KafkaProducer(enable_idempotence=True, retries=1000, **quick)
        producer.send("t", b"0").get(timeout=PATIENCE_SECONDS)
        consumer = KafkaConsumer(
            "t",
            group_id="g",
            auto_offset_reset="earliest",
            consumer_timeout_ms=int(PATIENCE_SECONDS * 1000),
            **quick,
        )
        values = [next(consumer).value]
    for life in (b"1", b"2"):
        with start():
            producer.send("t", life).get(timeout=PATIENCE_SECONDS)
            values.append(next(consumer).value)
    assert values == [b"0", b"1", b"2"]
    with start():
        consumer.close()
        producer.close()
