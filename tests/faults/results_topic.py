"""A topic to which programs write in transactions, as a reader of committed records sees it."""

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.faults.clients import settings
from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS, eventually

WATERMARK_SECONDS = 2.0


class ResultsTopic:
    def __init__(self, cluster: Cluster, name: str, partitions: int) -> None:
        self._servers = cluster.bootstrap_servers
        self._places = [TopicPartition(name, index, 0) for index in range(partitions)]
        self._observer = Consumer(settings(self._servers, group_id="audit"))
        self._end = 0

    def wait_for_more(self, count: int) -> None:
        """Returns when the partitions have grown by so many offsets together."""
        self._grow()
        wanted = self._end + count
        eventually(lambda: self._grow() >= wanted, "more results", 3 * PATIENCE_SECONDS)

    def _grow(self) -> int:
        """The largest sum of last stable offsets that was seen so far: a leader may be away now."""
        try:
            ends = [self._observer.get_watermark_offsets(each, WATERMARK_SECONDS)[1] for each in self._places]
        except KafkaException:
            return self._end
        self._end = max(self._end, sum(ends))
        return self._end

    def read(self) -> list[list[Message]]:
        """The committed records of each partition, up to its last stable offset."""
        more = {"isolation_level": "read_committed", "enable_partition_eof": True}
        consumer = Consumer(settings(self._servers, group_id="audit", **more))
        found: list[list[Message]] = [[] for _ in self._places]
        at_end = set[int]()
        try:
            consumer.assign(self._places)
            while len(at_end) < len(self._places):
                message = consumer.poll(PATIENCE_SECONDS)
                assert message is not None
                error = message.error()
                if error is None:
                    found[message.partition() or 0].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition() or 0)
        finally:
            consumer.close()
        return found

    def wait_for_records(self, count: int) -> list[list[Message]]:
        """All of them, once there are so many: the last markers are written after the commit was answered."""
        eventually(lambda: sum(map(len, self.read())) >= count, f"{count} results", 3 * PATIENCE_SECONDS)
        return self.read()
