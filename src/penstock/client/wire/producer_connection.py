"""A producer's connection to one broker: requests out, answers back, in order."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.client.errors import Garbled
from penstock.client.wire.cluster import Cluster
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
"""Before it there are no batches of format v2."""
PRODUCE_VERSION_BY_NAME_MAX: Final = 12
"""From version 13 on, Produce names topics by id."""
ALL_REPLICAS: Final = -1


class Sent(NamedTuple):
    """A batch in a request, and the queue that it came from."""

    queue: PartitionQueue
    batch: Batch


class Link:
    """A connection that is ours alone, and the requests on it that have no answer yet."""

    def __init__(self, node_id: int, cluster: Cluster) -> None:
        self.node_id = node_id
        self.requests: deque[list[Sent]] = deque()
        self._cluster = cluster
        self._connection = cluster.lend(node_id)

    def _version(self) -> int:
        return self._connection.version_of(
            ApiKey.PRODUCE, at_least=PRODUCE_VERSION_MIN, at_most=PRODUCE_VERSION_BY_NAME_MAX
        )

    def send(self, request: list[Sent]) -> None:
        """From here on the request counts as sent, also if this fails."""
        self.requests.append(request)
        message = _produce_request(request, self._cluster.settings.request_timeout_ms)
        self._connection.send(ApiKey.PRODUCE, message, version=self._version())

    def has_answer(self) -> bool:
        return bool(self.requests) and self._connection.has_answer()

    def receive(self) -> list[tuple[Sent, PartitionProduceResponse]]:
        """Each batch of the oldest request with its answer. If this fails, the request is still there."""
        answer = self._connection.receive()
        assert isinstance(answer, ProduceResponse)
        pairs = _pairs(answer, self.requests[0])
        self.requests.popleft()
        return pairs

    def close(self) -> None:
        self._cluster.give_back(self._connection)


def _produce_request(request: Iterable[Sent], timeout_ms: int) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for queue, batch in request:
        name, index = queue.place
        topic = topics.setdefault(name, TopicProduceData(name=name, partition_data=[]))
        topic.partition_data.append(PartitionProduceData(index=index, records=batch.data))
    return ProduceRequest(acks=ALL_REPLICAS, timeout_ms=timeout_ms, topic_data=list(topics.values()))


def _pairs(answer: ProduceResponse, request: list[Sent]) -> list[tuple[Sent, PartitionProduceResponse]]:
    found = {(topic.name, row.index): row for topic in answer.responses for row in topic.partition_responses}
    try:
        return [(sent, found[sent.queue.place]) for sent in request]
    except KeyError as missing:
        raise Garbled(f"Produce: the answer says nothing of {missing.args[0]}") from None
