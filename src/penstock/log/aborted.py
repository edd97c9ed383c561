"""The index of aborted transactions: which records a reader of committed records must leave out.

A reader gets stored bytes, those of aborted transactions among them, and a list of the aborted transactions that
overlap them (Kafka's Fetch). It drops the batches of such a producer from the transaction's first offset to its abort
marker. So an entry without its marker would make it drop what the producer committed later: an entry goes, at the
latest, when compaction removes the marker.

The columns have an entry per aborted transaction in the order of the markers:
  last_offset    rises: the marker's own offset
  stable_offset  does not fall: where the first transaction began that was still open behind the marker, or the offset
                 after the marker. A transaction that was aborted later, and began before some offset, was open here,
                 so all entries behind one whose stable_offset is at or above that offset begin there or later.
Both ends of a search are bisections. An entry takes 32 bytes, and the smallest aborted transaction 140 on the disk; it
is trimmed when the log starts behind its marker.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.batch import BatchHeader
from penstock.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT

COLUMNS = 4
INT64_SIZE = 8
_DATA_OR_MARKER = TRANSACTIONAL_BIT | CONTROL_BIT


class AbortedTransaction(NamedTuple):
    """One transaction that was aborted on this partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of its marker."""
    stable_offset: int


class AbortedIndex:
    """Aborted transactions whose markers are in the log, in the order of these."""

    __slots__ = ("_firsts", "_lasts", "_producer_ids", "_stables")

    def __init__(self) -> None:
        self._producer_ids = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stables = array("q")

    def __len__(self) -> int:
        return len(self._lasts)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(AbortedTransaction, *self._columns())

    def _columns(self) -> tuple["array[int]", ...]:
        return self._producer_ids, self._firsts, self._lasts, self._stables

    @property
    def last_offsets(self) -> "array[int]":
        """The offsets of the markers, rising."""
        return self._lasts

    def add(self, aborted: AbortedTransaction) -> None:
        for column, value in zip(self._columns(), aborted, strict=True):
            column.append(value)

    def between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those with an offset in [start, end), markers included."""
        at, behind = bisect_left(self._lasts, start), bisect_left(self._stables, end)
        # The entry whose stable_offset reaches `end` may itself overlap; the ones after it cannot.
        found = [self._get(number) for number in range(at, min(behind + 1, len(self)))]
        return [one for one in found if one.first_offset < end]

    def _get(self, number: int) -> AbortedTransaction:
        return AbortedTransaction(*(column[number] for column in self._columns()))

    # --- removing

    def trim(self, start_offset: int) -> None:
        """The log starts here: readers no longer meet markers below."""
        count = bisect_left(self._lasts, start_offset)
        if count:
            for column in self._columns():
                del column[:count]

    def truncate(self, offset: int) -> None:
        """The log ends here."""
        count = bisect_left(self._lasts, offset)
        for column in self._columns():
            del column[count:]

    def remove(self, markers: Iterable[int]) -> None:
        """Removes the transactions with these markers: no record of them is left."""
        gone = frozenset(markers)
        kept = [one for one in self if one.last_offset not in gone]
        if len(kept) < len(self):
            self.clear()
            for one in kept:
                self.add(one)

    def clear(self) -> None:
        for column in self._columns():
            del column[:]

    # --- in snapshots

    def encode(self) -> bytes:
        """Column by column, big-endian."""
        return b"".join(_swapped(column).tobytes() for column in self._columns())

    def decode(self, data: bytes) -> None:
        """Replaces all entries. Raises ValueError if these bytes are no index."""
        if len(data) % (COLUMNS * INT64_SIZE):
            raise ValueError(f"{len(data)} bytes: expected a multiple of {COLUMNS * INT64_SIZE}")
        size = len(data) // COLUMNS
        for number, column in enumerate(self._columns()):
            read = array("q", data[number * size : (number + 1) * size])
            column[:] = _swapped(read)


def _swapped(column: "array[int]") -> "array[int]":
    """The column with the bytes of its numbers turned round, where the machine is not big-endian."""
    copy = array("q", column)
    if sys.byteorder == "little":
        copy.byteswap()
    return copy


class AbortedRanges:
    """Tells, batch by batch, whether its records were aborted. Immutable, so threads may use it."""

    __slots__ = ("_ranges",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for one in aborted:
            # A producer has one transaction at a time: its ranges rise and do not overlap.
            self._ranges.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))

    def covers(self, header: BatchHeader) -> bool:
        """Whether these are records of an aborted transaction; a marker is not."""
        if header.attributes & _DATA_OR_MARKER != TRANSACTIONAL_BIT:
            return False
        ranges = self._ranges.get(header.producer_id)
        if not ranges:
            return False
        at = bisect_left(ranges, header.base_offset, key=lambda one: one[1])
        return at < len(ranges) and ranges[at][0] <= header.base_offset


NOTHING_ABORTED = AbortedRanges(())
