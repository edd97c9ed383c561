"""Reads topics as Kafka's consumers of committed records do."""

from confluent_kafka import Consumer, KafkaError, TopicPartition

PATIENCE_SECONDS = 60.0


def committed_values(servers: str, topic: str, partitions: int = 1) -> list[str]:
    """All committed values up to the last stable offset, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "audit",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    values: list[list[str]] = [[] for _ in range(partitions)]
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        left = set(range(partitions))
        while left:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, "the broker answers"
            error, partition = message.error(), message.partition() or 0
            if error is None:
                values[partition].append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(partition)
    finally:
        consumer.close()
    return [value for some in values for value in some]
