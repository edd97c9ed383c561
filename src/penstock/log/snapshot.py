"""Snapshots: the state of the log as of one offset, so that recovery need not read the whole log.

The event loop takes a snapshot when a flush begins, and a thread writes it after that flush has returned: everything
below its offset is then on the disk. Maintenance waits for it before it removes segments, because the state of
producers, terms and controls cannot be derived from deleted records. Two are kept, because a truncation may go below
the newest, and one for the beginning of each segment (its *base snapshot*), which is removed with the segment: after a
deletion of the prefix it has what producers had sent there, whatever is truncated behind it. A replica that starts
behind the prefix receives that.
"""

from struct import Struct
from typing import Self

import msgspec

from penstock.batch.checksum import crc32c
from penstock.errors import CorruptLog
from penstock.log.disk import Disk
from penstock.log.layout import FORMAT_VERSION, SNAPSHOT_SUFFIX, check_format, file_name, offsets_of
from penstock.log.producers import ProducerRow, TransactionRows
from penstock.types import NO_TERM

MAGIC = b"PSNP"
HEAD = Struct(">4sHHII")
KEPT_SNAPSHOTS = 2
MAX_SNAPSHOTS = 6
"""Closing a log writes one more without flushing it. An older one that was flushed must then stay, until there are
this many."""


class Snapshot(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The log's state before the batch at `offset`."""

    offset: int
    base_offset: int
    """The segment that holds, or will hold, the batch at `offset`."""
    position: int
    """The position of that batch in the segment."""
    start_offset: int
    """As in the checkpoint: if the checkpoint is lost, deleted records that terms and controls no longer cover must not
    come back."""
    start_controls: int
    """Control entries before those in `controls`."""
    last_term: int
    gone_term: int
    """The term of the last entry before the first segment at that time."""
    terms: list[tuple[int, int]]
    controls: list[int]
    """Offsets of the control entries in all segments at that time, in this one up to `position`."""
    control_count: int
    """Control entries in this segment before `position`."""
    producers: list[ProducerRow]
    control_terms: list[int] = []
    """One for each of `controls`. Snapshots of the first version have none."""
    control_payloads: list[bytes | None] = []
    """One for each of `controls`; None where a term begins."""
    gone_config: bytes = b""
    """The last payload of the caller's own before the first segment at that time."""
    gaps_below: int = 0
    first_base: int = 0
    """The base offset of the first segment at that time."""
    transactions: TransactionRows = TransactionRows()
    """Snapshots of versions without transactions have none."""

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
    """None if it is damaged: it can be rebuilt, so a bad one is treated as missing."""
    path = snapshot_path(folder, offset)
    try:
        return Snapshot.decode(path, disk.read_file(path))
    except (CorruptLog, FileNotFoundError, msgspec.ValidationError):
        return None


def remove_snapshots_above(disk: Disk, folder: str, offset: int, base_offset: int, position: int) -> None:
    """Durably. Snapshots of positions behind this one are about to become wrong."""
    removed = False
    for found in offsets_of(disk.list_dir(folder), SNAPSHOT_SUFFIX):
        snapshot = load_snapshot(disk, folder, found)
        if snapshot is None or (snapshot.offset, snapshot.base_offset, snapshot.position) > (
            offset,
            base_offset,
            position,
        ):
            disk.remove(snapshot_path(folder, found))
            removed = True
    if removed:
        disk.sync_dir(folder)


def remove_snapshots_in_segments_before(disk: Disk, folder: str, base_offset: int) -> None:
    """Removes them without a flush: some may be there again after a crash."""
    for found in offsets_of(disk.list_dir(folder), SNAPSHOT_SUFFIX):
        snapshot = load_snapshot(disk, folder, found)
        if snapshot is None or snapshot.base_offset < base_offset:
            disk.remove(snapshot_path(folder, found))


def newest_snapshot(disk: Disk, folder: str, start: int, end: int) -> Snapshot | None:
    """The newest valid one of an offset in [start, end]."""
    for offset in reversed(offsets_of(disk.list_dir(folder), SNAPSHOT_SUFFIX)):
        snapshot = load_snapshot(disk, folder, offset) if start <= offset <= end else None
        if snapshot is not None:
            return snapshot
    return None


def control_columns(snapshot: Snapshot) -> tuple[list[int], list[bytes | None]]:
    """Terms and payloads of the snapshot's control entries. The first version did not have them; it wrote control
    entries only when a term began, so the last terms are those of the last entries."""
    if len(snapshot.control_terms) == len(snapshot.controls):
        return snapshot.control_terms, snapshot.control_payloads
    known = [term for term, _ in snapshot.terms][-len(snapshot.controls) :]
    before = min(snapshot.gone_term, known[0] if known else NO_TERM)
    missing = len(snapshot.controls) - len(known)
    return [before] * missing + known, [None] * len(snapshot.controls)
