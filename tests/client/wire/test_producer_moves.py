"""Partitions that move from broker to broker while a producer writes to them, and brokers that never come back."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from penstock.batch import Record
from penstock.client.wire import Cluster
from penstock.client.wire.produce_results import DeliveryTimedOut
from penstock.client.wire.producer import BatchProducer
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.kafka.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.client.wire.conftest import impatient
from tests.client.wire.fake import TOPIC, Answer, FakeBroker, Request
from tests.client.wire.test_producer_faults import FakeLog, answered, send, values

IDENTITY = InitProducerIdResponse(producer_id=5, producer_epoch=0)


class MovingPartition:
    """One partition that moves to the other of two brokers after every `stay` requests that it has answered."""

    def __init__(self, stay: int) -> None:
        self.log = FakeLog()
        self.moves = 0
        self._stay = stay
        self._left = stay
        self._leader = 0
        self._brokers: list[FakeBroker] = []

    def add_broker(self) -> FakeBroker:
        me = len(self._brokers)
        handlers = {
            ApiKey.METADATA: lambda _: self._metadata(),
            ApiKey.PRODUCE: lambda request: self._produce(me, request),
            ApiKey.INIT_PRODUCER_ID: lambda _: IDENTITY,
        }
        broker = FakeBroker(handlers)
        self._brokers.append(broker)
        return broker

    def _metadata(self) -> Message:
        brokers = [
            MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
            for node_id, broker in enumerate(self._brokers)
        ]
        partition = MetadataResponsePartition(partition_index=0, leader_id=self._leader)
        topic = MetadataResponseTopic(name=TOPIC, partitions=[partition])
        return MetadataResponse(brokers=brokers, controller_id=0, topics=[topic])

    def _produce(self, me: int, request: Request) -> Answer:
        if me != self._leader:
            return answered(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        answer = self.log.produce(request)
        self._left -= 1
        if not self._left:
            self._left = self._stay
            self._leader = 1 - me
            self.moves += 1
        return answer


@contextmanager
def moving(stay: int) -> Iterator[tuple[MovingPartition, Cluster]]:
    partition = MovingPartition(stay)
    with ExitStack() as stack:
        first, _second = (stack.enter_context(partition.add_broker()) for _ in range(2))
        settings = impatient(first.address, retry_backoff_ms=1)
        yield partition, stack.enter_context(Cluster(settings))


@pytest.mark.parametrize("stay", [1, 2, 3, 7])
def test_a_partition_that_moves_all_the_time_gets_each_record_once_and_in_order(stay: int) -> None:
    with moving(stay) as (partition, cluster), BatchProducer(cluster, max_request_bytes=2_000) as producer:
        send(producer, values(60))
        producer.flush()
        assert partition.moves >= 40 // stay - 1
        assert partition.log.values == values(60)


def test_a_broker_that_never_comes_back_ends_in_an_error_that_says_so() -> None:
    handlers = {ApiKey.INIT_PRODUCER_ID: lambda _: IDENTITY}
    with FakeBroker(handlers) as broker, Cluster(impatient(broker.address, retry_for_ms=0)) as cluster:
        producer = BatchProducer(cluster, delivery_timeout_ms=2000)
        assert producer.partitions_of(TOPIC) == 1
        producer.send_records(TOPIC, 0, [Record(0, 1_000, None, b"x")])
    with pytest.raises(
        DeliveryTimedOut, match=r"fake-0: 1 records .*delivery_timeout_ms=2000.*Connection refused"
    ):
        producer.flush()
