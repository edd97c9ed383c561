"""First and last offsets of partitions of many topics, for figures: all leaders are asked at the same time, with few
requests for all topics together. A leader that does not answer in time leaves its partitions out."""

import asyncio
from collections.abc import Iterable, Mapping

from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, find_offsets
from penstock.types import Isolation, TopicPartition

ASK_SECONDS = 7.0
"""Longer than a leader waits for its disk. A list with a gap is worth more to a person than one that does not come."""


async def find_ranges(
    client: InnerClient, topics: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, tuple[int, int]]:
    """Earliest and latest offset of those partitions whose leaders answer."""
    keys = [TopicPartition(topic, one) for topic, partitions in topics.items() for one in partitions]
    earliest, latest = await asyncio.gather(
        *(
            find_offsets(client, keys, when, Isolation.READ_UNCOMMITTED, timeout_seconds=ASK_SECONDS)
            for when in (EARLIEST, LATEST)
        )
    )
    return {
        key: (first, last)
        for key, first in earliest.items()
        if isinstance(first, int) and isinstance(last := latest.get(key), int)
    }
