"""Scans of partitions for /v1/browse: ranges of offsets, read step by step, whose records a filter selects.

A step is one fetch, and unpacking it in a thread: the event loop never waits for a scan, and a scan that is stopped
ends within a step. Batches that do not unpack are skipped and counted. Records that retention deletes meanwhile are
skipped.
"""

from typing import NamedTuple

from penstock.batch import Record, iter_headers, read_records
from penstock.errors import BatchError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.web.api.problems import Problem
from penstock.web.api.reading import UNPACKED_BYTES_MAX, Reading, ReadParams, fetched_bytes
from penstock.web.api.routing import in_thread_if
from penstock.web.browse_frames import BrowsedMessage, browsed
from penstock.web.record_filter import Matches

STEP_BYTES = 256 * 1024
"""Read at once: some milliseconds of a thread."""


class Step(NamedTuple):
    found: list[BrowsedMessage]
    next_offset: int
    unreadable: int = 0
    """Batches that did not unpack."""


class PartitionScanner:
    """Reads the partitions of one topic on behalf of a caller."""

    def __init__(self, node: Node, client: InnerClient, topic: str, matches: Matches) -> None:
        self._reading = Reading(node)
        self._client = client
        self._topic = topic
        self._matches = matches

    async def step(self, partition: int, first: int, end: int, *, wait_ms: int = 0) -> Step:
        """The matching records from `first` on and before `end`, as far as one fetch reads. With `wait_ms`, it waits
        for a record if there is none."""
        params = ReadParams(topic=self._topic, partition=partition, max_bytes=STEP_BYTES, wait_ms=wait_ms)
        try:
            found = await self._reading.fetch(self._client, params, first)
        except Problem as problem:
            if problem.status != 416 or wait_ms:
                raise
            return Step([], end)  # retention has deleted them
        data = fetched_bytes(found)
        step = await in_thread_if(bool(data), select, data, partition, first, end, self._matches)
        is_stuck = step.next_offset == first and not wait_ms
        return step._replace(next_offset=end) if is_stuck else step


def select(data: bytes, partition: int, first: int, end: int, matches: Matches) -> Step:
    """May run in a thread."""
    found: list[BrowsedMessage] = []
    next_offset, unreadable = first, 0
    for position, header in iter_headers(data):
        try:
            records: list[Record] = (
                [] if header.control else list(read_records(data, position, max_bytes=UNPACKED_BYTES_MAX))
            )
        except BatchError:
            records, unreadable = [], unreadable + 1
        found += [browsed(one, partition) for one in records if first <= one.offset < end and matches(one)]
        next_offset = max(next_offset, header.next_offset)
        if next_offset >= end:
            break
    return Step(found, min(next_offset, end), unreadable)
