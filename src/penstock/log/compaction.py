"""Compaction (`cleanup.policy=compact`): keeps only the last record of each key.

A log is a clean part, where compaction has been, and a dirty part behind it. One pass, in a thread:
 1. Read the dirty part and record the last offset of each key, until it ends or the map is full (`key_map`).
 2. Rewrite the segments from the log's start: a record stays if the map has no later one with its key. Offsets,
    timestamps and the codec stay; a batch keeps its range of offsets, so readers can skip the gaps. Adjacent segments
    that have become small are merged.
 3. On the event loop again, `swap_in` replaces the old segments by the new ones (layout.py: *.swap).
Compaction never touches the active segment, nor one that is not flushed.

It also keeps:
- All control entries: Raft counts them.
- Of every live producer the last batch in the compacted part, without its records if they are all superseded: a
  header that says where its sequence ended. With it, duplicates are recognised after a restart, or after a truncation
  of what follows.
- A tombstone (a key with no value) for `delete.retention.ms` after the first pass that found it, so that a reader that
  lags can learn of the deletion. The time is in the head of the segment's index; segments with different times are not
  merged, else every pass would postpone it. If the index is lost, the tombstones only stay longer.
- The marker of a transaction as long as a batch of that transaction is in the log, and for `delete.retention.ms` after
  the first pass that found none. The time is in the marker itself (penstock.batch.markers); without the delay a reader
  in the middle of the transaction might never learn how it ended. The last marker of a live producer stays: it has the
  producer's epoch.
It removes records without a key and records of aborted transactions, as Kafka does. These do not supersede others, so a
pass ends before the first transaction that is not decided. A batch that cannot be parsed stays.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.batch import (
    BatchHeader,
    Record,
    build_batch,
    delete_horizon_ms,
    read_header,
    read_records,
    with_delete_horizon,
)
from penstock.config import TopicConfig
from penstock.errors import BatchError, CorruptLog, StorageError
from penstock.log.aborted import NOTHING_ABORTED, AbortedRanges
from penstock.log.disk import Disk
from penstock.log.index import IndexHead, SegmentIndex
from penstock.log.key_map import MAX_KEYS, KeyMap
from penstock.log.layout import CLEANED_SUFFIX, sidecar, swap_name
from penstock.log.scan import BadBatch, note, scan
from penstock.log.segment import MAX_OFFSET_SPAN, Segment
from penstock.log.segment_files import finish_swap


class Source(NamedTuple):
    """A segment as it was when the plan was made."""

    segment: Segment
    base_offset: int
    next_offset: int
    size: int
    delete_horizon_ms: int


class Replacement(NamedTuple):
    """One new segment for one or more old ones."""

    sources: list[Segment]
    path: str
    head: IndexHead
    entries: SegmentIndex


class Copied(NamedTuple):
    """The result of rewriting one segment."""

    tombstones: int
    changed: bool
    horizon_ms: int
    """When the last of its markers may be removed; -1: it has none of which that is known."""


class Cleaned(NamedTuple):
    """The part of one batch that stays."""

    batch: bytes | memoryview | None
    tombstones: int = 0
    horizon_ms: int = -1


class CompactionPlan:
    """One pass over one log. `run` in a thread, then `Compactor.finish`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        config: TopicConfig,
        *,
        segments: Sequence[Segment],
        cleaned_offset: int,
        producer_ids: frozenset[int],
        aborted: AbortedRanges = NOTHING_ABORTED,
        generation: int,
        now_ms: int,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._config = config
        self._sources = [
            Source(s, s.base_offset, s.next_offset, s.size, s.delete_horizon_ms) for s in segments
        ]
        self._dirty_from = cleaned_offset
        self._producer_ids = producer_ids
        self._producer_ends: dict[int, int] = {}
        """The last offset that each live producer wrote in these segments."""
        self._last_markers: dict[int, int] = {}
        """The offset of each live producer's last marker in these segments."""
        self._aborted = aborted
        self._with_batches: set[int] = set()
        """While segments are copied: producers with a batch, perhaps without records, of the transaction that their
        next marker ends."""
        self.bare_markers: list[int] = []
        """Markers whose transactions had no batch left when this pass began."""
        self._now_ms = now_ms
        self._new_horizon_ms = now_ms + config.delete_retention_ms
        self._keys = KeyMap(max_keys)
        self.generation = generation
        self.cleaned_offset = cleaned_offset
        """Up to where the log is clean after this pass."""
        self.replacements: list[Replacement] = []
        self.horizons: dict[Segment, int] = {}
        """Segments that stay as they are, and when their tombstones may be removed."""
        self.complete = False
        self._cancelled = False

    def run(self) -> None:
        """Compacts, in a thread. Raises CorruptLog, DiskFull or StorageError; then the log is unchanged."""
        try:
            self._read_producer_ends()
            self.cleaned_offset = self._read_keys()
            for group in self._groups():
                self._rewrite(group)
            self.complete = True
        except FileNotFoundError as problem:
            raise StorageError(f"{self._folder}: a segment was removed while it was compacted") from problem
        finally:
            self._keys = KeyMap(0)
            if not self.complete:
                self.discard()

    def cancel(self) -> None:
        """Stops the thread, from the event loop: the log is reset or deleted, and a new one may get its name."""
        self._cancelled = True

    def discard(self) -> None:
        """Removes the files that `run` wrote."""
        for source in self._sources:
            self._disk.remove(self._cleaned_path(source.base_offset))

    def _cleaned_path(self, base_offset: int) -> str:
        return sidecar(self._folder, base_offset, CLEANED_SUFFIX)

    # --- the first pass: producers and keys

    def _read_producer_ends(self) -> None:
        if not self._producer_ids:
            return
        for source in self._sources:
            reader = Segment(self._disk, self._folder, source.base_offset, 0)
            for _, header in reader.headers(0, source.size):
                if header.producer_id in self._producer_ids:
                    ends = self._last_markers if header.control else self._producer_ends
                    ends[header.producer_id] = header.last_offset
            reader.close()

    def _read_keys(self) -> int:
        """Fills the map from the dirty part; returns the offset up to which it was read."""
        for source in self._sources:
            if source.next_offset <= self._dirty_from:
                continue
            for _, header, batch in self._batches(source):
                if header.next_offset <= self._dirty_from or header.control or self._aborted.covers(header):
                    continue
                for record in _records(batch) or ():
                    if record.key is not None and not self._keys.put(record.key, record.offset):
                        return record.offset
        return max(self._sources[-1].next_offset, self._dirty_from)

    def _batches(self, source: Source) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        if self._cancelled:
            raise StorageError(f"{self._folder} was reset or deleted while it was compacted")
        file, expected = self._disk.open(source.segment.path), source.base_offset
        try:
            for position, header, batch in scan(file, 0, source.size):
                # The checksum does not cover the offset. A wrong one would make newer records look superseded.
                if not expected <= header.base_offset <= header.next_offset <= source.next_offset:
                    raise BadBatch(position, f"offset {header.base_offset}: expected {expected} or more")
                expected = header.next_offset
                yield position, header, batch
        except BadBatch as problem:
            raise CorruptLog(source.segment.path, problem.position, problem.reason) from None
        finally:
            file.close()

    # --- the second pass: rewriting

    def _groups(self) -> Iterator[list[Source]]:
        """Adjacent segments whose bytes fit into one segment and whose tombstones may be removed at the same time."""
        group: list[Source] = []
        for source in self._sources:
            if source.base_offset >= self.cleaned_offset:
                break
            if group and not self._fits(group, source):
                yield group
                group = []
            group.append(source)
        if group:
            yield group

    def _fits(self, group: list[Source], source: Source) -> bool:
        size = sum(other.size for other in group) + source.size
        horizons = {self._horizon(other) for other in [*group, source]} - {-1}
        return (
            size <= self._config.segment_bytes
            and source.next_offset - group[0].base_offset <= MAX_OFFSET_SPAN
            and len(horizons) <= 1
        )

    def _horizon(self, source: Source) -> int:
        """When the tombstones of this segment may be removed; -1: it has none after this pass."""
        if source.next_offset > self._dirty_from:
            return self._new_horizon_ms
        return -1 if source.delete_horizon_ms <= self._now_ms else source.delete_horizon_ms

    def _rewrite(self, group: list[Source]) -> None:
        target = Segment(self._disk, self._folder, group[0].base_offset, self._config.index_interval_bytes)
        target.path = self._cleaned_path(target.base_offset)
        target.create()
        copied = [self._copy(source, target) for source in group]
        has_tombstones = any(one.tombstones for one in copied)
        horizon_ms = max(map(self._horizon, group)) if has_tombstones else -1
        target.delete_horizon_ms = max(horizon_ms, *(one.horizon_ms for one in copied))
        if len(group) == 1 and not copied[0].changed:
            self.horizons[group[0].segment] = target.delete_horizon_ms
            target.close()
            self._disk.remove(target.path)
            return
        target.next_offset = group[-1].next_offset
        target.file.flush()
        target.close()
        sources = [source.segment for source in group]
        assert target.index is not None
        self.replacements.append(Replacement(sources, target.path, target.head(), target.index))

    def _copy(self, source: Source, target: Segment) -> Copied:
        """Writes the batches and records of one segment that stay."""
        dropping = source.next_offset <= self._dirty_from and 0 <= source.delete_horizon_ms <= self._now_ms
        tombstones, changed, horizon_ms = 0, False, -1
        for _, header, batch in self._batches(source):
            cleaned = self._clean(header, batch, dropping)
            kept = cleaned.batch
            tombstones += cleaned.tombstones
            horizon_ms = max(horizon_ms, cleaned.horizon_ms)
            changed = changed or kept is not batch
            if kept is not None:
                position = target.size
                target.file.append(kept)
                note(target, position, read_header(kept))
        return Copied(tombstones, changed, horizon_ms)

    def _clean(self, header: BatchHeader, batch: memoryview, drop_tombstones: bool) -> Cleaned:
        """The batch without superseded and aborted records (None if nothing of it stays)."""
        if header.control:
            return Cleaned(batch) if header.is_zero_width else self._clean_marker(header, batch)
        if header.transactional:
            self._with_batches.add(header.producer_id)
        if self._aborted.covers(header):
            return self._clean_aborted(header, batch)
        records = _records(batch)
        if records is None:
            return Cleaned(batch)
        kept = [record for record in records if self._stays(record, drop_tombstones)]
        tombstones = sum(record.value is None for record in kept)
        if len(kept) == len(records) and (kept or self._ends_producer(header)):
            return Cleaned(batch, tombstones)
        if not kept and not self._ends_producer(header):
            return Cleaned(None)
        return Cleaned(_rebuild(header, kept), tombstones)

    def _clean_aborted(self, header: BatchHeader, batch: memoryview) -> Cleaned:
        if not self._ends_producer(header):
            return Cleaned(None)
        return Cleaned(_rebuild(header, []) if header.record_count else batch)

    def _clean_marker(self, header: BatchHeader, batch: memoryview) -> Cleaned:
        if header.producer_id in self._with_batches:
            self._with_batches.discard(header.producer_id)
            return Cleaned(batch)
        self.bare_markers.append(header.base_offset)
        if self._last_markers.get(header.producer_id) == header.base_offset:
            return Cleaned(batch)
        horizon_ms = delete_horizon_ms(header)
        if horizon_ms is None:
            horizon_ms = self._new_horizon_ms
            return Cleaned(with_delete_horizon(batch, header, horizon_ms), horizon_ms=horizon_ms)
        return Cleaned(None) if horizon_ms <= self._now_ms else Cleaned(batch, horizon_ms=horizon_ms)

    def _ends_producer(self, header: BatchHeader) -> bool:
        """Whether this is the last batch, in these segments, of a live producer."""
        return self._producer_ends.get(header.producer_id, -1) == header.last_offset

    def _stays(self, record: Record, drop_tombstones: bool) -> bool:
        if record.key is None:
            # Removed only below cleaned_offset: the rest of the segment may still be dirty.
            return record.offset >= self.cleaned_offset
        if drop_tombstones and record.value is None:
            return False
        return not self._keys.supersedes(record.key, record.offset)


def swap_in(disk: Disk, folder: str, replacement: Replacement) -> None:
    """Replaces the old files by the new one. The `swap` name is the point of no return; recovery completes the rest."""
    head = replacement.head
    name = swap_name(head.base_offset, head.next_offset)
    disk.rename(replacement.path, f"{folder}/{name}")
    disk.sync_dir(folder)
    finish_swap(disk, folder, name)


def _records(batch: memoryview) -> list[Record] | None:
    """None for a batch whose records cannot be parsed: its CRC is right, so its producer wrote it like this."""
    try:
        return read_records(batch)
    except BatchError:
        return None


def _rebuild(header: BatchHeader, records: list[Record]) -> bytes:
    """The same batch with fewer records: offsets, timestamps, codec, producer and term stay."""
    return build_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        log_append_time=header.max_timestamp if header.log_append_time else None,
        transactional=header.transactional,
        last_offset_delta=header.last_offset_delta,
    )


def is_due(segments: Sequence[Segment], config: TopicConfig, cleaned_offset: int, now_ms: int) -> bool:
    """Whether a pass over these sealed segments is due."""
    dirty = [segment for segment in segments if segment.next_offset > cleaned_offset]
    total = sum(segment.size for segment in segments)
    if dirty and total:
        if sum(segment.size for segment in dirty) / total >= config.min_cleanable_dirty_ratio:
            return True
        oldest = min((s.first_timestamp for s in dirty if s.first_timestamp >= 0), default=now_ms)
        if now_ms - oldest > config.max_compaction_lag_ms:
            return True
    return any(0 <= segment.delete_horizon_ms <= now_ms for segment in segments)


def cleanable(
    segments: Sequence[Segment], config: TopicConfig, cleaned_offset: int, now_ms: int
) -> list[Segment]:
    """The segments that a pass may compact: up to the first with records younger than `min.compaction.lag.ms`."""
    result = []
    for segment in segments:
        is_young = segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        if segment.next_offset > cleaned_offset and config.min_compaction_lag_ms > 0 and is_young:
            break
        result.append(segment)
    return result
