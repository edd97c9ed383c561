"""Scans of partitions for /v1/browse: ranges of offsets, read step by step, whose records a filter selects.

A step is one fetch, and unpacking it in a thread: the event loop never waits for a scan, and a scan that is stopped
ends within a step. Batches that do not unpack are skipped and counted. Records that retention deletes meanwhile are
skipped. Records of schemas that are not known yet are decoded again when the registry has been asked for them.
"""

from typing import TYPE_CHECKING, NamedTuple

from penstock.batch import Record, iter_headers, read_records
from penstock.errors import BatchError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.types import NO_TIMESTAMP
from penstock.web.api.problems import Problem
from penstock.web.api.reading import UNPACKED_BYTES_MAX, Reading, ReadParams, fetched_bytes
from penstock.web.api.routing import in_thread_if
from penstock.web.browse_frames import BrowsedMessage, browsed, shown_size
from penstock.web.record_filter import Matches
from penstock.web.scanned_record import ScannedRecord

if TYPE_CHECKING:
    from penstock.schema_registry.framing import SchemaKey
    from penstock.web.schema_values import RegistryValues

STEP_BYTES = 256 * 1024
"""Read at once: some milliseconds of a thread."""
STEP_SHOWN_BYTES = 1024 * 1024
"""Messages of a step are this large together, and one more: a compressed batch may hold many times what was read."""


class Step(NamedTuple):
    found: list[BrowsedMessage]
    next_offset: int
    unreadable: int = 0
    """Batches that did not unpack."""
    missing: "frozenset[SchemaKey]" = frozenset()
    """Schemas that the registry was not asked for."""
    last_timestamp_ms: int = NO_TIMESTAMP
    """Of the last record that was looked at."""


class PartitionScanner:
    """Reads the partitions of one topic on behalf of a caller."""

    def __init__(
        self,
        node: Node,
        client: InnerClient,
        topic: str,
        matches: Matches,
        schemas: "RegistryValues | None" = None,
        whole: bool = False,
    ) -> None:
        self._reading = Reading(node)
        self._client = client
        self._topic = topic
        self._matches = matches
        self._schemas = schemas
        self._whole = whole

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
        step = await self._select(data, partition, first, end)
        if self._schemas is not None and step.missing and await self._schemas.load(step.missing):
            step = await self._select(data, partition, first, end)
        is_stuck = step.next_offset == first and not wait_ms
        return step._replace(next_offset=end) if is_stuck else step

    async def _select(self, data: bytes, partition: int, first: int, end: int) -> Step:
        arguments = data, partition, first, end, self._matches, self._schemas, self._whole
        return await in_thread_if(bool(data), select, *arguments)


def select(
    data: bytes,
    partition: int,
    first: int,
    end: int,
    matches: Matches,
    schemas: "RegistryValues | None",
    whole: bool = False,
) -> Step:
    """May run in a thread."""
    found: list[BrowsedMessage] = []
    missing: set[SchemaKey] = set()
    next_offset, unreadable, shown_bytes = first, 0, 0
    last_timestamp_ms: int = NO_TIMESTAMP
    for position, header in iter_headers(data):
        try:
            records: list[Record] = (
                [] if header.control else list(read_records(data, position, max_bytes=UNPACKED_BYTES_MAX))
            )
        except BatchError:
            records, unreadable = [], unreadable + 1
        for one in records:
            if not first <= one.offset < end:
                continue
            if shown_bytes > STEP_SHOWN_BYTES:
                return Step(found, one.offset, unreadable, frozenset(missing), last_timestamp_ms)
            last_timestamp_ms = one.timestamp
            scanned = ScannedRecord(one, schemas, missing)
            if matches(scanned):
                found.append(browsed(scanned, partition, whole))
                shown_bytes += shown_size(found[-1])
        next_offset = max(next_offset, header.next_offset)
        if next_offset >= end:
            break
    return Step(found, min(next_offset, end), unreadable, frozenset(missing), last_timestamp_ms)
