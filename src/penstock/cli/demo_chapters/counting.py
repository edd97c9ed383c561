"""What a topic holds in the end, counted."""

import time
from collections import Counter

from confluent_kafka import TopicPartition

from penstock.cli.connection import Connection

PATIENCE_S = 45.0


def read_numbers(connection: Connection, topic: str, partitions: int) -> Counter[int]:
    """The numbers that a topic's messages have as keys, and how often each is there."""
    consumer = connection.consumer(group_id="demo-count", enable_auto_commit=False)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    left = sum(consumer.get_watermark_offsets(where)[1] for where in places)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    stored: Counter[int] = Counter()
    deadline = time.perf_counter() + PATIENCE_S
    while left > 0 and time.perf_counter() < deadline:
        messages = [each for each in consumer.consume(min(10_000, left), 0.5) if not each.error()]
        stored.update(int(message.key() or b"0") for message in messages)
        left -= len(messages)
    consumer.close()
    return stored
