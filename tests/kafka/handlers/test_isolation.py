"""Readers are bounded by their isolation level. Without transactions both bounds are the same, so these tests
put the last stable offset at 2 of 3 records."""

import pytest

from penstock.batch import iter_headers
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.node import Partition
from penstock.types import Isolation, Offset
from tests.kafka.handlers.test_apis import TIME_MS, Unique, ask, client, create, produce, record
from tests.kafka.raw import RawClient

__all__ = ["client"]

LATEST, MAX_TIMESTAMP = -1, -3
STABLE = Offset(2)


@pytest.fixture
def topic(client: RawClient, unique: Unique, monkeypatch: pytest.MonkeyPatch) -> str:
    name = unique("isolation")
    create(client, name)
    for number in range(3):
        produce(client, name, record(time_ms=TIME_MS + number))

    def end_for(partition: Partition, isolation: Isolation) -> Offset:
        is_stable = isolation is Isolation.READ_COMMITTED and partition.name.topic == name
        return STABLE if is_stable else partition.high_watermark

    monkeypatch.setattr(Partition, "end_for", end_for)
    return name


@pytest.mark.parametrize(("level", "end"), [(0, 3), (1, 2), (2, 2)])
def test_fetch_returns_records_below_the_end_of_its_isolation(
    client: RawClient, topic: str, level: int, end: int
) -> None:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=level,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    row = ask(client, FetchResponse, ApiKey.FETCH, 12, request).responses[0].partitions[0]
    assert [header.next_offset for _, header in iter_headers(bytes(row.records or b""))][-1] == end
    assert (row.high_watermark, row.last_stable_offset) == (3, 2)


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP])
@pytest.mark.parametrize(("level", "end"), [(0, 3), (1, 2)])
def test_list_offsets_looks_below_the_end_of_its_isolation(
    client: RawClient, topic: str, level: int, end: int, timestamp: int
) -> None:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        isolation_level=level, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
    )
    row = ask(client, ListOffsetsResponse, ApiKey.LIST_OFFSETS, 9, request).topics[0].partitions[0]
    assert row.error_code == ErrorCode.NONE
    assert row.offset == (end if timestamp == LATEST else end - 1)
