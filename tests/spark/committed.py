"""What a reader of committed records sees of a topic."""

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, TopicPartition

PATIENCE_SECONDS = 60.0


def committed_values(servers: str, topic: str, partitions: int) -> list[str]:
    """The values of all committed records. Waits for the markers of transactions that have been decided already."""
    everything = [TopicPartition(topic, index, 0) for index in range(partitions)]
    with closing(_consumer(servers, "read_uncommitted")) as consumer:
        ends = {tp.partition: consumer.get_watermark_offsets(tp, PATIENCE_SECONDS)[1] for tp in everything}
    with closing(_consumer(servers, "read_committed")) as consumer:
        consumer.assign(everything)
        return _read_to(consumer, ends)


def committed_from(servers: str, tp: tuple[str, int], offset: int) -> list[int]:
    """The numbers with which committed values of a partition begin, from an offset on."""
    topic, partition = tp
    with closing(_consumer(servers, "read_uncommitted")) as consumer:
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_SECONDS)[1]
    with closing(_consumer(servers, "read_committed")) as consumer:
        consumer.assign([TopicPartition(topic, partition, offset)])
        return [int(value[:8]) for value in _read_to(consumer, {partition: end})]


def _consumer(servers: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )


def _read_to(consumer: Consumer, ends: dict[int, int]) -> list[str]:
    """A partition's end is told with the offset up to which its transactions have ended."""
    values: list[str] = []
    waiting = set(ends)
    while waiting:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, f"the partitions {waiting} have open transactions"
        error = message.error()
        if error is None:
            values.append(message.value().decode())
        elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
            waiting.discard(message.partition())
    return values
