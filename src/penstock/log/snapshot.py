"""Snapshots: what the log knows besides its bytes, as of one offset, so that recovery need not read it all.

A snapshot is taken on the event loop when a flush begins, and written by a thread after that flush has returned:
everything below its offset is then on the disk. Retention waits for it before it removes segments, because what it
says of producers, terms and controls cannot be derived from records that are gone. Two are kept: truncation may go
below the newest.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Self

import msgspec
from crc32c import crc32c

from penstock.errors import CorruptLog
from penstock.log.disk import Disk
from penstock.log.layout import FORMAT_VERSION, SNAPSHOT_SUFFIX, check_format, file_name, offsets_of
from penstock.log.producers import UNSEEN, ProducerRow, ProducerStates
from penstock.log.segment import Segment

MAGIC = b"PSNP"
HEAD = Struct(">4sHHII")
KEPT_SNAPSHOTS = 2
MAX_SNAPSHOTS = 6
"""Closing a log writes one more without flushing it. Then an older one that was flushed must stay, unless there are
that many."""


class Snapshot(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The log's state before the batch at `offset`."""

    offset: int
    base_offset: int
    """The segment that holds, or will hold, the batch at `offset` ..."""
    position: int
    """... and where in it."""
    start_offset: int
    """As in the checkpoint: if that one is lost, it must not bring back what terms and controls no longer cover."""
    start_controls: int
    """Control entries before those in `controls`."""
    last_term: int
    term_before_start: int
    terms: list[tuple[int, int]]
    controls: list[int]
    """Offsets of the control entries in all segments of that time, this one included up to `position`."""
    control_count: int
    """Control entries in this segment before `position`."""
    producers: list[ProducerRow]

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return HEAD.pack(MAGIC, FORMAT_VERSION, 0, len(body), crc32c(body)) + body

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        if len(data) < HEAD.size:
            raise CorruptLog(path, 0, "shorter than a snapshot's head")
        magic, version, _, length, crc = HEAD.unpack_from(data)
        body = data[HEAD.size :]
        if len(body) != length or crc32c(body) != crc:
            raise CorruptLog(path, HEAD.size, "the snapshot's checksum is wrong")
        check_format(path, magic, MAGIC, version)
        return msgspec.msgpack.decode(body, type=cls)


def snapshot_path(folder: str, offset: int) -> str:
    return f"{folder}/{file_name(offset, SNAPSHOT_SUFFIX)}"


def load_snapshot(disk: Disk, folder: str, offset: int) -> Snapshot | None:
    """None if it is not whole: it can be rebuilt, so a bad one is as good as none."""
    path = snapshot_path(folder, offset)
    try:
        return Snapshot.decode(path, disk.read_file(path))
    except (CorruptLog, FileNotFoundError, msgspec.ValidationError):
        return None


def remove_snapshots_above(disk: Disk, folder: str, offset: int, base_offset: int, position: int) -> None:
    """Durably: those that speak of what is behind this place are about to be wrong."""
    removed = False
    for found in offsets_of(disk.list_dir(folder), SNAPSHOT_SUFFIX):
        snapshot = load_snapshot(disk, folder, found)
        at = (snapshot.offset, snapshot.base_offset, snapshot.position) if snapshot is not None else None
        if at is None or (at[0] >= offset and at != (offset, base_offset, position)):
            disk.remove(snapshot_path(folder, found))
            removed = True
    if removed:
        disk.sync_dir(folder)


def replay_producers(
    disk: Disk, folder: str, segments: Sequence[Segment], end_offset: int
) -> tuple[ProducerStates, bool]:
    """What producers had sent before `end_offset`, and whether that could be told from a snapshot on. By offsets:
    positions in a snapshot that is older than a compaction are no longer true."""
    producers, start = ProducerStates(), segments[0].base_offset
    snapshot = newest_snapshot(disk, folder, start, end_offset)
    if snapshot is not None:
        producers.restore(snapshot.producers)
        start = snapshot.offset
    for segment in segments:
        if segment.next_offset > start:
            for _, header in segment.headers(segment.locate(start), segment.size):
                if header.base_offset >= end_offset:
                    break
                if header.producer_id >= 0:
                    producers.record(header, header.base_offset, UNSEEN)
    return producers, snapshot is not None


def newest_snapshot(disk: Disk, folder: str, start: int, end: int) -> Snapshot | None:
    """The newest that is whole and of an offset in [start, end]."""
    for offset in reversed(offsets_of(disk.list_dir(folder), SNAPSHOT_SUFFIX)):
        snapshot = load_snapshot(disk, folder, offset) if start <= offset <= end else None
        if snapshot is not None:
            return snapshot
    return None
