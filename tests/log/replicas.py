"""Two replicas of one log, and their expected contents as plain lists of entries.

`History` is the model: every entry that ever was in a log and was not truncated, from index 0, whatever the log has
deleted since. All that the log says of indexes, terms, bytes, producers and payloads is compared with it.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from penstock.batch import check_batch, stamp, zero_width_batch
from penstock.config import TopicConfig
from penstock.log import FlushTicket, Log, Prefix
from penstock.log.layout import CALLERS_OWN, TERM_START, control_payload
from penstock.log.producers import ProducerStates
from penstock.sim import SimDisk
from penstock.types import Index, Offset, Term
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    ProducerFacts,
    append_entries,
    batch,
    config,
    flush,
    producer_state,
)

SMALL = config(segment_bytes=700, index_interval_bytes=150, segment_ms=40, retention_bytes=1500)


class Entry(NamedTuple):
    index: int
    offset: int
    width: int
    term: int
    data: bytes
    payload: bytes | None = None

    @property
    def end(self) -> int:
        return self.index + max(self.width, 1)


class History:
    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries = list(entries or ())

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else 0

    @property
    def end_offset(self) -> int:
        return self.entries[-1].offset + self.entries[-1].width if self.entries else 0

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else -1

    def boundaries(self) -> list[int]:
        return [0, *(entry.end for entry in self.entries)]

    def until(self, index: int) -> "History":
        return History([entry for entry in self.entries if entry.end <= index])

    def common(self, other: "History") -> int:
        """The end of the common prefix."""
        shared = 0
        for mine, theirs in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                break
            shared = mine.end
        return shared

    def add(self, width: int, term: int, data: bytes, payload: bytes | None = None) -> None:
        self.entries.append(Entry(self.end, self.end_offset, width, term, data, payload))

    def add_control(self, kind: int, term: int, payload: bytes | None = None) -> None:
        content = control_payload(kind, term, self.end_offset, payload or b"")
        data = zero_width_batch(offset=self.end_offset, term=term, payload=content)
        self.add(0, term, data, payload)

    def producers(self) -> list[ProducerFacts]:
        states = ProducerStates()
        for entry in self.entries:
            header = check_batch(entry.data)
            if header.producer_id >= 0:
                states.record(header, entry.offset, 0)
        return sorted((row[0], row[1], tuple(map(tuple, row[3]))) for row in states.rows())

    def next_sequence(self, producer: int) -> int:
        known = {row[0]: row for row in self.producers()}
        return known[producer][2][-1][1] + 1 if producer in known else 0


def check(log: Log, history: History) -> None:
    """Compares all that the log reports, at every valid index."""
    first, end = log.entries.first_index, log.entries.end_index
    assert (end, log.end_offset, log.entries.last_term) == (
        history.end,
        history.end_offset,
        history.last_term,
    )
    assert log.start_offset <= log.flushed_offset <= log.end_offset
    assert first <= log.entries.flushed_index <= end
    assert log.entries.commit_index is None or first <= log.entries.commit_index
    boundaries = [boundary for boundary in history.boundaries() if boundary >= first]
    assert boundaries[0] == first
    _check_terms(log, history, boundaries)
    _check_entries(log, history)
    for index in range(first, end + 1):
        assert log.entries.floor(index) == max(boundary for boundary in boundaries if boundary <= index)
    assert (log.entries.floor(first - 1), log.entries.floor(end + 1)) == (first, end)
    assert producer_state(log) == history.producers()


def _check_terms(log: Log, history: History, boundaries: list[int]) -> None:
    ends = {entry.end: entry for entry in history.entries}
    for boundary in boundaries:
        entry = ends.get(boundary)
        assert log.entries.term_before(boundary) == (entry.term if entry else -1)
        assert log.entries.offset_at(boundary) == (entry.offset + entry.width if entry else 0)
    assert log.entries.term_before(boundaries[0] - 1) is None
    assert log.entries.term_before(boundaries[-1] + 1) is None
    for term in range(-1, history.last_term + 2):
        expected = max((entry.end for entry in history.entries if entry.term <= term), default=0)
        assert log.entries.end_of_term_index(term) == max(expected, log.entries.first_index)


def _check_entries(log: Log, history: History) -> None:
    first = log.entries.first_index
    expected = [entry for entry in history.entries if entry.index >= first]
    index, data = first, b""
    while index < log.entries.end_index:
        part, end = log.entries.read_entries(index, 400)
        assert end > index
        index, data = end, data + part
    assert data == b"".join(entry.data for entry in expected)
    payloads = [(entry.index, entry.payload) for entry in expected if entry.payload is not None]
    assert log.entries.control_payloads() == payloads
    gone = [e.payload for e in history.entries if e.payload is not None and e.index < first]
    assert log.entries.prefix_config == (gone[-1] if gone else b"")


class Replica:
    """A log on a disk of its own, and its history."""

    def __init__(self, seed: int, settings: TopicConfig = SMALL) -> None:
        self.disk = SimDisk(seed)
        self.disk.make_dir("topics")
        self.disk.sync_dir("")
        self.settings = settings
        self.log = Log.open(self.disk, FOLDER, settings)
        self.log.entries.commit_index = Index(0)
        self.history = History()
        self.written = self.history
        """Possible contents after a power cut: the history, and entries that are being written or truncated."""
        self.other: History | None = None
        """Possible contents instead, during a reset."""
        self.flushed = 0
        """Entries that survive a power cut."""
        self.ticket: FlushTicket | None = None
        self.clock = NOW_MS

    # --- as a leader

    def append(self, *values: bytes, producer: int | None = None) -> None:
        term = max(self.log.entries.last_term, 0)
        sequence = self.history.next_sequence(producer) if producer is not None else 0
        self.clock += 7
        data, header = batch(
            *values, timestamp=self.clock, producer=(producer, 0, sequence) if producer is not None else None
        )
        history = History(self.history.entries)
        if self.history.last_term != term:
            history.add_control(TERM_START, term)
        stamp(data, 0, history.end_offset, term)
        history.add(len(values), term, bytes(data))
        self.written = history
        self.log.writer.append(data, header, Term(term), self.clock)
        self.history = history

    def begin_term(self, term: int) -> None:
        self.written = History(self.history.entries)
        self.written.add_control(TERM_START, term)
        self.log.writer.begin_term(Term(term))
        self.history = self.written

    def append_control(self, payload: bytes) -> None:
        term = self.history.last_term
        self.written = History(self.history.entries)
        self.written.add_control(CALLERS_OWN, term, payload)
        self.log.writer.append_control(payload, Term(term))
        self.history = self.written

    # --- as a follower

    def fetch(self, leader: "Replica", max_bytes: int) -> None:
        """One append of Raft: differing entries are truncated, then the next ones are written."""
        common = self.history.common(leader.history)
        if common < leader.log.entries.first_index:
            self.reset(leader.log.prefix(), leader.history)
            return
        if common < self.history.end:
            self.truncate(common)
        data, end = leader.log.entries.read_entries(self.log.entries.end_index, max_bytes)
        self.written = leader.history.until(end)
        append_entries(self.log, data, self.clock)
        self.history = self.written
        assert self.log.entries.end_index == end

    def reset(self, prefix: Prefix, history: History) -> None:
        self.other = history.until(prefix.index)
        self.log.reset(prefix)
        self.history = self.written = self.other
        self.other = None
        self.flushed = self.log.entries.flushed_index
        self.ticket = None
        assert (self.log.entries.first_index, self.log.entries.end_index) == (prefix.index, prefix.index)

    # --- as both

    def truncate(self, index: int) -> None:
        self.flushed = min(self.flushed, index)
        self.log.truncation.to_index(index)
        self.history = self.written = self.history.until(index)

    def flush(self) -> None:
        if self.ticket is not None:
            self.finish_flush()
        flush(self.log)
        self.flushed = self.log.entries.flushed_index
        assert self.flushed == self.log.entries.end_index

    def begin_flush(self) -> None:
        if self.ticket is None:
            self.ticket = self.log.flushes.begin()

    def finish_flush(self) -> None:
        if self.ticket is not None:
            self.ticket.run()
            self.log.flushes.finish(self.ticket)
            self.ticket = None
            self.flushed = self.log.entries.flushed_index

    def commit(self, index: int) -> None:
        if self.log.entries.commit_index is not None and index > self.log.entries.commit_index:
            self.log.entries.commit_index = Index(index)

    def delete_prefix(self, random: Random) -> None:
        limit = self.log.retention.limit
        if limit > self.log.start_offset:
            some = random.randint(self.log.start_offset, limit)
            self.log.retention.delete_prefix(Offset(random.choice((some, limit))))

    def tidy(self) -> None:
        chores = self.log.maintenance.next_task()
        if chores is not None:
            chores()

    def reopen(self) -> None:
        self.finish_flush()
        self.log.close()
        commit = self.log.entries.commit_index
        self.log = Log.open(self.disk, FOLDER, self.settings)
        self.log.entries.commit_index = commit
        self.flushed = self.log.entries.flushed_index
        assert self.flushed == self.history.end

    def crash(self, seed: int) -> None:
        """A power cut and a restart."""
        commit, promised = self.log.entries.commit_index, self.log.entries.flushed_index
        self.disk = self.disk.after_power_cut(seed)
        self.log = Log.open(self.disk, FOLDER, self.settings)
        self.log.entries.commit_index = commit
        self.ticket = None
        assert self.log.entries.end_index >= promised
        self.history = self.written = self.history.until(self.log.entries.end_index)
        self.flushed = self.log.entries.flushed_index
        assert self.flushed == self.log.entries.end_index
        assert commit is None or self.log.entries.first_index <= commit

    def check_survivor(self, after: SimDisk) -> None:
        """After a power cut now the log has all flushed entries, and no entry that was not written."""
        log = Log.open(after, FOLDER, self.settings)
        if self.other is not None and log.entries.first_index == log.entries.end_index == self.other.end:
            check(log, self.other)
            return
        assert log.entries.end_index >= self.flushed
        history = self.written if self.written.end > self.history.end else self.history
        check(log, history.until(log.entries.end_index))
        commit = self.log.entries.commit_index
        assert self.other is not None or commit is None or log.entries.first_index <= commit


def settled(replicas: list[Replica]) -> int:
    """The end of the common prefix that all have flushed."""
    common = min(replica.log.entries.flushed_index for replica in replicas)
    for replica in replicas[1:]:
        common = min(common, replicas[0].history.common(replica.history))
    return common


def sizes(random: Random) -> Iterator[bytes]:
    for _ in range(random.choice((1, 1, 2, 4))):
        yield b"v" * random.choice((1, 30, 90, 135))
