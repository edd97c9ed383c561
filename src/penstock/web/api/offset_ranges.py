"""First and last offsets of partitions of many topics, for figures: all leaders are asked at the same time, with few
requests for all topics together. A leader that does not answer in time leaves its partitions out."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import CONSUMER, EARLIEST, LATEST
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.types import Isolation, TopicPartition

ASK_SECONDS = 7.0
"""Longer than a leader waits for its disk. A list with a gap is worth more to a person than one that does not come."""
PARTITIONS_PER_REQUEST = 1_000
"""A request is encoded without a pause."""

Offsets = dict[TopicPartition, int]


async def find_ranges(
    client: InnerClient, topics: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, tuple[int, int]]:
    """Earliest and latest offset of those partitions whose leaders answer."""
    pieces = list(_pieces(client, topics))
    asked = [_ask(client, to, rows, when) for when in (EARLIEST, LATEST) for to, rows in pieces]
    answers = await asyncio.gather(*asked)
    earliest, latest = _joined(answers[: len(pieces)]), _joined(answers[len(pieces) :])
    return {where: (first, latest[where]) for where, first in earliest.items() if where in latest}


def _pieces(
    client: InnerClient, topics: Mapping[str, Iterable[int]]
) -> Iterator[tuple[int, list[TopicPartition]]]:
    """Leaders, with partitions to ask them for."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for topic, partitions in topics.items():
        for partition in partitions:
            try:
                rows = by_leader.setdefault(client.leader_of(topic, partition), [])
            except KafkaError:  # it has no leader, or the caller may not describe it
                continue
            rows.append(TopicPartition(topic, partition))
    for leader, rows in by_leader.items():
        for first in range(0, len(rows), PARTITIONS_PER_REQUEST):
            yield leader, rows[first : first + PARTITIONS_PER_REQUEST]


async def _ask(client: InnerClient, to: int, rows: list[TopicPartition], timestamp: int) -> Offsets:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for topic, partition in rows:
        row = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics.setdefault(topic, []).append(row)
    request = ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=Isolation.READ_UNCOMMITTED,
        topics=[ListOffsetsTopic(name=name, partitions=theirs) for name, theirs in topics.items()],
        timeout_ms=round(ASK_SECONDS * 1000),
    )
    try:
        async with asyncio.timeout(ASK_SECONDS):
            answer = await client.ask(ApiKey.LIST_OFFSETS, request, ListOffsetsResponse, to=to)
    except (PenstockError, TimeoutError):
        return {}
    return {
        TopicPartition(topic.name, row.partition_index): row.offset
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code == ErrorCode.NONE
    }


def _joined(answers: Iterable[Offsets]) -> Offsets:
    return {where: offset for answer in answers for where, offset in answer.items()}
