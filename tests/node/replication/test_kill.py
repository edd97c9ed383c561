"""kill -9 on the real process under load: every acked record is stored once, in order."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.node.processes import BrokerProcess

TOPIC = "payments"
PARTITIONS = 3
KILLS = 4
PATIENCE_SECONDS = 60.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    running.kill()


class Load:
    """An idempotent producer with acks=all that never stops; it records the acked offsets."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.refused: list[str] = []
        self._many = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_more(self, count: int) -> None:
        """Returns when `count` more records have been acked."""
        with self._many:
            target = len(self.acked) + count
            assert self._many.wait_for(lambda: len(self.acked) >= target, PATIENCE_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                self._producer.produce(
                    TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self._delivered
                )
                number += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        with self._many:
            self.acked[message.value() or b""] = (message.partition() or 0, message.offset() or 0)
            self._many.notify_all()


def test_nothing_acked_is_lost_doubled_or_reordered_by_kill_9(process: BrokerProcess) -> None:
    chance = random.Random(9)
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_SECONDS)
    load = Load(process.bootstrap_servers)
    for _ in range(KILLS):
        load.wait_for_more(chance.randint(500, 5000))
        process.kill()
        process.start()
    load.wait_for_more(1000)
    load.stop()
    assert load.refused == []
    stored = read_all(process.bootstrap_servers)
    for value, (partition, offset) in load.acked.items():
        assert stored[partition][offset] == value
    for partition, values in stored.items():
        assert [int(value) for value in values] == sorted({int(value) for value in values}), (
            f"partition {partition}"
        )


def read_all(bootstrap_servers: str) -> dict[int, list[bytes]]:
    """Every partition's values; the index in the list is the offset."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "check", "enable.auto.commit": False}
    )
    ends = {
        index: reader.get_watermark_offsets(TopicPartition(TOPIC, index), timeout=PATIENCE_SECONDS)[1]
        for index in range(PARTITIONS)
    }
    stored: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    reader.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    while missing := sum(ends.values()) - sum(len(values) for values in stored.values()):
        batch = reader.consume(min(missing, 10_000), timeout=PATIENCE_SECONDS)
        assert batch, f"reading stopped at {[len(values) for values in stored.values()]} of {ends}"
        for message in batch:
            assert message.error() is None, message.error()
            assert message.offset() == len(stored[message.partition() or 0])
            stored[message.partition() or 0].append(message.value() or b"")
    reader.close()
    return stored


def test_groups_resume_and_topics_are_known_after_kill_9(process: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": process.bootstrap_servers, "enable.idempotence": True})
    for number in range(10):
        producer.produce("known", str(number))
    assert producer.flush(PATIENCE_SECONDS) == 0
    settings = {
        "bootstrap.servers": process.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    first = Consumer({**settings, "enable.auto.commit": False, "group.instance.id": "me"})
    first.subscribe(["known"])
    seen = first.consume(4, timeout=PATIENCE_SECONDS)
    assert len(seen) == 4
    first.commit(seen[-1], asynchronous=False)
    process.kill()
    process.start()
    second = Consumer({**settings, "group.instance.id": "me"})
    second.subscribe(["known"])
    message = second.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.offset() == 4
    first.close()
    second.close()


def test_a_clean_stop_exits_with_0_and_leaves_nothing_to_recover(process: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": process.bootstrap_servers, "enable.idempotence": True})
    producer.produce("kept", "x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert process.stop() == 0
    process.start()
    reader = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": "r"})
    assert reader.get_watermark_offsets(TopicPartition("kept", 0), timeout=PATIENCE_SECONDS) == (0, 1)
    reader.close()
