"""Programs that consume, transform and produce with each of Python's clients; tests kill them.

Each reads orders and writes invoices, some at a time, and commits its place among the orders in the same transaction.
After an error of the client its process starts over, without closing anything: with another producer of the same
transactional id, from the committed offset on. It prints how many orders are done.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
from kafka.structs import OffsetAndMetadata

from tests.faults.clients import settings
from tests.faults.waiting import PATIENCE_SECONDS

SOURCE, RESULTS, GROUP, TRANSACTIONAL_ID = "orders", "invoices", "billing", "billing-1"
PARTITIONS = 2
AT_ONCE = 5
"""Messages of one transaction: many small transactions, so that a kill finds one in every phase."""
TIMEOUT_MS = 30_000
PAUSE_SECONDS = 0.1

Bill = Callable[[str, int], None]
"""Takes the bootstrap servers and the number of orders, and returns when all are done. Raises errors of the client."""


def say(done: int) -> None:
    sys.stdout.write(f"{done}\n")
    sys.stdout.flush()


# --- confluent-kafka


def bill_with_confluent_kafka(servers: str, orders: int) -> None:
    # If all brokers are away, librdkafka begins again with its bootstrap servers, and may then wait for ever for the
    # coordinator that it forgot.
    basis = settings(servers, metadata_recovery_strategy="none")
    consumer = confluent_kafka.Consumer(
        {**basis, "group.id": GROUP, "enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    producer = confluent_kafka.Producer(
        {**basis, "transactional.id": TRANSACTIONAL_ID, "transaction.timeout.ms": TIMEOUT_MS}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    [place] = consumer.committed([confluent_kafka.TopicPartition(SOURCE, 0)], PATIENCE_SECONDS)
    at = max(place.offset, 0)
    consumer.assign([confluent_kafka.TopicPartition(SOURCE, 0, at)])
    say(at)
    while at < orders:
        found = [one for one in consumer.consume(AT_ONCE, 1.0) if one.error() is None]
        if not found:
            continue
        producer.begin_transaction()
        for one in found:
            producer.produce(RESULTS, one.value(), partition=(one.offset() or 0) % PARTITIONS)
        at = (found[-1].offset() or 0) + 1
        places = [confluent_kafka.TopicPartition(SOURCE, 0, at)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
        producer.commit_transaction(PATIENCE_SECONDS)
        say(at)


# --- aiokafka


def bill_with_aiokafka(servers: str, orders: int) -> None:
    asyncio.run(_bill_with_aiokafka(servers, orders))


async def _bill_with_aiokafka(servers: str, orders: int) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=servers, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=TIMEOUT_MS
    )
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=GROUP,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await producer.start()
    await consumer.start()
    partition = aiokafka.TopicPartition(SOURCE, 0)
    consumer.assign([partition])
    at = await consumer.committed(partition) or 0
    consumer.seek(partition, at)
    say(at)
    while at < orders:
        found = (await consumer.getmany(partition, timeout_ms=1000, max_records=AT_ONCE)).get(partition, [])
        if not found:
            continue
        async with producer.transaction():
            for one in found:
                await producer.send(RESULTS, one.value, partition=one.offset % PARTITIONS)
            await producer.send_offsets_to_transaction({partition: found[-1].offset + 1}, GROUP)
        at = found[-1].offset + 1
        say(at)


# --- kafka-python


def bill_with_kafka_python(servers: str, orders: int) -> None:
    partition = kafka.TopicPartition(SOURCE, 0)
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers.split(","),
        transactional_id=TRANSACTIONAL_ID,
        transaction_timeout_ms=TIMEOUT_MS,
        max_block_ms=int(PATIENCE_SECONDS * 1000),
    )
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers.split(","),
        group_id=GROUP,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer.init_transactions()
    consumer.assign([partition])
    at = consumer.committed(partition) or 0
    consumer.seek(partition, at)
    say(at)
    while at < orders:
        found = consumer.poll(timeout_ms=1000, max_records=AT_ONCE).get(partition, [])
        if not found:
            continue
        producer.begin_transaction()
        for one in found:
            producer.send(RESULTS, one.value, partition=one.offset % PARTITIONS)
        at = found[-1].offset + 1
        producer.send_offsets_to_transaction({partition: OffsetAndMetadata(at, "", -1)}, GROUP)
        producer.commit_transaction()
        say(at)


CLIENTS: dict[str, tuple[Bill, type[Exception]]] = {
    "confluent-kafka": (bill_with_confluent_kafka, confluent_kafka.KafkaException),
    "aiokafka": (bill_with_aiokafka, aiokafka.errors.KafkaError),
    "kafka-python": (bill_with_kafka_python, kafka.errors.KafkaError),
}
"""Each with the errors after which it starts over."""


def main(client: str, servers: str, orders: int) -> None:
    bill, problem = CLIENTS[client]
    try:
        bill(servers, orders)
    except problem as met:
        sys.stderr.write(f"starts over: {met!r}\n")
        time.sleep(PAUSE_SECONDS)
        os.execv(sys.executable, sys.orig_argv)
