"""Power is cut before every single write, flush and rename of a workload; each time, several outcomes are drawn.

The workload runs once. Before each operation of the disk the test asks for disks as a power cut at that point may
leave them, opens the log there, and holds it against what was promised at that moment. So the number of outcomes is
operations x seeds, and every one of them is a full recovery by the real code.

The mutants at the end are bugs put in on purpose. A crash test that does not find them proves nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from penstock.batch import read_header, read_records, stamp
from penstock.config import TopicConfig
from penstock.errors import CorruptLog, StorageError
from penstock.log import FlushTicket, Log
from penstock.log.producers import ProducerStates
from penstock.log.segment import Segment
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    ProducerFacts,
    append,
    batch,
    compact,
    config,
    flush,
    producer_state,
    records,
    stored,
    tidy,
)

SEEDS_PER_POINT = 4


class Promises:
    """A log, the batches appended to it, and what its owner may rely on at each moment."""

    def __init__(self, disk: SimDisk, settings: TopicConfig) -> None:
        disk.make_dir("topics")
        disk.sync_dir("")
        self.disk = disk
        self.settings = settings
        self.log = Log.open(disk, FOLDER, settings)
        self.batches: dict[int, bytes] = {}
        """The batch at each base offset, written or being written."""
        self.flushed_offset = 0
        self.starts = {0}
        self.sequence = 0
        self.truncated_to_start = 0
        self.outcomes = 0

    def append(self, *values: bytes, term: int, idempotent: bool = False, timestamp: int = NOW_MS) -> None:
        producer = (7, 0, self.sequence) if idempotent else None
        data, header = batch(*values, producer=producer, timestamp=timestamp)
        self.sequence += len(values) if idempotent else 0
        data[0:8] = self.log.end_offset.to_bytes(8, "big")
        data[12:16] = term.to_bytes(4, "big")
        self.batches[self.log.end_offset] = bytes(data)
        self.log.writer.append(data, header, Term(term), NOW_MS)

    def flush(self) -> None:
        flush(self.log)
        self.flushed_offset = self.log.flushed_offset

    def truncate(self, offset: int) -> None:
        cut = max(base for base in [0, *self.batches, self.log.end_offset] if base <= offset)
        self.starts.add(cut)
        self.flushed_offset = min(self.flushed_offset, cut)
        self.truncated_to_start += self.log.start_offset >= cut
        self.log.truncation.to_offset(Offset(offset))
        assert self.log.end_offset == cut
        kept = {base: data for base, data in self.batches.items() if base < self.log.end_offset}
        self.batches = kept
        self.sequence = self._next_sequence()

    def delete_prefix(self, offset: int) -> None:
        self.starts.add(offset)
        self.log.retention.delete_prefix(Offset(offset))

    def retain(self) -> None:
        expired = self.log.retention.expired(NOW_MS)
        assert expired, "the workload must have something to expire"
        self.starts.add(expired[-1].next_offset)
        assert self.log.retention.apply(NOW_MS) > 0

    def reopen(self) -> None:
        self.log.close()
        self.flushed_offset = self.log.end_offset
        self.log = Log.open(self.disk, FOLDER, self.settings)
        assert self.log.end_offset == self.flushed_offset

    def _next_sequence(self) -> int:
        headers = [read_header(data) for data in self.batches.values()]
        return max((h.last_sequence + 1 for h in headers if h.producer_id >= 0), default=0)

    # --- claims after a power cut now

    def check(self, after: SimDisk) -> None:
        self.outcomes += 1
        log = Log.open(after, FOLDER, self.settings)
        assert self.flushed_offset <= log.end_offset <= max(self.batches, default=0) + 100
        assert log.start_offset in self.starts
        assert log.flushed_offset == log.end_offset
        self._check_batches(log)
        self._check_terms(log)
        self._check_controls(log)
        self._check_producers(log)
        self._go_on(log, after)

    def _check_batches(self, log: Log) -> None:
        """Byte for byte, without a gap, from a start that was set to an end that was written."""
        expected = None
        for header, data in stored(log):
            assert data == self.batches[header.base_offset]
            assert expected is None or header.base_offset == expected
            expected = header.next_offset
        assert expected is None or expected == log.end_offset
        if self.flushed_offset > log.start_offset:
            assert expected is not None

    def _check_terms(self, log: Log) -> None:
        for header, _ in stored(log):
            assert log.term_at(max(log.start_offset, Offset(header.base_offset))) == header.leader_epoch
            term, end = log.end_of_term(Term(header.leader_epoch))
            assert term == header.leader_epoch
            assert end >= header.next_offset

    def _check_controls(self, log: Log) -> None:
        """One for each term, also those whose records were deleted; the last may have been written without its record,
        and so may one at the end of the deleted prefix, where truncation cannot reach it."""
        written = {base: data for base, data in self.batches.items() if base < log.end_offset}
        terms = {read_header(data).leader_epoch for data in written.values()}
        assert 0 <= log.files.state.controls.total - len(terms) <= 1 + self.truncated_to_start

    def _check_producers(self, log: Log) -> None:
        """As if all batches that were ever in the log, and not truncated, had been replayed."""
        assert producer_state(log) == self._replayed(log.end_offset)

    def _replayed(self, end_offset: int) -> list[ProducerFacts]:
        states = ProducerStates()
        for base, data in sorted(self.batches.items()):
            header = read_header(data)
            if base < end_offset and header.producer_id >= 0:
                states.record(header, base, 0)
        return sorted((row[0], row[1], tuple(map(tuple, row[3]))) for row in states.rows())

    def _go_on(self, log: Log, disk: SimDisk) -> None:
        end = log.end_offset
        appended = append(log, b"after the cut", term=99)
        assert appended.base_offset == end
        flush(log)
        log.close()
        again = Log.open(disk, FOLDER, self.settings)
        assert again.end_offset == end + 1
        assert [h.base_offset for h, _ in stored(again)][-1] == end


@contextmanager
def power_cut_before_every_operation(
    disk: SimDisk, check: Callable[[SimDisk], None], seeds: int
) -> Iterator[None]:
    def look(number: int, kind: str, path: str) -> None:
        for seed in range(seeds):
            try:
                check(disk.after_power_cut(number * 1000 + seed))
            except BaseException as problem:
                problem.add_note(f"power cut before operation {number} ({kind} {path}), seed {seed}")
                raise

    disk.on_operation = look
    try:
        yield
    finally:
        disk.on_operation = None


SMALL = config(segment_bytes=3000, index_interval_bytes=300, retention_bytes=4000)


def workload(world: Promises) -> None:
    """All operations of a log except compaction, with sizes around and across sectors."""
    for number in range(6):
        world.append(b"a" * (50 + 130 * number), term=1, idempotent=number % 2 == 0)
        if number % 2:
            world.flush()
    world.append(b"b", b"c" * 700, b"d", term=2)
    world.append(b"e" * 1500, term=2, idempotent=True)
    tidy(world.log)
    world.flush()
    tidy(world.log)
    for _ in range(4):
        world.append(b"f" * 400, b"g" * 100, term=3, idempotent=True)
    world.truncate(int(world.log.end_offset) - 3)
    world.append(b"h" * 200, term=4, idempotent=True)
    world.flush()
    world.truncate(int(world.log.end_offset) - 8)
    for number in range(5):
        world.append(b"i" * (100 + 300 * number), term=5, idempotent=True)
        world.flush()
    tidy(world.log)
    world.truncate(int(world.log.end_offset) - 2)
    world.append(b"I" * 1000, term=5, idempotent=True)
    world.append(b"I" * 700, term=5, idempotent=True)
    tidy(world.log)
    world.flush()
    world.delete_prefix(int(world.log.start_offset) + 4)
    tidy(world.log)
    world.reopen()
    for number in range(5):
        world.append(b"j" * 900, term=6, idempotent=number % 2 == 1)
    world.flush()
    world.retain()
    world.append(b"k" * 40, term=6)
    tidy(world.log)
    world.flush()
    tidy(world.log)
    world.delete_prefix(int(world.log.flushed_offset))
    world.append(b"l" * 600, term=6, idempotent=True)
    tidy(world.log)
    world.flush()
    tidy(world.log)
    world.reopen()


@pytest.mark.usefixtures("small_intervals")
def test_nothing_flushed_is_lost_in_a_power_cut_at_any_operation() -> None:
    disk = SimDisk(1)
    world = Promises(disk, SMALL)
    with power_cut_before_every_operation(disk, world.check, SEEDS_PER_POINT):
        workload(world)
    assert disk.operations > 150
    assert world.outcomes > 600


class RandomWorkload:
    """Steps drawn from a seed, in any order that the log's contract allows."""

    def __init__(self, world: Promises, random: Random) -> None:
        self.world = world
        self.random = random
        self.term = 1

    def step(self) -> None:
        steps = [self.append] * 12 + [self.flush] * 4 + [self.tidy] * 3
        steps += [self.new_term, self.truncate, self.delete_prefix, self.retain, self.reopen]
        self.random.choice(steps)()

    def append(self) -> None:
        sizes = [self.random.choice((1, 30, 200, 450, 900)) for _ in range(self.random.choice((1, 1, 3)))]
        values = [b"v" * size for size in sizes]
        self.world.append(*values, term=self.term, idempotent=self.random.random() < 0.5)

    def flush(self) -> None:
        self.world.flush()

    def tidy(self) -> None:
        chores = self.world.log.maintenance.next_task()
        if chores is not None:
            chores()

    def new_term(self) -> None:
        self.term += 1

    def truncate(self) -> None:
        log = self.world.log
        self.world.truncate(
            self.random.randint(max(int(log.start_offset), int(log.end_offset) - 9), log.end_offset)
        )
        self.term += 1

    def delete_prefix(self) -> None:
        log = self.world.log
        self.world.delete_prefix(self.random.randint(log.start_offset, log.flushed_offset))

    def retain(self) -> None:
        if self.world.log.retention.expired(NOW_MS):
            self.world.retain()

    def reopen(self) -> None:
        self.world.reopen()


@pytest.mark.usefixtures("small_intervals")
@pytest.mark.parametrize("seed", range(12))
def test_nothing_flushed_is_lost_in_random_workloads(seed: int) -> None:
    random = Random(seed)
    disk = SimDisk(seed)
    world = Promises(disk, SMALL)

    def sometimes(after: SimDisk) -> None:
        if random.random() < 0.3:
            world.check(after)

    steps = RandomWorkload(world, Random(seed + 1000))
    with power_cut_before_every_operation(disk, sometimes, 1):
        for _ in range(100):
            steps.step()
    assert world.outcomes > 25


# --- compaction


class KeyedPromises(Promises):
    """A compacted log promises not its bytes, but the last record of each key, and the last batch of each
    producer; the four before that one unless they had to be told from a log that is both compacted and truncated."""

    truncated_after_compaction = False

    def truncate(self, offset: int) -> None:
        self.truncated_after_compaction |= self.log.files.state.cleaned_offset > 0
        super().truncate(offset)

    def _check_producers(self, log: Log) -> None:
        known = {row[0]: [batch[:4] for batch in row[2]] for row in producer_state(log)}
        for producer_id, _, remembered in self._replayed(log.end_offset):
            expected = [batch[:4] for batch in remembered]
            assert known[producer_id][-1] == expected[-1]
            assert known[producer_id] == expected or self.truncated_after_compaction

    def put(self, key: int, value: bytes | None, *, term: int, idempotent: bool = False) -> None:
        producer = (7, 0, self.sequence) if idempotent else None
        self.sequence += 1 if idempotent else 0
        data, header = batch(value, key=b"key%d" % key, producer=producer)
        base = self.log.end_offset
        stamped = bytearray(data)
        stamp(stamped, 0, base, term)
        self.batches[base] = bytes(stamped)
        self.log.writer.append(data, header, Term(term), NOW_MS)

    def _check_batches(self, log: Log) -> None:
        seen: dict[bytes | None, bytes | None] = {}
        last = -1
        for header, data in stored(log):
            assert header.base_offset > last
            last = header.last_offset
            for record in read_records(data):
                assert record in read_records(self.batches[record.offset])
                seen[record.key] = record.value
        expected = {}
        for base, data in sorted(self.batches.items()):
            if base < log.end_offset:
                expected.update({record.key: record.value for record in read_records(data)})
        assert {k: v for k, v in seen.items() if v} == {k: v for k, v in expected.items() if v}


COMPACTED = config(
    segment_bytes=700,
    index_interval_bytes=100,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_dirty_ratio=0.1,
    delete_retention_ms=10,
)


@pytest.mark.usefixtures("small_intervals")
def test_no_key_is_lost_in_a_power_cut_at_any_operation_of_compaction() -> None:
    disk = SimDisk(1)
    world = KeyedPromises(disk, COMPACTED)
    random = Random(5)
    passes = 0
    with power_cut_before_every_operation(disk, world.check, 2):
        for number in range(45):
            value = None if number % 9 == 0 else b"%d" % number * 20
            world.put(random.randrange(6), value, term=1 + number // 20, idempotent=number % 3 == 0)
            if number % 3 == 0:
                world.flush()
            if number % 12 == 11:
                passes += compact(world.log, NOW_MS + number)
        tidy(world.log)
        world.reopen()
    assert passes == 3
    assert len(records(world.log)) < 30


class RandomKeys(RandomWorkload):
    """The same for a compacted log: deletions and truncations leave keys to compare."""

    world: KeyedPromises

    def step(self) -> None:
        steps = [self.append] * 14 + [self.flush] * 3 + [self.tidy] * 3 + [self.compact] * 3
        self.random.choice([*steps, self.new_term, self.reopen, self.truncate])()

    def append(self) -> None:
        value = None if self.random.random() < 0.1 else b"%d" % self.random.randrange(10**9) * 8
        self.world.put(self.random.randrange(6), value, term=self.term, idempotent=self.random.random() < 0.4)

    def truncate(self) -> None:
        """Never into compacted segments: these are committed."""
        log = self.world.log
        start = max(log.files.state.cleaned_offset, int(log.end_offset) - 5)
        self.world.truncate(self.random.randint(start, log.end_offset))
        self.term += 1

    def compact(self) -> None:
        compact(self.world.log, NOW_MS + self.world.log.end_offset, max_keys=self.random.choice((3, 100)))


@pytest.mark.usefixtures("small_intervals")
@pytest.mark.parametrize("seed", range(8))
def test_no_key_is_lost_in_random_workloads(seed: int) -> None:
    random = Random(seed)
    disk = SimDisk(seed)
    world = KeyedPromises(disk, COMPACTED)

    def sometimes(after: SimDisk) -> None:
        if random.random() < 0.2:
            world.check(after)

    steps = RandomKeys(world, Random(seed + 1000))
    with power_cut_before_every_operation(disk, sometimes, 1):
        for _ in range(100):
            steps.step()
    assert world.outcomes > 25


# --- mutants


def lie_about_flushing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.log.flush_state.FlushTicket.run", lambda self: None)


def forget_the_names_of_new_files(patch: pytest.MonkeyPatch) -> None:
    def run(self: FlushTicket) -> None:
        for file in self._files:
            file.flush()

    patch.setattr("penstock.log.flush_state.FlushTicket.run", run)


def keep_the_old_flushed_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.log.truncation.Truncation._lower_flushed_point", lambda self, cut: None)


def truncate_without_flushing(patch: pytest.MonkeyPatch) -> None:
    def truncate(self: Segment, position: int, next_offset: int, control_count: int) -> None:
        self.load_index().truncate(position)
        self.file.truncate(position)
        self.resume(position, next_offset, control_count)

    patch.setattr("penstock.log.segment.Segment.truncate", truncate)


def confuse_the_first_batch_with_the_last(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.log.producers.ProducerStates.restore", lambda self, rows, transactions: None)


def remove_the_prefix_without_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.log.maintenance_task.MaintenanceTask._save_snapshot", lambda self: None)
    patch.setattr("penstock.log.maintenance_task.MaintenanceTask._save_base_snapshots", lambda self: None)


@pytest.mark.usefixtures("small_intervals")
@pytest.mark.parametrize(
    "mutant",
    [
        lie_about_flushing,
        forget_the_names_of_new_files,
        keep_the_old_flushed_offset,
        truncate_without_flushing,
        confuse_the_first_batch_with_the_last,
        remove_the_prefix_without_a_snapshot,
    ],
)
def test_the_crash_test_finds(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, CorruptLog, StorageError)):
        test_nothing_flushed_is_lost_in_a_power_cut_at_any_operation()
