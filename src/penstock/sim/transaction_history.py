"""Checks the answers that transactional programs and readers of committed records got.

Programs append to several partitions in transactions, and commit an offset with each; readers poll. Values are unique,
and the truth of a partition (everything that was ever committed, with the markers) says how each record ended.

1  All or nothing: the records of a transaction are visible in all its partitions, or in none (not torn).
2  A transaction whose commit was acknowledged is visible, each record once, where its program was told (not lost).
3  A transaction that was aborted, or whose program never asked for a commit, is visible nowhere (no aborted reads).
4  A reader that was given a range of offsets has seen all records in it that are ever visible, and no others: nothing
   becomes visible, or vanishes, behind the back of a reader (not reordered).
5  Each transaction ends. When the faults are over, no reader waits for one.
6  Exactly once: a program takes the next number from the offset that was committed last, whatever was killed meanwhile.
   So the visible transactions of a transactional id have the numbers 1, 2, 3 and so on, each once, and the committed
   offset is the last.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from penstock.batch import BatchHeader, Record, iter_headers, read_header, read_marker, read_records
from penstock.batch.fetched_aborts import AbortedBatches
from penstock.sim.entries import Entry
from penstock.sim.history import mark_of
from penstock.sim.outcome import Violation


class Ending(Enum):
    OPEN = "open"
    COMMIT = "commit"
    ABORT = "abort"


class SimTransaction:
    """One attempt of a program: what it wrote, and what it asked for."""

    def __init__(self, owner: str, number: int, attempt: int) -> None:
        self.owner = owner
        """The transactional id."""
        self.number = number
        self.name = f"{owner}-{number}.{attempt}"
        self.written: dict[bytes, tuple[int, int]] = {}
        """The partition and offset of each record that was acknowledged."""
        self.sent: list[bytes] = []
        """The values of all records that were sent."""
        self.commit_asked = False
        self.committed = False
        """Acknowledged."""

    def value(self, partition: int, batch: int, record: int) -> bytes:
        return f"{self.name}/{partition}.{batch}.{record}".encode()


class Poll(NamedTuple):
    """A reader was given all visible records of a partition from `start` on and below `end`."""

    reader: str
    partition: int
    start: int
    end: int
    records: list[tuple[int, bytes]]
    """Offsets and values."""


class StoredRecord(NamedTuple):
    offset: int
    mark: bytes
    ending: Ending


class TransactionHistory:
    """All transactions of a world on the partitions of one topic, and what readers saw."""

    def __init__(self) -> None:
        self.transactions: list[SimTransaction] = []
        self._of_value: dict[bytes, SimTransaction] = {}
        self._attempts: dict[tuple[str, int], int] = {}
        self.polls: list[Poll] = []

    def begin(self, owner: str, number: int) -> SimTransaction:
        attempt = self._attempts[owner, number] = self._attempts.get((owner, number), 0) + 1
        begun = SimTransaction(owner, number, attempt)
        self.transactions.append(begun)
        return begun

    def sends(self, transaction: SimTransaction, values: Iterable[bytes]) -> None:
        for value in values:
            transaction.sent.append(value)
            self._of_value[value] = transaction

    def polled(self, poll: Poll) -> None:
        """Checks at once that no record is there whose program has not asked for a commit (3)."""
        self.polls.append(poll)
        for offset, value in poll.records:
            found = self._of_value.get(value)
            if found is not None and not found.commit_asked:
                raise Violation(
                    "no reader sees an aborted record",
                    f"{poll.reader} sees {value!r} at {offset} of partition {poll.partition}",
                )

    # --- at the end

    def check(
        self, truths: Mapping[int, Iterable[Entry]], offsets: Mapping[str, int], *, compacted: bool
    ) -> None:
        """`truths`: of each partition. `offsets`: the committed one of each transactional id."""
        stored = {partition: stored_records(truth) for partition, truth in truths.items()}
        _check_ended(stored)
        places = _visible_places(stored)
        for transaction in self.transactions:
            _check_one(transaction, {value: places.get(value, []) for value in transaction.sent})
        self._check_numbers(offsets, places)
        for partition, records in stored.items():
            visible = {one.offset: one.mark for one in records if one.ending is Ending.COMMIT}
            for poll in self.polls:
                if poll.partition == partition:
                    _check_poll(poll, visible, compacted=compacted)

    def _check_numbers(self, offsets: Mapping[str, int], visible: "Places") -> None:
        """(6)"""
        numbers: dict[str, list[int]] = {owner: [] for owner in offsets}
        for one in self.transactions:
            if one.sent and one.sent[0] in visible:
                numbers.setdefault(one.owner, []).append(one.number)
        for owner, found in numbers.items():
            if sorted(found) != list(range(1, len(found) + 1)):
                raise Violation("each step is done exactly once", f"{owner} has committed {sorted(found)}")
            if offsets.get(owner, 0) != len(found):
                raise Violation(
                    "offsets are committed with their transaction",
                    f"{owner} has committed {len(found)} transactions and the offset {offsets.get(owner, 0)}",
                )


Places = Mapping[bytes, list[tuple[int, int]]]
"""Partition and offset of each place where a value is visible."""


def _check_ended(stored: Mapping[int, Sequence[StoredRecord]]) -> None:
    """(5)"""
    for partition, records in stored.items():
        for one in records:
            if one.ending is Ending.OPEN:
                where = f"{one.mark!r} at {one.offset} of partition {partition}"
                raise Violation("each transaction ends", where)


def _visible_places(stored: Mapping[int, Sequence[StoredRecord]]) -> Places:
    found: dict[bytes, list[tuple[int, int]]] = {}
    for partition, records in stored.items():
        for one in records:
            if one.ending is Ending.COMMIT:
                found.setdefault(one.mark, []).append((partition, one.offset))
    return found


def _check_one(one: SimTransaction, visible: Places) -> None:
    if one.committed:
        for value, places in visible.items():
            if places != [one.written[value]]:
                raise Violation(
                    "a transaction that was committed is there once",
                    f"{value!r} was written at {one.written[value]} and is visible at {places}",
                )
    elif not one.commit_asked:
        seen = [value for value, places in visible.items() if places]
        if seen:
            raise Violation("what was not committed is not visible", f"{seen[0]!r} of {one.name}")
    elif any(visible.values()) and not all(visible.values()):
        lost = [value for value, places in visible.items() if not places]
        raise Violation("a transaction is visible as a whole", f"{one.name} lacks {lost[0]!r}")


def _check_poll(poll: Poll, visible: Mapping[int, bytes], *, compacted: bool) -> None:
    """(4). Where the log was compacted, superseded records may be missing."""
    odd = [(offset, value) for offset, value in poll.records if visible.get(offset) != value]
    if odd:
        raise Violation("readers see what was committed", f"{poll.reader} saw {odd[0]} in {_where(poll)}")
    if compacted:
        return
    seen = {offset for offset, _ in poll.records}
    for offset, value in visible.items():
        if poll.start <= offset < poll.end and offset not in seen:
            raise Violation(
                "nothing becomes visible behind a reader",
                f"{poll.reader} has read {_where(poll)} without {value!r} at {offset}",
            )


def _where(poll: Poll) -> str:
    return f"{poll.start} to {poll.end} of partition {poll.partition}"


def stored_records(truth: Iterable[Entry]) -> list[StoredRecord]:
    """All records with their endings, in the order of the log."""
    records: list[StoredRecord] = []
    unended: dict[int, list[int]] = {}
    """Where the records of open transactions are in the list, by producer."""
    for entry in truth:
        if entry.control:
            continue
        header = read_header(entry.data)
        if header.control:
            marker = read_marker(entry.data, header)
            assert marker is not None
            for at in unended.pop(header.producer_id, ()):
                records[at] = records[at]._replace(ending=Ending.COMMIT if marker.commit else Ending.ABORT)
            continue
        for record in read_records(entry.data):
            if header.transactional:
                unended.setdefault(header.producer_id, []).append(len(records))
            ending = Ending.OPEN if header.transactional else Ending.COMMIT
            records.append(StoredRecord(record.offset, mark_of(record), ending))
    return records


def committed_records(data: bytes, aborted: Iterable[tuple[int, int]], start: int) -> list[tuple[int, bytes]]:
    """The visible records in the response to a read from `start` on, as a client finds them: offsets and values."""
    omitted = AbortedBatches(aborted)
    found: list[Record] = []
    for position, header in iter_headers(data):
        if not _is_left_out(omitted, header):
            found.extend(read_records(data, position))
    return [(record.offset, mark_of(record)) for record in found if record.offset >= start]


def _is_left_out(omitted: AbortedBatches, header: BatchHeader) -> bool:
    return omitted.covers(header) or header.control
