"""A producer's connection to one broker: requests and their answers, in order."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.client.errors import Garbled
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.connection import expect
from penstock.client.wire.partition_queue import Batch, PartitionQueue
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PRODUCE_VERSION_MIN: Final = 3
"""Before it, there is no record batch format v2."""
PRODUCE_VERSION_BY_NAME_MAX: Final = 12
"""From version 13 on, Produce names topics by id."""
PRODUCE_VERSION_ADDS_MIN: Final = 12
"""From it on, brokers add the partitions to the transaction (KIP-890)."""
ALL_REPLICAS: Final = -1


class Sent(NamedTuple):
    """A batch in a request, and its queue."""

    queue: PartitionQueue
    batch: Batch


class ProducerConnection:
    """A connection for this producer alone, and its requests that have no answer yet."""

    def __init__(self, node_id: int, cluster: Cluster, transactional_id: str | None = None) -> None:
        self.node_id = node_id
        self._transactional_id = transactional_id
        self.requests: deque[list[Sent]] = deque()
        self._cluster = cluster
        self._connection = cluster.lend(node_id)

    def _version(self) -> int:
        at_least = PRODUCE_VERSION_MIN if self._transactional_id is None else PRODUCE_VERSION_ADDS_MIN
        return self._connection.version_of(
            ApiKey.PRODUCE, at_least=at_least, at_most=PRODUCE_VERSION_BY_NAME_MAX
        )

    def send(self, request: list[Sent]) -> None:
        """The request counts as sent from here on, even if this fails."""
        self.requests.append(request)
        timeout_ms = self._cluster.settings.request_timeout_ms
        message = _produce_request(request, timeout_ms, self._transactional_id)
        self._connection.send(ApiKey.PRODUCE, message, version=self._version())

    def has_answer(self) -> bool:
        return bool(self.requests) and self._connection.has_answer()

    def receive(self) -> list[tuple[Sent, PartitionProduceResponse]]:
        """Each batch of the oldest request with its answer. If this fails, the request is still there."""
        pairs = _pairs(expect(self._connection.receive(), ProduceResponse), self.requests[0])
        self.requests.popleft()
        return pairs

    def close(self) -> None:
        self._cluster.give_back(self._connection)


def _produce_request(
    request: Iterable[Sent], timeout_ms: int, transactional_id: str | None
) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for queue, batch in request:
        name, index = queue.topic_partition
        topic = topics.setdefault(name, TopicProduceData(name=name, partition_data=[]))
        topic.partition_data.append(PartitionProduceData(index=index, records=batch.data))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=ALL_REPLICAS,
        timeout_ms=timeout_ms,
        topic_data=list(topics.values()),
    )


def _pairs(answer: ProduceResponse, request: list[Sent]) -> list[tuple[Sent, PartitionProduceResponse]]:
    found = {(topic.name, row.index): row for topic in answer.responses for row in topic.partition_responses}
    try:
        return [(sent, found[sent.queue.topic_partition]) for sent in request]
    except KeyError as missing:
        raise Garbled(f"Produce: the answer lacks {missing.args[0]}") from None
