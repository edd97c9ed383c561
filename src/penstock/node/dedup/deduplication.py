"""Deduplication by message id, on the partitions that this node leads.

The remembered ids of a partition (`index.DedupIndex`) follow from its log and belong to one term: a new leader reads
them back from its records, committed or not. So an append that was truncated with its leader is not remembered, and one
that survived is. Producers wait until the ids are read back.

Timestamps decide which records are recent enough to be read back. They come from the producer's clock unless the topic
has message.timestamp.type=LogAppendTime. That clock may be wrong by CLOCKS_APART_MS, so records count as that much
younger: after a change of leader an id may be remembered for that much longer than the window, never shorter. This does
not cover producers that set timestamps of the past themselves; a warning says so once.

Batches and duplicates. A duplicate record is left out, and its batch keeps its range of offsets and sequence numbers.
If all records of a batch are duplicates, nothing is stored, unless its producer is idempotent: then an empty batch is
stored, so that every later leader knows its sequence numbers too. The producer gets as base offset

    the offset of the batch             if any of its records is new: they are where the producer expects them
    the offset of the first record's    if all are duplicates: right for a batch of one record, and for a whole batch
    first copy                          that was sent again

and it gets the response when all first copies are committed: they lie below the offset that the response waits for.

Batches of transactions are neither compared nor remembered. If the ids of an aborted transaction were, its producer
could not send the messages again: they would count as duplicates of records that no reader sees.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence

from penstock.batch import BatchHeader, iter_headers
from penstock.errors import CorruptLog, KafkaError, StorageError
from penstock.log import Appended
from penstock.log.segment import newest_timestamp
from penstock.node.dedup.index import DedupIndex
from penstock.node.dedup.message_ids import MessageId, emptied, read_ids, without_records
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.types import NO_TIMESTAMP, Offset

log = logging.getLogger("penstock.node")

CLOCKS_APART_MS = 300_000
"""Five minutes, which is also what Kerberos forgives."""
RECORDS_PER_TURN = 1_000
"""How many records are read back before the event loop does other work: about a millisecond."""
READ_BYTES = 1024 * 1024
STORED_INFLATION = 2**31 - 1
"""A batch that was stored before the window was set may have any size that topics allow."""


class PartitionIds:
    """The message ids of one partition, in one term."""

    def __init__(self, partition: Partition, clock: Clock, max_ids: int) -> None:
        self.partition = partition
        self.term = partition.term
        self.window_ms = partition.config.dedup_window_ms
        self.index = DedupIndex(max_ids)
        self.loading: asyncio.Future[None] | None = None
        """While ids are read back: done when that has ended, with or without success."""
        self.failed: StorageError | None = None
        self._task: asyncio.Task[None] | None = None
        self._clock = clock
        self._warned: set[str] = set()
        self._next_offset: Offset | None = None
        """All recent ids in the log below this offset are known."""
        self._newest_ms = -1
        """The latest timestamp of a record. Empty batches get no later one: a search for the latest timestamp must find
        a record."""

    @property
    def is_current(self) -> bool:
        """Whether the remembered ids belong to this leader's term and cover the window that is set now."""
        partition = self.partition
        lasts = partition.leads and not partition.closed and self.failed is None
        return lasts and partition.term == self.term and partition.config.dedup_window_ms <= self.window_ms

    # --- reading back

    def _first_offset(self) -> Offset:
        stored, oldest = self.partition.log, self._clock.wall_ms() - self.window_ms - CLOCKS_APART_MS
        found = stored.find_timestamp(oldest, stored.end_offset)
        return stored.end_offset if found is None else Offset(found[1])

    def catch_up(self) -> None:
        """Reads the part of the log that is not known yet: at once if it is small. After the first time there is one
        only if a batch was not appended through `append`, such as a dead letter."""
        if self.loading is not None or self._next_offset == self.partition.log.end_offset:
            return
        steps = self._read_back()
        try:
            done = next(steps, True)
        except StorageError as trouble:
            self.failed = trouble
            return
        if not done:
            self.loading = asyncio.get_running_loop().create_future()
            self._task = asyncio.get_running_loop().create_task(self._read_on(steps))

    async def _read_on(self, steps: Iterator[bool]) -> None:
        try:
            for _ in steps:
                await asyncio.sleep(0)
        except StorageError as trouble:
            self.failed = trouble
        finally:
            self.stop()

    def _read_back(self) -> Iterator[bool]:
        """Yields False wherever the event loop may do other work."""
        stored, records = self.partition.log, 0
        try:
            offset = self._first_offset() if self._next_offset is None else self._next_offset
            while offset < stored.end_offset:
                offset = max(offset, stored.start_offset)  # retention may have deleted some
                chunk = stored.read(offset, READ_BYTES, limit=stored.end_offset)
                for position, header in iter_headers(chunk):
                    self._learn(memoryview(chunk)[position : position + header.size], header)
                    offset = Offset(header.next_offset)
                    records += header.record_count
                    if records >= RECORDS_PER_TURN:
                        records = 0
                        yield False
                        if not self.is_current:
                            return
                if not chunk:  # compaction removed all that was left
                    break
        except CorruptLog as rot:
            self.partition.damaged(rot)
            raise StorageError(f"{self.partition.name}: message ids cannot be read back: {rot}") from rot
        self._next_offset = stored.end_offset

    def _learn(self, batch: memoryview, header: BatchHeader) -> None:
        if header.transactional:
            return
        try:
            ids = read_ids(batch, header, STORED_INFLATION).ids
        except KafkaError:
            return  # it was stored before ids were checked: it has none
        newest = newest_timestamp(header)
        if header.record_count:
            self._newest_ms = max(self._newest_ms, newest)
        came_ms = min(self._clock.wall_ms(), newest + CLOCKS_APART_MS)
        self.index.note(came_ms, self.window_ms, header.base_offset, ids)

    def stop(self) -> None:
        """Ends the reading; requests that wait for it go on."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self.loading is not None and not self.loading.done():
            self.loading.set_result(None)
        self.loading = self._task = None

    # --- storing

    def append(
        self, batch: memoryview, header: BatchHeader, ids: Sequence[MessageId], max_bytes: int
    ) -> Appended:
        """Stores the new records of the batch. The returned offsets are for the response, which waits until they are
        committed; `duplicate` if any record was not stored."""
        partition, now_ms = self.partition, self._clock.wall_ms()
        if header.transactional:
            appended = partition.append(batch, header)
            self._next_offset = partition.log.end_offset
            return appended
        self.window_ms = partition.config.dedup_window_ms
        self.index.expire(now_ms, self.window_ms)
        if _is_repeated(partition, header):
            return self._repeated(partition.append(batch, header), header, ids)
        firsts = self.index.firsts(ids)
        if not firsts:
            appended = partition.append(batch, header)
        elif len(firsts) < header.record_count:
            batch, header = without_records(batch, header, firsts, max_bytes)
            appended = partition.append(batch, header)._replace(duplicate=True)
        else:
            return self._all_known(header, firsts)
        new = [one for one in ids if one.delta not in firsts] if firsts else ids
        self.index.note(now_ms, self.window_ms, appended.base_offset, new)
        self._next_offset = partition.log.end_offset
        self._newest_ms = max(self._newest_ms, newest_timestamp(header))
        if new:
            self._warn(header, now_ms)
        return appended

    def _all_known(self, header: BatchHeader, firsts: dict[int, int | None]) -> Appended:
        """Every record is a duplicate of one in the log: of two equal ids in one batch the first would be new."""
        offsets = [Offset(offset) for offset in firsts.values() if offset is not None]
        if header.producer_id < 0:
            return Appended(offsets[0], max(offsets), NO_TIMESTAMP, True)
        empty, empty_header = emptied(header, min(newest_timestamp(header), self._newest_ms))
        appended = self.partition.append(empty, empty_header)
        self._next_offset = self.partition.log.end_offset
        return Appended(offsets[0], appended.last_offset, NO_TIMESTAMP, True)

    def _repeated(self, appended: Appended, header: BatchHeader, ids: Sequence[MessageId]) -> Appended:
        """An idempotent producer that did not get the response sent a batch again: it gets the same response."""
        offsets = [self.index.find(digest) for _, digest in ids]
        here = range(appended.base_offset, appended.last_offset + 1)
        if len(offsets) < header.record_count or any(one is None or one in here for one in offsets):
            return appended
        return appended._replace(base_offset=Offset(offsets[0] or 0), timestamp_ms=NO_TIMESTAMP)

    def _warn(self, header: BatchHeader, now_ms: int) -> None:
        """Logs each warning once in a term."""
        newest = newest_timestamp(header)
        stamps = self.partition.config.message_timestamp_log_append
        if self.index.limited and "limited" not in self._warned:
            self._warned.add("limited")
            log.warning(
                "%s has more than %d message ids within dedup.window.ms=%d: the oldest are forgotten earlier "
                "(limits.max_dedup_ids_per_partition)",
                self.partition.name,
                self.index.max_ids,
                self.window_ms,
            )
        if newest < now_ms - CLOCKS_APART_MS and not stamps and "old" not in self._warned:
            self._warned.add("old")
            log.warning(
                "%s got records with message ids and timestamps that are %d s old: when its leader changes, their ids "
                "may be forgotten before dedup.window.ms=%d is over; message.timestamp.type=LogAppendTime helps",
                self.partition.name,
                (now_ms - newest) // 1000,
                self.window_ms,
            )


class Deduplication(Part):
    """The message ids of all partitions that this node leads."""

    def __init__(self, clock: Clock, max_ids: int) -> None:
        self._clock = clock
        self._max_ids = max_ids
        self._partitions: dict[Partition, PartitionIds] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def of(self, partition: Partition) -> PartitionIds:
        """The ids of a partition that this node leads and that has a window. They may still be loading.
        StorageError: the log cannot be read."""
        found = self._partitions.get(partition)
        if found is None or not found.is_current:
            if found is not None:
                found.stop()
            found = self._partitions[partition] = PartitionIds(partition, self._clock, self._max_ids)
        found.catch_up()
        if found.failed is not None:
            raise found.failed
        return found

    def role_changed(self, partition: Partition) -> None:
        """A new leader reads ids back at once, before the first producer needs them."""
        found = self._partitions.get(partition)
        if found is not None and not found.is_current:
            found.stop()
            del self._partitions[partition]
        if partition.serves and partition.config.dedup_window_ms > 0:
            try:
                self.of(partition)
            except StorageError as trouble:
                log.error("%s", trouble)

    def metadata_changed(self, topics: TopicChanges) -> None:
        """Forgets partitions that other nodes lead now, that were deleted, or that have no window any more."""
        for partition, found in list(self._partitions.items()):
            if not partition.leads or partition.closed or partition.config.dedup_window_ms == 0:
                found.stop()
                del self._partitions[partition]

    async def stop(self) -> None:
        for found in self._partitions.values():
            found.stop()
        self._partitions.clear()


def _is_repeated(partition: Partition, header: BatchHeader) -> bool:
    """Whether this very batch was stored before, or cannot be stored: `append` says why."""
    if header.producer_id < 0:
        return False
    try:
        return partition.log.producers.check(header) is not None
    except KafkaError:
        return True
