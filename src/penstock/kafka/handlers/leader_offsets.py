"""First and last offsets of partitions, from their leaders: one request per node for all partitions that it leads."""

import asyncio
from collections.abc import Iterable

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
from penstock.types import Isolation

LATEST, EARLIEST = -1, -2
"""These ask for the ends of a log instead of the offset of a time."""
NOT_FOUND = -1
"""The offset of a time after the last record."""
CONSUMER = -1

Found = dict[int, int | PenstockError]
"""For each partition its offset, or the error."""


async def get_offsets(
    client: InnerClient,
    topic: str,
    partitions: Iterable[int],
    timestamp: int,
    isolation: Isolation,
) -> dict[int, int]:
    """Asks again while leaders are being elected. Raises the error of a partition whose leader gives no offset."""
    retry = client.node.calls.retry()
    offsets: dict[int, int] = {}
    missing = list(partitions)
    while missing:
        found = await find_offsets(client, topic, missing, timestamp, isolation)
        for partition, offset in found.items():
            if isinstance(offset, int):
                offsets[partition] = offset
            elif retry.is_over or not _may_pass(offset):
                raise offset
        missing = [partition for partition in missing if partition not in offsets]
        if missing:
            await retry.pause()
    return offsets


async def find_offsets(
    client: InnerClient,
    topic: str,
    partitions: Iterable[int],
    timestamp: int,
    isolation: Isolation,
) -> Found:
    """Asks each leader once."""
    found: Found = {}
    by_leader: dict[int, list[int]] = {}
    for partition in partitions:
        try:
            by_leader.setdefault(client.leader_of(topic, partition), []).append(partition)
        except KafkaError as unknown:
            found[partition] = unknown
    asked = (_ask_one(client, to, topic, rows, timestamp, isolation) for to, rows in by_leader.items())
    for answer in await asyncio.gather(*asked):
        found |= answer
    return found


async def _ask_one(
    client: InnerClient, to: int, topic: str, partitions: list[int], timestamp: int, isolation: Isolation
) -> Found:
    rows = [ListOffsetsPartition(partition_index=one, timestamp=timestamp) for one in partitions]
    request = ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=rows)],
        timeout_ms=10_000,
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


def _may_pass(error: PenstockError) -> bool:
    return isinstance(error, KafkaError) and may_repeat(error, repeatable=True)
