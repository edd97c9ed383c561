"""Transactions in a log against a naive model that reads all batches: after any order of calls, both agree on the last
stable offset, on the open and the aborted transactions, and on what a reader of committed records sees.

One machine deletes, truncates, crashes and rebuilds a replica; it compares everything. The other one compacts too: then
records are missing, and it compares what must not be.
"""

from typing import NamedTuple

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.batch import EndMarker, build_marker, read_header
from penstock.config import TopicConfig
from penstock.log import Log, MemoryDisk, Prefix
from penstock.log.aborted import AbortedTransaction
from penstock.sim import SimDisk
from penstock.types import Index, Offset, Term
from tests.log.tools import FOLDER, NOW_MS, append, append_entries, committed_view, compact, config, flush

PRODUCERS = st.integers(1, 4)
SETTINGS = config(segment_bytes=700, index_interval_bytes=150)
COMPACTED = config(
    segment_bytes=700,
    index_interval_bytes=150,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1_000,
)


class Written(NamedTuple):
    """One batch or marker."""

    base: int
    end: int
    producer: int
    """-1: no producer."""
    transactional: bool
    commit: bool | None
    """Of a marker; None for records."""
    values: tuple[tuple[bytes, bytes], ...]
    coordinator_epoch: int


class Naive:
    """The state that the batches give, computed from the first one each time."""

    def __init__(self, written: list[Written], watermark: int) -> None:
        self.open: dict[int, int] = {}
        self.aborted: list[AbortedTransaction] = []
        self.coordinator_epochs: dict[int, int] = {}
        self.visible: dict[int, tuple[bytes, bytes]] = {}
        """Records of no transaction, and of committed ones."""
        pending: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        unstable = [watermark]
        for one in written:
            rows = dict(enumerate(one.values, one.base))
            if one.commit is None and not one.transactional:
                self.visible |= rows
            elif one.commit is None:
                self.open.setdefault(one.producer, one.base)
                pending.setdefault(one.producer, {}).update(rows)
            else:
                known = self.coordinator_epochs.get(one.producer, -1)
                self.coordinator_epochs[one.producer] = max(known, one.coordinator_epoch)
                first = self.open.pop(one.producer, None)
                rows = pending.pop(one.producer, {})
                if first is None:
                    continue
                if one.base >= watermark:
                    unstable.append(first)
                if one.commit:
                    self.visible |= rows
                else:
                    stable = min([*self.open.values(), one.end])
                    self.aborted.append(AbortedTransaction(one.producer, first, one.base, stable))
        self.stable = min([*unstable, *self.open.values()])


class TransactionsAgainstList(RuleBasedStateMachine):
    """`written` holds all entries of the log, also those of the deleted prefix."""

    config: TopicConfig = SETTINGS
    log: Log

    @initialize(seed=st.integers(0, 1000))
    def open(self, seed: int) -> None:
        self.disk = SimDisk(seed)
        self.disk.make_dir("topics")
        self.disk.sync_dir("")
        self.log = Log.open(self.disk, FOLDER, self.config)
        self.written: list[Written] = []
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.term = 1
        self.watermark = 0
        self.now_ms = NOW_MS

    @property
    def naive(self) -> Naive:
        return Naive(self.written, self.watermark)

    # --- writing

    def _write(self, producer: int, transactional: bool, keys: list[int]) -> None:
        values = tuple((b"k%d" % key, b"%d:%d" % (self.log.end_offset, i)) for i, key in enumerate(keys))
        number = None
        if producer >= 0:
            number = producer, self.epochs.setdefault(producer, 0), self.sequences.get(producer, 0)
            self.sequences[producer] = number[2] + len(keys)
        base = append(
            self.log,
            *[value for _, value in values],
            keys=[key for key, _ in values],
            producer=number,
            transactional=transactional,
            term=self.term,
        ).base_offset
        self.written.append(Written(base, base + len(keys), producer, transactional, None, values, -1))

    @rule(keys=st.lists(st.integers(0, 5), min_size=1, max_size=3))
    def plain(self, keys: list[int]) -> None:
        self._write(-1, False, keys)

    @rule(producer=PRODUCERS, keys=st.lists(st.integers(0, 5), min_size=1, max_size=3))
    def in_transaction(self, producer: int, keys: list[int]) -> None:
        self._write(producer, True, keys)

    @rule(producer=PRODUCERS, commit=st.booleans(), bump=st.booleans())
    def end(self, producer: int, commit: bool, bump: bool) -> None:
        epoch = self.epochs.setdefault(producer, 0) + bump
        if bump:
            self.epochs[producer], self.sequences[producer] = epoch, 0
        coordinator_epoch = self.term
        marker = EndMarker(commit, coordinator_epoch)
        data = build_marker(marker, producer_id=producer, producer_epoch=epoch, timestamp_ms=self.now_ms)
        base = self.log.writer.append(data, read_header(data), Term(self.term), self.now_ms).base_offset
        self.written.append(Written(base, base + 1, producer, True, commit, (), coordinator_epoch))

    # --- the watermark, and the ends of the log

    @rule()
    def flush(self) -> None:
        flush(self.log)

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        flushed = self.log.flushed_offset
        ends = [one.end for one in self.written if self.watermark <= one.end <= flushed]
        if ends:
            self._committed(ends[int(part * (len(ends) - 1))])

    def _committed(self, watermark: int) -> None:
        self.watermark = watermark
        self.log.entries.commit_index = Index(self.log.entries.index_at(watermark))
        self.log.transactions.committed(watermark)

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        bases = [one.base for one in self.written if one.base >= max(self.watermark, self.log.start_offset)]
        if bases:
            self.log.truncation.to_offset(Offset(bases[int(part * (len(bases) - 1))]))
            self._forget_from(self.log.end_offset)
            self.term += 1

    def _forget_from(self, offset: int) -> None:
        self.written = [one for one in self.written if one.end <= offset]
        facts = {row.producer_id: row for row in self.log.producers.facts()}
        for producer in list(self.epochs):
            known = facts.get(producer)
            if known is None:
                del self.epochs[producer]
                self.sequences.pop(producer, None)
            else:
                self.epochs[producer], self.sequences[producer] = known.epoch, known.last_sequence + 1

    @rule(part=st.floats(0, 1))
    def delete_prefix(self, part: float) -> None:
        start = self.log.start_offset
        self.log.retention.delete_prefix(Offset(start + int(part * (self.watermark - start))))

    @rule()
    def tidy(self) -> None:
        task = self.log.maintenance.next_task()
        if task is not None:
            task()

    # --- restarts and replicas

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self._opened()

    @rule(seed=st.integers(0, 1000))
    def crash(self, seed: int) -> None:
        self.log.abandon("the power was cut")
        self.disk = self.disk.after_power_cut(seed)
        self._opened()

    def _opened(self) -> None:
        """A lone replica commits all that it has recovered."""
        self.log = Log.open(self.disk, FOLDER, self.config)
        assert self.log.end_offset >= self.watermark
        self._forget_from(self.log.end_offset)
        self._committed(self.log.end_offset)
        self.term += 1

    @precondition(lambda self: self.log.files.segments.segments)
    @rule()
    def rebuild_a_replica(self) -> None:
        """It starts behind the deleted prefix, and receives the rest as entries."""
        prefix = msgspec.msgpack.decode(msgspec.msgpack.encode(self.log.prefix()), type=Prefix)
        other = Log.open(MemoryDisk(), "other-0", self.config)
        if prefix.index:
            other.reset(prefix)
        gaps_below = self.log.cleaned_offset
        while other.entries.end_index < self.log.entries.end_index:
            data = self.log.entries.read_entries(other.entries.end_index, 500)[0]
            append_entries(other, data, gaps_below=gaps_below)
        if self.log.start_offset > other.start_offset:
            flush(other)
            other.retention.delete_prefix(self.log.start_offset)
        self.check(other, self.watermark)

    # --- what must be equal

    def check(self, log: Log, watermark: int) -> None:
        naive = self.naive
        log.transactions.committed(watermark)
        assert dict(log.transactions.open) == naive.open
        assert list(log.transactions.open.values()) == sorted(naive.open.values())
        assert log.transactions.last_stable(watermark) == naive.stable
        found = {row.producer_id: row.coordinator_epoch for row in log.producers.facts()}
        assert {pid: found[pid] for pid in naive.coordinator_epochs} == naive.coordinator_epochs
        self.check_index(log, naive)
        end = max(naive.stable, log.start_offset)
        for start in {log.start_offset, (log.start_offset + end) // 2}:
            self.check_view(log, naive, start, end)

    def check_index(self, log: Log, naive: Naive) -> None:
        wanted = [one for one in naive.aborted if one.last_offset >= log.start_offset]
        assert list(log.transactions.aborted) == wanted

    def check_view(self, log: Log, naive: Naive, start: int, end: int) -> None:
        seen = {r.offset: (r.key, r.value) for r in committed_view(log, start, end)}
        assert seen == {at: row for at, row in naive.visible.items() if start <= at < end}

    @invariant()
    def both_agree(self) -> None:
        if hasattr(self, "written"):
            self.check(self.log, self.watermark)


class CompactedAgainstList(TransactionsAgainstList):
    """Compaction removes superseded and aborted records, and later their markers."""

    config = COMPACTED

    @rule(wait_ms=st.sampled_from([0, 600, 1_100]))
    def compact(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.tidy()
        self.tidy()
        compact(self.log, self.now_ms)

    def check_index(self, log: Log, naive: Naive) -> None:
        """Every entry has its marker and is of a real transaction; no record of one without an entry is left, or
        `check_view` would see it."""
        real = {(one.producer_id, one.last_offset): one for one in naive.aborted}
        for one in log.transactions.aborted:
            assert real[one.producer_id, one.last_offset].first_offset <= one.first_offset
            data = log.read(Offset(one.last_offset), 1, limit=log.end_offset)
            assert (read_header(data).base_offset, read_header(data).control) == (one.last_offset, True)

    def check_view(self, log: Log, naive: Naive, start: int, end: int) -> None:
        wanted = {at: row for at, row in naive.visible.items() if start <= at < end}
        seen = {r.offset: (r.key, r.value) for r in committed_view(log, start, end)}
        assert seen.items() <= wanted.items()
        last_of_keys = {key: at for at, (key, _) in sorted(wanted.items())}
        assert set(last_of_keys.values()) <= set(seen)


MANY = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactionsAgainstList = TransactionsAgainstList.TestCase
TestTransactionsAgainstList.settings = MANY
TestCompactedAgainstList = CompactedAgainstList.TestCase
TestCompactedAgainstList.settings = MANY
