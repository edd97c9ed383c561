"""First and last offsets of partitions, from their leaders: one request per node for all partitions that it leads."""

import asyncio
from collections.abc import Iterable, Mapping

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.node.calls.retry import may_repeat
from penstock.types import TopicPartition

LATEST, EARLIEST = -1, -2
"""Instead of a time."""
NOT_FOUND = -1
"""The offset of a time after the last record."""
CONSUMER = -1

Found = dict[int, int | PenstockError]
"""For each partition its offset, or the error."""


async def find_offsets(
    client: InnerClient, topic: str, partitions: Iterable[int], timestamp: int, *, patient: bool = False
) -> Found:
    """Asks once; `patient`, again while leaders are being elected."""
    retry = client.node.calls.retry()
    found: Found = {}
    missing = list(partitions)
    while True:
        found |= await _ask_all(client, topic, missing, timestamp)
        missing = [partition for partition in missing if _may_pass(found[partition])]
        if not missing or not patient or retry.is_over:
            return found
        await retry.pause()


async def find_ranges(
    client: InnerClient, topics: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, tuple[int, int]]:
    """Earliest and latest offset of those partitions whose leaders answer."""
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for topic, wanted in topics.items():
        partitions = list(wanted)
        earliest, latest = await asyncio.gather(
            find_offsets(client, topic, partitions, EARLIEST), find_offsets(client, topic, partitions, LATEST)
        )
        for partition in partitions:
            first, last = earliest[partition], latest[partition]
            if isinstance(first, int) and isinstance(last, int):
                ranges[TopicPartition(topic, partition)] = first, last
    return ranges


async def _ask_all(client: InnerClient, topic: str, partitions: Iterable[int], timestamp: int) -> Found:
    found: Found = {}
    by_leader: dict[int, list[int]] = {}
    for partition in partitions:
        try:
            by_leader.setdefault(client.leader_of(topic, partition), []).append(partition)
        except KafkaError as unknown:
            found[partition] = unknown
    asked = (_ask_one(client, to, topic, rows, timestamp) for to, rows in by_leader.items())
    for answer in await asyncio.gather(*asked):
        found |= answer
    return found


async def _ask_one(client: InnerClient, to: int, topic: str, partitions: list[int], timestamp: int) -> Found:
    rows = [ListOffsetsPartition(partition_index=one, timestamp=timestamp) for one in partitions]
    request = ListOffsetsRequest(
        replica_id=CONSUMER, topics=[ListOffsetsTopic(name=topic, partitions=rows)], timeout_ms=10_000
    )
    try:
        answer = await client.ask(ApiKey.LIST_OFFSETS, request, ListOffsetsResponse, to=to)
    except PenstockError as trouble:
        return dict.fromkeys(partitions, trouble)
    found: Found = {}
    for row in answer.topics[0].partitions:
        code = ErrorCode(row.error_code)
        message = f"{topic}-{row.partition_index}: {code.name.replace('_', ' ').lower()}"
        found[row.partition_index] = KafkaError(code, message) if code else row.offset
    return found


def _may_pass(found: int | PenstockError) -> bool:
    return isinstance(found, KafkaError) and may_repeat(found, repeatable=True)
