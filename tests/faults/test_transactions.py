"""Consume, transform, produce in transactions while nodes are killed: every message has exactly one result."""

import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.groups import offsets_partition
from tests.faults.clients import create_topic, leader_of, settings
from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS, eventually

SOURCE, RESULTS, GROUP, TRANSACTIONAL_ID = "orders", "invoices", "billing", "billing-1"
PARTITIONS = 2
COORDINATORS = 4
MESSAGES = 600
AT_ONCE = 5
"""Messages of one transaction: many small transactions, so that a kill finds one in every phase."""


class Biller(threading.Thread):
    """Reads orders and writes invoices. After any error it starts over, as a program that was restarted would: with
    another producer of the same transactional id, from the committed offset on."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._servers = cluster.bootstrap_servers
        self._done = 0
        self._progress = threading.Condition()
        self._stopped = threading.Event()

    def wait_for(self, count: int) -> None:
        with self._progress:
            assert self._progress.wait_for(lambda: self._done >= count, 3 * PATIENCE_SECONDS)

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        while self._done < MESSAGES and not self._stopped.is_set():
            consumer = Consumer(
                settings(
                    self._servers, group_id=GROUP, enable_auto_commit=False, isolation_level="read_committed"
                )
            )
            try:
                self._bill(consumer)
            except KafkaException:
                pass  # the next producer ends what this one has begun
            finally:
                consumer.close()

    def _bill(self, consumer: Consumer) -> None:
        producer = Producer(
            settings(self._servers, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=30_000)
        )
        producer.init_transactions(PATIENCE_SECONDS)
        [position] = consumer.committed([TopicPartition(SOURCE, 0)], PATIENCE_SECONDS)
        at = max(position.offset, 0)
        consumer.assign([TopicPartition(SOURCE, 0, at)])
        while at < MESSAGES and not self._stopped.is_set():
            at = self._bill_some(producer, consumer, at)
            with self._progress:
                self._done = at
                self._progress.notify_all()

    def _bill_some(self, producer: Producer, consumer: Consumer, at: int) -> int:
        messages = [one for one in consumer.consume(AT_ONCE, 1.0) if one.error() is None]
        if not messages:
            return at
        producer.begin_transaction()
        for message in messages:
            producer.produce(RESULTS, message.value(), partition=message.offset() % PARTITIONS)
        at = messages[-1].offset() + 1
        positions = [TopicPartition(SOURCE, 0, at)]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
        producer.commit_transaction(PATIENCE_SECONDS)
        return at


def fill(cluster: Cluster) -> None:
    producer = Producer(settings(cluster.bootstrap_servers, enable_idempotence=True))
    for number in range(MESSAGES):
        producer.produce(SOURCE, str(number))
    assert producer.flush(PATIENCE_SECONDS) == 0


def results(cluster: Cluster) -> list[int]:
    """All committed ones, in the order of each partition."""
    consumer = Consumer(
        settings(
            cluster.bootstrap_servers,
            group_id="audit",
            isolation_level="read_committed",
            enable_partition_eof=True,
        )
    )
    found: list[int] = []
    try:
        consumer.assign([TopicPartition(RESULTS, index, 0) for index in range(PARTITIONS)])
        at_end = set[int]()
        while len(at_end) < PARTITIONS:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            if is_end(message):
                at_end.add(message.partition() or 0)
            elif message.error() is None:
                found.append(int(message.value() or b""))
    finally:
        consumer.close()
    return found


def is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


@pytest.mark.long
def test_every_message_has_one_result_although_coordinators_and_leaders_are_killed(tmp_path: Path) -> None:
    flags = [
        "--set",
        f"transactions.topic_partitions={COORDINATORS}",
        "--set",
        "groups.offsets_topic_partitions=4",
    ]
    with Cluster(tmp_path, flags=flags) as cluster:
        create_topic(cluster, SOURCE)
        create_topic(cluster, RESULTS, PARTITIONS)
        fill(cluster)
        biller = Biller(cluster)
        biller.start()
        try:
            biller.wait_for(50)
            index = offsets_partition(TRANSACTIONAL_ID, COORDINATORS)
            for share, (topic, partition) in enumerate([("__transaction_state", index), (RESULTS, 0)], 1):
                victim = cluster[leader_of(cluster, topic, partition)]
                victim.kill()
                biller.wait_for(200 * share)
                victim.start()
                victim.wait_ready()
            biller.wait_for(MESSAGES)
        finally:
            biller.stop()
        # The markers of the last transaction come after its commit was answered.
        eventually(lambda: len(results(cluster)) >= MESSAGES, "the results of the last transaction")
        found = results(cluster)
        assert sorted(found) == list(range(MESSAGES))
        for index in range(PARTITIONS):
            of_partition = [number for number in found if number % PARTITIONS == index]
            assert of_partition == sorted(of_partition)
        assert not cluster.bugs()
