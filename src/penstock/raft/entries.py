"""Entries as they travel: back to back, each with its own head, never opened.

Indexes do not travel with entries: a batch tells its offsets, and its index is its offset plus the number of control
entries before it. That number is the same for all logs of a group, and a message tells the index at which its entries
end, so it follows by counting backwards from there. Counting forwards from `prev_index` would not do: where compaction
has been, whole batches may be missing between it and the first entry, as between any two.
"""

from struct import error

from penstock.batch import BatchHeader
from penstock.batch.header import (
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MIN_BATCH_LENGTH,
    new_header,
)
from penstock.errors import ProtocolViolation
from penstock.raft.config import GroupConfig, decode
from penstock.raft.effects import ControlKind
from penstock.raft.messages import Append

CONTROL_HEAD_SIZE = 13
"""The head of a control entry's payload: kind, term and offset, as the log writes them."""


class Entries:
    """The boundaries of the entries in one append: parallel lists, because most have one entry and some thousands."""

    __slots__ = ("configs", "data", "ends", "headers", "positions", "starts", "terms")

    def __init__(self, message: Append) -> None:
        """Raises ProtocolViolation unless these are whole entries, in order, that fill the range they are said to."""
        self.data = message.entries
        self.headers: list[BatchHeader] = []
        self.positions: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.terms: list[int] = []
        self.configs: list[tuple[int, GroupConfig]] = []
        if self.data:
            self._walk(message)
            self._shift(message)
        elif message.end_index != message.prev_index:
            raise ProtocolViolation(f"no entries from {message.prev_index} to {message.end_index}")

    def _walk(self, message: Append) -> None:
        """Notes every entry, with its place in offsets plus the control entries in this message."""
        data, size = self.data, len(self.data)
        position = controls = 0
        previous = -1
        term = message.prev_term
        try:
            while position < size:
                header = new_header(HEADER.unpack_from(data, position))
                base, length, entry_term, magic, _, attributes, delta = header[:7]
                start = base + controls
                if delta == -1 and attributes & CONTROL_BIT:
                    controls += 1
                    self._note_control(position, length, base + controls)
                elif delta < 0:
                    raise ProtocolViolation(f"last_offset_delta={delta} in entries")
                if magic != MAGIC or length < MIN_BATCH_LENGTH or base < 0 or start < previous:
                    raise ProtocolViolation(f"entries at byte {position} are not in order")
                if entry_term < term or entry_term > message.term:
                    raise ProtocolViolation(f"an entry of term {entry_term} after {term} in {message.term}")
                term = entry_term
                previous = base + delta + 1 + controls
                self.headers.append(header)
                self.positions.append(position)
                self.starts.append(start)
                self.ends.append(previous)
                self.terms.append(entry_term)
                position += LENGTH_OVERHEAD + length
        except error:
            raise ProtocolViolation(f"entries break off at byte {position}") from None
        if position != size:
            raise ProtocolViolation(f"entries break off at byte {size}")

    def _note_control(self, position: int, length: int, end: int) -> None:
        payload = position + HEADER_SIZE
        end_position = position + LENGTH_OVERHEAD + length
        if not payload + CONTROL_HEAD_SIZE <= end_position <= len(self.data):
            raise ProtocolViolation(f"a control entry at byte {position} is too short")
        if self.data[payload] == ControlKind.CONFIG:
            self.configs.append((end, decode(self.data[payload + CONTROL_HEAD_SIZE : end_position])))

    def _shift(self, message: Append) -> None:
        """Adds the control entries before this message, which its end index tells."""
        before = message.end_index - self.ends[-1]
        if before < 0 or self.starts[0] + before < message.prev_index:
            raise ProtocolViolation(
                f"entries do not fit between {message.prev_index} and {message.end_index}"
            )
        if before:
            self.starts = [start + before for start in self.starts]
            self.ends = [end + before for end in self.ends]
            self.configs = [(end + before, config) for end, config in self.configs]
