"""Reads partitions for one Fetch request, within its limits.

Records that are not in the system's cache are loaded by a thread first (`log.cold_range`), and then read like all
others. So a reader of old records waits for the disk, and no other client does.

A response is no larger than the memory that clients may still take (`node.limits.memory`). If not even one batch fits,
the request waits for its turn; while it waits, for memory or for records, it holds nothing that it has read.

Bytes that come from the disk are compared with their checksums (`log.checked_read`): not all clients do it. Wrong ones
are reported as a scrub reports them. The client of a partition with other replicas gets KAFKA_STORAGE_ERROR: it asks
again, and another replica will lead. Without one the bytes are lost, and the client gets CORRUPT_MESSAGE, which it
tells its application.
"""

import asyncio
import logging
from functools import partial
from typing import NamedTuple
from uuid import UUID

from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.leading import Hints
from penstock.kafka.wire.messages.fetch import (
    AbortedTransaction,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from penstock.log import ColdRange
from penstock.node import Partition
from penstock.node.access import Quotas
from penstock.node.fetch_sessions import Wanted
from penstock.security.quotas import QuotaKind
from penstock.types import Caller, Isolation, Offset

log = logging.getLogger("penstock.kafka")

NO_OFFSET = -1
HINTS_SINCE_VERSION = 16
"""Responses can carry a leader since version 12, but only since 16 its address; Kafka gives none before."""


class PartitionRead(NamedTuple):
    """The answer for one partition. `source` is None if the answer is an error."""

    data: PartitionData
    source: Partition | None
    end: Offset
    """The first offset that the reader may not see."""


class FetchReader:
    """Reads the partitions of one request, as often as needed: each time between `_begin` and `_finish`."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self._context = context
        self._request = request
        self._isolation = Isolation.from_wire(request.isolation_level)
        self._hints = Hints(context) if context.api_version >= HINTS_SINCE_VERSION else None
        self._bytes_left = 0
        self._first_max = 0
        """The first batch is returned up to this size, also if it is larger than `_bytes_left`."""
        self._lacking = 0
        """The size of the first batch, if there is no memory for it."""
        self._reserved = 0
        self._bytes = 0
        self._failed = False
        """Whether a partition was answered with an error."""
        self._cold: list[ColdRange] | None = []
        """The ranges to load first; None once they are loaded: then everything is read, whether it is cold or not."""

    @property
    def is_cold(self) -> bool:
        """Whether the last read found records that have to be loaded, and left them out."""
        return bool(self._cold)

    async def load(self) -> None:
        """Has a thread load these records. The read that follows finds them in memory."""
        ranges, self._cold = self._cold or [], None
        for one in ranges:
            one.hold()
        job = partial(_load_all, ranges)
        loading = asyncio.ensure_future(self._context.node.storage.cold_reads.run(job))
        # The files stay open until the thread has ended, also if the client goes away before.
        loading.add_done_callback(partial(_release_all, ranges))
        await asyncio.shield(loading)

    @property
    def lacks_memory(self) -> bool:
        """Whether there are records for which there is no memory. An error is answered at once, without records."""
        return self._lacking > 0 and self._bytes == 0 and not self._failed

    def _begin(self) -> None:
        memory = self._context.memory
        limit = self._context.node.config.limits.fetch_max_bytes
        quotas = self._context.node.quotas
        if quotas.in_force:
            limit = _within_quota(quotas, self._context.caller, limit)
        self._bytes_left = min(self._request.max_bytes, limit, self._reserved or memory.budget.room)
        self._first_max = self._reserved or memory.budget.free
        self._lacking = 0
        self._bytes = 0

    def _finish(self, response: FetchResponse) -> None:
        """Counts the records, and gives the response the addresses of leaders that it names."""
        memory = self._context.memory
        memory.resize(memory.bytes - self._reserved + self._bytes)
        self._reserved = self._bytes
        if self._hints is not None:
            response.node_endpoints = [
                NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
                for one in self._hints.leaders()
            ]

    def _give_back(self) -> None:
        self._context.memory.give_back(self._reserved)
        self._reserved = 0

    async def wait_for_memory(self) -> None:
        """Waits until there is memory for one batch. The client waits longer than it asked for, but gets it."""
        memory = self._context.memory
        count = max(self._lacking, memory.budget.small)
        await memory.wait_for(count)
        self._reserved = count

    def _read_one(self, name: str, topic_id: UUID, wanted: Wanted) -> PartitionRead:
        try:
            context, epoch = self._context, wanted.current_leader_epoch
            partition = context.node.resources.partition(
                context.caller, name, topic_id, wanted.partition, context.api.on_topic, epoch=epoch
            )
            partition.check_readable()
            try:
                return self._read_partition(partition, wanted)
            except CorruptLog as rot:
                partition.damaged(rot)
                code = ErrorCode.KAFKA_STORAGE_ERROR if partition.is_replicated else ErrorCode.CORRUPT_MESSAGE
                raise KafkaError(code, str(rot)) from rot
        except KafkaError as mistake:
            code = mistake.code
            if code == ErrorCode.OFFSET_NOT_AVAILABLE:
                # Kafka has this error in ListOffsets only, and not all clients know it here.
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        except StorageError as trouble:
            log.error("fetch: %s", trouble)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self._failed = True
        answer = refused(wanted.partition, code)
        hints = self._hints
        if hints is not None and (hint := hints.find(code, name, topic_id, wanted.partition)) is not None:
            answer.current_leader = LeaderIdAndEpoch(leader_id=hint.leader.node_id, leader_epoch=hint.epoch)
        return PartitionRead(answer, None, Offset(0))

    def _read_partition(self, partition: Partition, wanted: Wanted) -> PartitionRead:
        max_bytes = min(self._bytes_left, wanted.partition_max_bytes)
        end = partition.end_for(self._isolation)
        records = b""
        if (max_bytes > 0 or self._bytes == 0) and not self._left_cold(partition, wanted, max_bytes, end):
            first = self._bytes == 0  # one batch is always returned, however small the request's limits
            offset = Offset(wanted.fetch_offset)
            records = partition.read(
                offset,
                max(max_bytes, 1),
                end=end,
                at_least_one=first,
                first_max=self._first_max,
                is_checked=self._context.is_checked,
            )
            if first and not records and offset < end and not self._lacking:
                self._lacking = partition.log.batch_size(offset, end)
        self._bytes_left -= len(records)
        self._bytes += len(records)
        data = PartitionData(
            partition_index=wanted.partition,
            error_code=ErrorCode.NONE,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.end_for(Isolation.READ_COMMITTED),
            log_start_offset=partition.start_offset,
            aborted_transactions=self._aborted(partition, Offset(wanted.fetch_offset), records),
            records=records,
        )
        return PartitionRead(data, partition, end)

    def _left_cold(self, partition: Partition, wanted: Wanted, max_bytes: int, end: Offset) -> bool:
        """Whether the records have to be loaded first."""
        if self._cold is None or wanted.fetch_offset >= end:
            return False
        if self._cold and max_bytes <= 0:
            return True  # the response will be full without it
        cold = partition.cold_range(Offset(wanted.fetch_offset), max_bytes)
        if cold is None:
            return False
        self._cold.append(cold)
        self._bytes_left -= max_bytes  # what is loaded for this partition is not loaded for others too
        return True

    def _aborted(
        self, partition: Partition, offset: Offset, records: bytes
    ) -> list[AbortedTransaction] | None:
        """In the order of their first offsets: some clients rely on it."""
        if self._isolation is Isolation.READ_UNCOMMITTED:
            return None
        found = partition.aborted_in(offset, records)
        return [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in sorted(found, key=lambda one: one.first_offset)
        ]


def _load_all(ranges: list[ColdRange]) -> None:
    for one in ranges:
        try:
            one.load()
        except (StorageError, CorruptLog):
            return  # the read that follows fails too, and its row of the response says why


def _release_all(ranges: list[ColdRange], _: "asyncio.Future[None]") -> None:
    for one in ranges:
        one.release()


def refused(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=NO_OFFSET,
        aborted_transactions=None,
        records=b"",
    )


def _within_quota(quotas: Quotas, caller: Caller, limit: int) -> int:
    """A larger response would be throttled by itself, and never be sent."""
    most = quotas.most_at_once(QuotaKind.CONSUMER_BYTE_RATE, caller)
    return limit if most is None else min(limit, max(1, int(most)))
