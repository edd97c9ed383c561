"""Batches that are appended to partitions unchanged, and the records of fetched ranges."""

from collections.abc import Iterable, Iterator

from penstock.batch import Record, build_batch, iter_headers, read_records
from penstock.client.wire import Cluster
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.types import TopicPartition

PRODUCE_VERSION_BY_NAME_MAX = 12


def make_batch(values: Iterable[bytes], *, compression: int = 0, timestamp: int = 1_000) -> bytes:
    records = [Record(index, timestamp + index, None, value) for index, value in enumerate(values)]
    return build_batch(records, compression=compression)


def append(cluster: Cluster, tp: TopicPartition, *batches: bytes) -> None:
    """Each batch in a request of its own, acked by all."""
    connection = cluster.connect_once(cluster.leader_of(tp))
    version = connection.version_of(ApiKey.PRODUCE, at_most=PRODUCE_VERSION_BY_NAME_MAX)
    for batch in batches:
        data = PartitionProduceData(index=tp.partition, records=batch)
        topic = TopicProduceData(name=tp.topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])
        answer = connection.call(ApiKey.PRODUCE, request, version=version)
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def append_numbers(cluster: Cluster, tp: TopicPartition, count: int, *, per_batch: int = 10) -> None:
    """Values 0, 1, 2, ... which are also the offsets of a fresh partition."""
    for first in range(0, count, per_batch):
        append(
            cluster,
            tp,
            make_batch(b"%d" % n for n in range(first, min(first + per_batch, count))),
        )


def records_of(chunks: Iterable[bytes]) -> Iterator[Record]:
    """All records, with the proof that chunks hold whole batches and nothing else."""
    for chunk in chunks:
        assert type(chunk) is bytes
        end = 0
        for position, header in iter_headers(chunk):
            yield from read_records(chunk, position)
            end = position + header.size
        assert end == len(chunk)


def offsets_of(chunks: Iterable[bytes]) -> list[int]:
    return [record.offset for record in records_of(chunks)]
