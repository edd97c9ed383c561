"""A log in memory, as Raft's core sees it: entries of given widths, a flushed line, a deleted prefix."""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from penstock.batch import iter_headers, zero_width_batch
from penstock.batch.header import HEADER, HEADER_SIZE, MAGIC, MIN_BATCH_LENGTH, stamp
from penstock.log.layout import CALLERS_OWN, TERM_START, control_payload
from penstock.raft import GroupConfig
from penstock.raft.config import decode, encode


class Entry(NamedTuple):
    start: int
    end: int
    term: int
    data: bytes


def batch(width: int, content: bytes) -> bytearray:
    """A batch that owns `width` offsets. The tests never open it, so it holds no records, only its content."""
    data = bytearray(HEADER_SIZE + len(content))
    length = MIN_BATCH_LENGTH + len(content)
    HEADER.pack_into(data, 0, 0, length, 0, MAGIC, 0, 0, width - 1, -1, -1, -1, -1, -1, width)
    data[HEADER_SIZE:] = content
    return data


class ToyLog:
    """Writes show at once; `flush` makes them durable; `crash` forgets the rest."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._ends: list[int] = []
        self.first_index = 0
        self.first_offset = 0
        self.prefix_term = -1
        self.start_offset = 0
        self.flushed_index = 0

    # ---- read by Raft

    @property
    def end_index(self) -> int:
        return self.entries[-1].end if self.entries else self.first_index

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.prefix_term

    def term_before(self, index: int) -> int | None:
        if index == 0:
            return -1
        if index == self.first_index:
            return self.prefix_term
        if not self.first_index < index <= self.end_index:
            return None
        return self.entries[bisect_left(self._ends, index)].term

    def floor(self, index: int) -> int:
        at = bisect_right(self._ends, index)
        return self._ends[at - 1] if at else self.first_index

    def end_of_term_index(self, term: int) -> int:
        at = bisect_right(self.entries, term, key=lambda entry: entry.term)
        return self.entries[at - 1].end if at else self.first_index

    def read_entries(self, index: int, max_bytes: int) -> tuple[bytes, int]:
        assert self.floor(index) == index, "reads begin at a boundary"
        parts: list[bytes] = []
        size, end = 0, index
        for entry in self.entries[bisect_right(self._ends, index) :]:
            if parts and size + len(entry.data) > max_bytes:
                break
            parts.append(entry.data)
            size, end = size + len(entry.data), entry.end
        return b"".join(parts), end

    # ---- called by its owner

    @property
    def end_offset(self) -> int:
        if not self.entries:
            return self.first_offset
        return next(header for _, header in iter_headers(self.entries[-1].data)).next_offset

    def append(self, width: int, term: int, content: bytes = b"") -> None:
        if term != self.last_term:
            self.begin_term(term)
        data = batch(width, content)
        stamp(data, 0, self.end_offset, term)
        self._add(width, term, bytes(data))

    def begin_term(self, term: int) -> None:
        assert term > self.last_term
        self._control(TERM_START, b"", term)

    def append_config(self, payload: bytes, term: int) -> None:
        assert term == self.last_term
        self._control(CALLERS_OWN, payload, term)

    def _control(self, kind: int, payload: bytes, term: int) -> None:
        offset = self.end_offset
        content = control_payload(kind, term, offset, payload)
        self._add(1, term, zero_width_batch(offset=offset, term=term, payload=content))

    def append_entries(self, data: bytes) -> None:
        for position, header in iter_headers(data):
            assert header.base_offset == self.end_offset, "offsets are consecutive"
            assert header.leader_epoch == self.last_term or header.is_zero_width, (
                "a term begins with its entry"
            )
            assert header.leader_epoch >= self.last_term
            width = header.last_offset_delta + 1 or 1
            self._add(width, header.leader_epoch, data[position : position + header.size])

    def _add(self, width: int, term: int, data: bytes) -> None:
        end = self.end_index + width
        self.entries.append(Entry(self.end_index, end, term, data))
        self._ends.append(end)

    def truncate(self, index: int) -> None:
        assert self.floor(index) == index, "only boundaries are cut"
        assert index <= self.end_index
        at = bisect_right(self._ends, index)
        del self.entries[at:], self._ends[at:]
        self.flushed_index = min(self.flushed_index, index)

    def flush(self) -> None:
        self.flushed_index = self.end_index

    def crash(self, keep_index: int = 0) -> None:
        """Power is cut: what was not flushed is gone, but for what happened to reach the disk."""
        self.truncate(max(self.flushed_index, self.floor(keep_index)))
        self.flush()

    def delete_prefix(self, index: int) -> None:
        index = self.floor(min(index, self.flushed_index))
        at = bisect_right(self._ends, index)
        if not at:
            return
        term = self.entries[at - 1].term
        offset = next(header for _, header in iter_headers(self.entries[at - 1].data)).next_offset
        del self.entries[:at], self._ends[:at]
        self.first_index, self.first_offset, self.prefix_term = index, offset, term
        self.start_offset = max(self.start_offset, offset)

    def prefix(self) -> bytes:
        return b"%d %d %d" % (self.first_offset, self.start_offset, self.prefix_term)

    def reset(self, first_index: int, prefix: bytes) -> None:
        self.entries, self._ends = [], []
        self.first_index = self.flushed_index = first_index
        self.first_offset, self.start_offset, self.prefix_term = map(int, prefix.split())

    def configs(self) -> list[tuple[int, GroupConfig]]:
        """The configurations in it, each with the end of its entry."""
        found = []
        for entry in self.entries:
            payload = entry.data[HEADER_SIZE:]
            if entry.end - entry.start == 1 and payload[:1] == bytes([CALLERS_OWN]) and len(payload) > 13:
                header = next(header for _, header in iter_headers(entry.data))
                if header.is_zero_width:
                    found.append((entry.end, decode(payload[13:])))
        return found


__all__ = ["Entry", "ToyLog", "batch", "encode"]
