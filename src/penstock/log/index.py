"""Sparse indexes of one segment, in memory while they grow and in files once the segment is sealed.

Every `index.interval.bytes` of log one entry (offset, position), plus one for each control entry and one for the batch
after it, so that a search ends at most one interval before its batch. Eight bytes per 4 KiB of log: 2 MB for a segment
of 1 GiB. Timestamps may go up and down between batches; the time index holds the running maximum, which only rises:
"no record below this offset is later than this".
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple, Self

from penstock.batch.checksum import crc32c
from penstock.log.layout import FORMAT_VERSION

HEAD = Struct(">4sHHqqqqqqIII")
HEAD_CRC = Struct(">I")
HEAD_SIZE = HEAD.size + HEAD_CRC.size
OFFSET_MAGIC = b"PIDX"
TIME_MAGIC = b"PTIX"

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12

assert array("I").itemsize == 4, "the index files have columns of 4 bytes"


class IndexHead(NamedTuple):
    """The facts about its segment in an index file."""

    base_offset: int
    log_size: int
    next_offset: int
    max_timestamp: int
    first_timestamp: int
    delete_horizon_ms: int
    control_count: int


class SegmentIndex:
    """Both indexes of a segment. Offsets are relative to the segment's base."""

    __slots__ = ("offsets", "positions", "time_offsets", "times")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self.times = array("q")
        self.time_offsets = array("I")

    def add(self, offset: int, position: int, max_timestamp_before: int) -> None:
        """A batch with this offset begins at `position`; nothing before it is later than the timestamp."""
        self.offsets.append(offset)
        self.positions.append(position)
        if max_timestamp_before >= 0 and (not self.times or max_timestamp_before > self.times[-1]):
            self.times.append(max_timestamp_before)
            self.time_offsets.append(offset)

    def size_bytes(self) -> int:
        """The size of the larger file, without its head: `segment.index.bytes` bounds it."""
        return max(len(self.offsets) * OFFSET_ENTRY_SIZE, len(self.times) * TIME_ENTRY_SIZE)

    def floor(self, offset: int) -> tuple[int, int]:
        """The last entry at or before `offset`: (offset, position). The segment's beginning if there is none."""
        at = bisect_right(self.offsets, offset) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else (0, 0)

    def first_at(self, offset: int) -> int | None:
        """The position of the first entry with exactly this offset: a control entry comes before its batch."""
        at = bisect_left(self.offsets, offset)
        return self.positions[at] if at < len(self.offsets) and self.offsets[at] == offset else None

    def floor_position(self, position: int) -> tuple[int, int]:
        """The last entry at or before `position`: (offset, position)."""
        at = bisect_right(self.positions, position) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else (0, 0)

    def offset_before_time(self, timestamp: int) -> int:
        """The greatest offset in the index below which every record is earlier than `timestamp`."""
        at = bisect_left(self.times, timestamp) - 1
        return self.time_offsets[at] if at >= 0 else 0

    def max_time_before(self, offset: int) -> tuple[int, int]:
        """The last time entry at or before `offset`: (timestamp, offset); (-1, 0) if there is none."""
        at = bisect_right(self.time_offsets, offset) - 1
        return (self.times[at], self.time_offsets[at]) if at >= 0 else (-1, 0)

    def truncate(self, position: int) -> None:
        """Removes batches that begin at or after `position`."""
        keep = bisect_left(self.positions, position)
        end = self.offsets[keep] if keep < len(self.offsets) else None
        del self.offsets[keep:]
        del self.positions[keep:]
        if end is not None:
            keep = bisect_left(self.time_offsets, end)
            del self.times[keep:]
            del self.time_offsets[keep:]

    def copy(self) -> Self:
        """A copy that a thread can write to a file while the original grows."""
        other = type(self)()
        other.offsets = self.offsets[:]
        other.positions = self.positions[:]
        other.times = self.times[:]
        other.time_offsets = self.time_offsets[:]
        return other

    def encode(self, head: IndexHead) -> tuple[bytes, bytes]:
        """The bytes of .index and .timeindex."""
        return (
            _encode(OFFSET_MAGIC, head, self.offsets, self.positions),
            _encode(TIME_MAGIC, head, self.times, self.time_offsets),
        )

    @classmethod
    def decode(cls, head: IndexHead, offset_file: bytes, time_file: bytes) -> Self | None:
        """None unless both files are whole and belong to this head."""
        index = cls()
        if not _decode(OFFSET_MAGIC, head, offset_file, index.offsets, index.positions):
            return None
        if not _decode(TIME_MAGIC, head, time_file, index.times, index.time_offsets):
            return None
        return index


def read_head(data: bytes, magic: bytes = OFFSET_MAGIC) -> IndexHead | None:
    """The head of an index file, or None if these bytes are not one."""
    if len(data) < HEAD_SIZE or HEAD_CRC.unpack_from(data, HEAD.size)[0] != crc32c(data[: HEAD.size]):
        return None
    found, version, _, base, size, following, newest, first, horizon, controls, _, _ = HEAD.unpack_from(data)
    if found != magic or version != FORMAT_VERSION:
        return None
    return IndexHead(base, size, following, newest, first, horizon, controls)


def _encode(magic: bytes, head: IndexHead, first: "array[int]", second: "array[int]") -> bytes:
    body = _big_endian(first) + _big_endian(second)
    packed = HEAD.pack(magic, FORMAT_VERSION, 0, *head, len(first), crc32c(body))
    return packed + HEAD_CRC.pack(crc32c(packed)) + body


def _decode(magic: bytes, head: IndexHead, data: bytes, first: "array[int]", second: "array[int]") -> bool:
    if read_head(data, magic) != head:
        return False
    count, crc = HEAD.unpack_from(data)[-2:]
    body = data[HEAD_SIZE:]
    if len(body) != count * (first.itemsize + second.itemsize) or crc32c(body) != crc:
        return False
    first.frombytes(body[: count * first.itemsize])
    second.frombytes(body[count * first.itemsize :])
    if sys.byteorder == "little":
        first.byteswap()
        second.byteswap()
    return True


def _big_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()
