"""First and last offsets of partitions, from their leaders: one request per node for all partitions that it leads, of
any number of topics; several if they are many."""

import asyncio
from collections.abc import Iterable

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.node.calls.retry import may_repeat
from penstock.types import Isolation, TopicPartition

LATEST, EARLIEST = -1, -2
"""These ask for the ends of a log instead of the offset of a time."""
NOT_FOUND = -1
"""The offset of a time after the last record."""
CONSUMER = -1

ANSWER_SECONDS = 10.0
"""How long a leader may take, unless its answer is wanted earlier."""
PARTITIONS_PER_REQUEST = 1_000
"""A request is encoded without a pause."""

Found = dict[TopicPartition, int | PenstockError]
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
    missing = [TopicPartition(topic, partition) for partition in partitions]
    while missing:
        found = await find_offsets(client, missing, timestamp, isolation)
        for key, offset in found.items():
            if isinstance(offset, int):
                offsets[key.partition] = offset
            elif retry.is_over or not _may_pass(offset):
                raise offset
        missing = [key for key in missing if key.partition not in offsets]
        if missing:
            await retry.pause()
    return offsets


async def find_offsets(
    client: InnerClient,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    isolation: Isolation,
    *,
    timeout_seconds: float | None = None,
) -> Found:
    """Asks each leader once. One that has not answered after `timeout_seconds` is not waited for."""
    by_leader, unknown = client.node.calls.by_node(partitions, lambda key: client.leader_role(*key))
    asked = [
        _ask_one(
            client, to, keys[first : first + PARTITIONS_PER_REQUEST], timestamp, isolation, timeout_seconds
        )
        for to, keys in by_leader.items()
        for first in range(0, len(keys), PARTITIONS_PER_REQUEST)
    ]
    found: Found = dict(unknown)
    for answer in await asyncio.gather(*asked):
        found |= answer
    return found


async def _ask_one(
    client: InnerClient,
    to: int,
    keys: list[TopicPartition],
    timestamp: int,
    isolation: Isolation,
    timeout_seconds: float | None,
) -> Found:
    request = ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=isolation,
        topics=_by_topic(keys, timestamp),
        timeout_ms=round((timeout_seconds or ANSWER_SECONDS) * 1000),
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = await client.ask(ApiKey.LIST_OFFSETS, request, ListOffsetsResponse, to=to)
    except PenstockError as trouble:
        return dict.fromkeys(keys, trouble)
    except TimeoutError:
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"node {to} has not answered for {timeout_seconds} s")
        return dict.fromkeys(keys, late)
    return {
        TopicPartition(topic.name, row.partition_index): _offset(topic.name, row)
        for topic in answer.topics
        for row in topic.partitions
    }


def _by_topic(keys: Iterable[TopicPartition], timestamp: int) -> list[ListOffsetsTopic]:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for topic, partition in keys:
        row = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics.setdefault(topic, []).append(row)
    return [ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()]


def _offset(topic: str, row: ListOffsetsPartitionResponse) -> int | PenstockError:
    code = ErrorCode(row.error_code)
    message = f"{topic}-{row.partition_index}: {code.name.replace('_', ' ').lower()}"
    return KafkaError(code, message) if code else row.offset


def _may_pass(error: PenstockError) -> bool:
    return isinstance(error, KafkaError) and may_repeat(error, repeatable=True)
