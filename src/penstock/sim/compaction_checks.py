"""Checks which records compaction removes from a log, and which it keeps.

The truth of a group is everything that was ever committed. A compacted log relates to it like this:

1  Each of its batches is one of the truth: the same range of offsets, term and producer. Its records are some of that
   batch's records, unchanged. All control entries are there.
2  A missing record was superseded: the truth has a later one with its key. Or it is a tombstone, and then no older
   record of its key is left; unless the tombstone was missing already in the log that this replica received its entries
   from. That happens to a replica that is away for longer than tombstones are kept, in Kafka as well.
3  So a reader from the start of the log to any later commit ends with the last value of every key in the truth; for a
   key that was deleted last, with its tombstone or nothing.
4  A replica compacts only what it knows to be committed: entries that a leader may still truncate supersede nothing.
5  Records of a transaction count, and supersede others, when its marker commits it. Until then none of them is missing.
   Aborted records may be missing, and never count. A marker is there as long as a batch of its transaction is.

Each replica compacts by itself, so the missing records may differ at any time.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from penstock.batch import BatchHeader, Record, read_header, read_marker, read_records
from penstock.sim.entries import Entry
from penstock.sim.outcome import Violation


class CommittedKeys:
    """The truth of one group, by key."""

    def __init__(self) -> None:
        self._records: dict[int, list[Record]] = {}
        """The records of each batch, by its first offset."""
        self._batches: dict[int, Entry] = {}
        self._by_key: dict[bytes, list[Record]] = {}
        """All records of a key that count, in order."""
        self._open: dict[int, list[Entry]] = {}
        """The batches of open transactions, by producer."""
        self._undecided: set[int] = set()
        """The offsets of their records."""
        self._aborted: set[int] = set()
        self._ended_by: dict[int, list[int]] = {}
        """The first offsets of the batches of each transaction, by the offset of its marker."""
        self._received_without: dict[str, set[int]] = {}
        """The tombstones that were missing already when a replica received their batches."""

    def add(self, entry: Entry) -> None:
        """An entry was committed."""
        if entry.control:
            return
        header = read_header(entry.data)
        self._batches[entry.offset] = entry
        self._records[entry.offset] = records = read_records(entry.data)
        if header.control:
            self._end(entry, header)
        elif header.transactional:
            self._open.setdefault(header.producer_id, []).append(entry)
            self._undecided.update(record.offset for record in records)
        else:
            self._count(records)

    def _end(self, entry: Entry, header: BatchHeader) -> None:
        """A marker decides on a transaction (5)."""
        marker = read_marker(entry.data, header)
        assert marker is not None
        ended = self._open.pop(header.producer_id, [])
        self._ended_by[entry.offset] = [one.offset for one in ended]
        for one in ended:
            records = self._records[one.offset]
            offsets = {record.offset for record in records}
            self._undecided -= offsets
            if marker.commit:
                self._count(records)
            else:
                self._aborted |= offsets

    def _count(self, records: Iterable[Record]) -> None:
        for record in records:
            of_key = self._by_key.setdefault(record.key or b"", [])
            insort(of_key, record, key=lambda one: one.offset)

    def _is_counted(self, offset: int) -> bool:
        return offset not in self._undecided and offset not in self._aborted

    # --- one batch

    def wrong_with(self, offset: int, data: bytes) -> str:
        """Why this is not what compaction may leave of the batch at `offset` (1); "" if it is."""
        entry = self._batches.get(offset)
        if entry is None:
            return "was never committed"
        if data == entry.data:
            return ""
        mine, theirs = read_header(data), read_header(entry.data)
        if (
            mine.last_offset_delta,
            mine.leader_epoch,
            mine.producer_id,
            mine.producer_epoch,
            mine.base_sequence,
        ) != (
            theirs.last_offset_delta,
            theirs.leader_epoch,
            theirs.producer_id,
            theirs.producer_epoch,
            theirs.base_sequence,
        ):
            return f"has another head than what was committed: {mine}, not {theirs}"
        committed = self._records[offset]
        odd = [record for record in read_records(data) if record not in committed]
        return f"has a record that was never committed: {odd[0]}" if odd else ""

    # --- a log, or a part of one

    def check(
        self,
        name: str,
        mine: Sequence[Entry],
        truth: Sequence[Entry],
        *,
        whole: bool,
        received_below: int = 0,
    ) -> None:
        """`mine` is a compaction of `truth`. `whole`: it begins with the log, so that no older record can be elsewhere.
        Below `received_below` it may have come from a log that was compacted."""
        if [one for one in mine if one.control] != [one for one in truth if one.control]:
            raise Violation("control entries stay", f"{name} has others than were committed")
        kept = _offsets(mine)
        oldest: dict[bytes, int] = {}
        for entry in mine:
            if entry.control:
                continue
            wrong = self.wrong_with(entry.offset, entry.data)
            if wrong:
                raise Violation("compaction only leaves out", f"{name}: {entry.offset} {wrong}")
            for record in read_records(entry.data):
                if entry.offset not in self._ended_by and self._is_counted(record.offset):
                    oldest.setdefault(record.key or b"", record.offset)
        self._check_markers(name, {one.offset for one in mine if not one.control}, truth)
        without = self._received_without.get(name, ())
        own = (
            record
            for record in self._missing(kept, truth)
            if record.value is not None or (record.offset >= received_below and record.offset not in without)
        )
        self._check_missing(name, own, oldest if whole else {})

    def received(self, name: str, mine: Iterable[Entry], truth: Iterable[Entry], *, cleaned: int) -> None:
        """The replica has just learnt that these entries are committed. It compacts only what it knows to be committed,
        so tombstones that are missing behind `cleaned`, the end of its last pass, were missing when they arrived."""
        missing = (one for one in self._missing(_offsets(mine), truth) if one.value is None)
        found = {record.offset for record in missing if record.offset >= cleaned}
        self._received_without.setdefault(name, set()).update(found)

    def _check_markers(self, name: str, batches: set[int], truth: Iterable[Entry]) -> None:
        """(5)"""
        for entry in truth:
            if entry.control:
                continue
            kept = [one for one in self._ended_by.get(entry.offset, ()) if one in batches]
            if kept and entry.offset not in batches:
                raise Violation(
                    "a marker stays as long as its transaction",
                    f"{name} has the batch at {kept[0]}, but not the marker at {entry.offset}",
                )

    def _missing(self, kept: set[int], truth: Iterable[Entry]) -> Iterator[Record]:
        """The records that are not there. Markers have a rule of their own, and aborted records may go."""
        for entry in truth:
            if not entry.control and entry.offset not in self._ended_by:
                for one in self._records[entry.offset]:
                    if one.offset not in kept and one.offset not in self._aborted:
                        yield one

    def _check_missing(self, name: str, missing: Iterable[Record], oldest: Mapping[bytes, int]) -> None:
        for record in missing:
            key = record.key or b""
            if record.offset in self._undecided:
                raise Violation(
                    "records of an open transaction stay", f"{name} has lost {record.offset} of {key!r}"
                )
            of_key = self._by_key[key]
            if record.offset < of_key[-1].offset:
                continue
            if record.value is not None:
                raise Violation(
                    "the last word on a key stays",
                    f"{name} has lost {record.offset}, the newest record of {key!r}",
                )
            if oldest.get(key, record.offset) < record.offset:
                raise Violation(
                    "what was deleted stays deleted",
                    f"{name} has {oldest[key]} of {key!r}, but not the tombstone at {record.offset}",
                )

    # --- readers

    def check_fold(
        self, name: str, seen: Mapping[bytes, Record], end: int, *, keeps_tombstones: bool
    ) -> None:
        """`seen`: the last record of each key, of a reader from the start to `end` (3)."""
        for key, records in self._by_key.items():
            number = bisect_right(records, end - 1, key=lambda record: record.offset)
            if number == 0:
                continue
            last, got = records[number - 1], seen.get(key)
            if last.value is None and (not keeps_tombstones or got is None):
                continue
            if got is None or (got.offset, got.value) != (last.offset, last.value):
                raise Violation(
                    "who reads all has the last word on each key",
                    f"{name} has read to {end} and has {got} of {key!r}, committed was {last}",
                )


def _offsets(entries: Iterable[Entry]) -> set[int]:
    return {record.offset for entry in entries if not entry.control for record in read_records(entry.data)}
