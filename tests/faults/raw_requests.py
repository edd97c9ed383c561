"""Single requests to a chosen node, which no well-behaved client would send."""

from typing import NamedTuple, TypeVar

from penstock.batch import Record, build_batch
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.kafka.raw import RawClient

PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, INIT_VERSION = 9, 12, 6, 4
LATEST = -1
TIME_MS = 1_700_000_000_000

T = TypeVar("T", bound=Message)


class Answer(NamedTuple):
    """An error code, and the offset that came with it."""

    error: int
    offset: int


class ProducerState(NamedTuple):
    """Producer id of an idempotent producer, and the sequence of its batch."""

    producer_id: int
    sequence: int


NOT_IDEMPOTENT = ProducerState(-1, -1)


def produce_request(topic: str, value: bytes, producer: ProducerState = NOT_IDEMPOTENT) -> ProduceRequest:
    """One record to partition 0, acks=all."""
    batch = build_batch(
        [Record(0, TIME_MS, None, value)],
        producer_id=producer.producer_id,
        producer_epoch=0 if producer.producer_id >= 0 else -1,
        base_sequence=producer.sequence,
    )
    data = PartitionProduceData(index=0, records=bytearray(batch))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)


def list_latest_request(topic: str) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])


def fetch_request(topic: str, offset: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)


def produced(client: RawClient) -> Answer:
    """The next response, which is to a produce request."""
    answer = _next(client, ProduceResponse, ApiKey.PRODUCE, PRODUCE_VERSION)
    row = answer.responses[0].partition_responses[0]
    return Answer(row.error_code, row.base_offset)


def listed(client: RawClient) -> Answer:
    row = (
        _next(client, ListOffsetsResponse, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION).topics[0].partitions[0]
    )
    return Answer(row.error_code, row.offset)


def fetched(client: RawClient) -> Answer:
    row = _next(client, FetchResponse, ApiKey.FETCH, FETCH_VERSION).responses[0].partitions[0]
    return Answer(row.error_code, row.high_watermark)


def produce(client: RawClient, topic: str, value: bytes, producer: ProducerState = NOT_IDEMPOTENT) -> Answer:
    client.request(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, value, producer))
    return produced(client)


def list_latest(client: RawClient, topic: str) -> Answer:
    client.request(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, list_latest_request(topic))
    return listed(client)


def new_producer_id(client: RawClient) -> int:
    client.request(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, InitProducerIdRequest())
    return _next(client, InitProducerIdResponse, ApiKey.INIT_PRODUCER_ID, INIT_VERSION).producer_id


def _next(client: RawClient, kind: type[T], api_key: int, version: int) -> T:
    _, answer = client.answer(api_key, version)
    assert isinstance(answer, kind)
    return answer
