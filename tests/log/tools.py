"""Helpers for the tests of the log: batches to write, and functions that read a whole log."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.batch import (
    BatchHeader,
    Buffer,
    EndMarker,
    Record,
    build_batch,
    build_marker,
    check_produced,
    iter_headers,
    read_header,
    read_marker,
    read_records,
)
from penstock.config import TopicConfig
from penstock.log import Appended, Log
from penstock.types import Offset, Term

NOW_MS = 1_700_000_000_000
FOLDER = "topics/orders-0"


def batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    keys: list[bytes | None] | None = None,
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] | None = None,
    compression: int = 0,
    transactional: bool = False,
) -> tuple[bytearray, BatchHeader]:
    """A batch as a client would send it. `producer`: id, epoch, first sequence."""
    names = keys or [key] * len(values)
    records = [Record(i, timestamp + i, names[i], value) for i, value in enumerate(values)]
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    data = bytearray(
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            compression=compression,
            transactional=transactional,
        )
    )
    return data, check_produced(data)


def append(
    log: Log, *values: bytes | None, term: int = 1, now_ms: int = NOW_MS, **options: object
) -> Appended:
    data, header = batch(*(values or (b"v",)), **options)  # type: ignore[arg-type]
    return log.writer.append(data, header, Term(term), now_ms)


def end(
    log: Log, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, term: int = 1
) -> Appended:
    """Appends the marker that ends the producer's transaction."""
    marker = EndMarker(commit, coordinator_epoch)
    data = build_marker(marker, producer_id=producer_id, producer_epoch=epoch, timestamp_ms=NOW_MS)
    return log.writer.append(data, read_header(data), Term(term), NOW_MS)


def headers_of(data: Buffer) -> list[BatchHeader]:
    """The headers of all entries in `data`, as Raft's core reads them. BatchError if one is truncated."""
    found: list[BatchHeader] = []
    position = 0
    while position < len(data):
        found.append(read_header(data, position))
        position += found[-1].size
    return found


def append_entries(log: Log, data: Buffer, now_ms: int = NOW_MS, *, gaps_below: int = 0) -> None:
    """As a follower that received them."""
    log.writer.append_entries(data, headers_of(data), now_ms, gaps_below=gaps_below)


def flush(log: Log) -> None:
    ticket = log.flushes.begin()
    if ticket is not None:
        ticket.run()
        log.flushes.finish(ticket)


def tidy(log: Log) -> None:
    """Three rounds of the node's housekeeping: save a snapshot, remove the files that it replaced, check."""
    for _ in range(3):
        chores = log.maintenance.next_task()
        if chores is not None:
            chores()
    assert log.maintenance.next_task() is None


def compact(log: Log, now_ms: int = NOW_MS, **options: int) -> bool:
    """One pass of compaction, with the snapshot that it waits for. Whether there was one."""
    plan = log.compactor.plan(now_ms, **options)
    if plan is None:
        tidy(log)
        plan = log.compactor.plan(now_ms, **options)
    if plan is None:
        return False
    plan.run()
    log.compactor.finish(plan)
    return True


def stored(log: Log, max_bytes: int = 1000) -> Iterator[tuple[BatchHeader, bytes]]:
    """All batches that a reader gets, from the log's start to its end."""
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes, limit=log.end_offset)
        if not data:
            return
        for position, header in iter_headers(data):
            yield header, data[position : position + header.size]
            offset = Offset(header.next_offset)


def records(log: Log) -> list[Record]:
    """All records that a reader gets. Those before the start may share a batch with the first: a client skips
    them."""
    return [r for _, data in stored(log) for r in read_records(data) if r.offset >= log.start_offset]


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records(log)]


def config(**settings: object) -> TopicConfig:
    return TopicConfig(**settings)  # type: ignore[arg-type]


ProducerFacts = tuple[int, int, tuple[tuple[int, ...], ...]]


def producer_state(log: Log) -> list[ProducerFacts]:
    """Everything about producers but when they were last seen: id, epoch, remembered batches."""
    return sorted((row[0], row[1], tuple(map(tuple, row[3]))) for row in log.producers.rows())


def committed_view(log: Log, offset: int, end_offset: int, max_bytes: int = 300) -> list[Record]:
    """The records that a client with isolation.level=read_committed shows, by the algorithm of Kafka's own client."""
    seen: list[Record] = []
    while offset < end_offset and (data := log.read(Offset(offset), max_bytes, limit=Offset(end_offset))):
        behind = max(header.next_offset for _, header in iter_headers(data))
        waiting = sorted(log.transactions.aborted.between(offset, behind), key=lambda one: one.first_offset)
        dropped: set[int] = set()
        for position, header in iter_headers(data):
            while waiting and waiting[0].first_offset <= header.last_offset:
                dropped.add(waiting.pop(0).producer_id)
            content = data[position : position + header.size]
            if header.control:
                marker = read_marker(content, header)
                if marker is not None and not marker.commit:
                    dropped.discard(header.producer_id)
            elif not header.transactional or header.producer_id not in dropped:
                seen += [record for record in read_records(content) if record.offset >= offset]
        offset = behind
    return seen


def pread_with_a_bad_sector(at: int, path: Path | None = None) -> Callable[[int, int, int], bytes]:
    """Reads as Linux does: up to the sector without an error, and not from it on. Of any file, or of this one."""
    read, inode = os.pread, None if path is None else path.stat().st_ino

    def pread(fd: int, count: int, position: int) -> bytes:
        if inode not in (None, os.fstat(fd).st_ino):
            return read(fd, count, position)
        if position >= at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, min(count, at - position), position)

    return pread
