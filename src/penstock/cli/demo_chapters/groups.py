"""librdkafka produces, a consumer group reads, and its lag is visible half way."""

import time

from confluent_kafka import Consumer
from confluent_kafka.admin import OffsetSpec

from penstock.cli import group_facts
from penstock.cli.demo_chapters.numbered import send
from penstock.cli.demo_chapters.start import PARTITIONS, TOPIC
from penstock.cli.demo_stage import Stage
from penstock.cli.output import table
from penstock.cli.problem import Problem
from penstock.cli.topic_facts import offsets_at

GROUP = "billing"
SIZE_BYTES = 100
CUSTOMERS = 1000
"""Keys, so that the partitions fill evenly: without any, librdkafka stays with one partition for a while."""
CHUNK = 5000
TIMEOUT_S = 30.0


def play(stage: Stage) -> None:
    stage.chapter("Produce and consume (librdkafka)")
    with stage.working(f"producing {stage.messages:,} messages"):
        seconds = _produce(stage)
    rate = stage.messages / seconds
    stage.say(
        f"{stage.messages:,} messages of {SIZE_BYTES} B acknowledged, all on disk: {rate:,.0f} a second"
    )
    stage.figure("produced_per_second", "produced, acks=all and flushed, messages/s", rate)
    with stage.working("consuming"):
        half = stage.messages // 2
        _consume(stage, half)
        _show_lag(stage)
        seconds = _consume(stage, stage.messages - half)
    rate = (stage.messages - half) / seconds
    stage.say(f"group {GROUP} read the rest from where it had committed: {rate:,.0f} a second")
    stage.figure("consumed_per_second", "consumed by a group that joins first, messages/s", rate)


def _produce(stage: Stage) -> float:
    producer = stage.connection.producer(acks="all", enable_idempotence=True, linger_ms=5)
    value = b"x" * SIZE_BYTES
    began = time.perf_counter()
    for number in range(stage.messages):
        send(producer, TOPIC, value, str(number % CUSTOMERS).encode())
    if producer.flush(TIMEOUT_S):
        raise Problem("not every message was acknowledged in time")
    return time.perf_counter() - began


def _consume(stage: Stage, wanted: int) -> float:
    """A member joins, reads `wanted` messages, commits and leaves. All of it counts."""
    began = time.perf_counter()
    consumer: Consumer = stage.connection.consumer(
        group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False, enable_auto_offset_store=False
    )
    consumer.subscribe([TOPIC])
    got = 0
    try:
        while got < wanted:
            messages = [each for each in consumer.consume(min(CHUNK, wanted - got), 0.5) if not each.error()]
            got += len(messages)
            for message in {message.partition(): message for message in messages}.values():
                consumer.store_offsets(message)  # the last one of each partition
            if time.perf_counter() - began > TIMEOUT_S:
                raise Problem(f"group {GROUP} got only {got:,} of {wanted:,} messages in {TIMEOUT_S:.0f} s")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return time.perf_counter() - began


def _show_lag(stage: Stage) -> None:
    admin = stage.connection.admin()
    read = group_facts.committed(stage.connection, admin, GROUP)
    places = [(TOPIC, number) for number in range(PARTITIONS)]
    ends = offsets_at(stage.connection, admin, places, OffsetSpec.latest())
    left = sum(ends[place] - read.get(place, 0) for place in places)
    stage.say(f"half way, group {GROUP} is {left:,} messages behind:")
    rows = [[*place, read.get(place), ends[place] - read.get(place, 0)] for place in places]
    numbers = ("partition", "committed", "lag")
    stage.show(table("topic", *numbers, rows=rows, numbers=numbers))
