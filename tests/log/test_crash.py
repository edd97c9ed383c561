"""Power is cut before every single write, flush and rename of a long workload; each time, several outcomes
are drawn.

The workload runs once. Before each operation of the disk the test asks for disks as a power cut at that point
may leave them, opens the log there, and holds it against what was promised at that moment. So the number of
outcomes is operations x seeds, and every one of them is a full recovery by the real code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.batch import read_header
from penstock.config import TopicConfig
from penstock.log import Log, upkeep
from penstock.log.producers import ProducerStates
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import FOLDER, NOW_MS, append, batch, config, flush, producer_state, stored, tidy

SEEDS_PER_POINT = 4


class Promises:
    """A log, what was appended to it, and what its owner may rely on at each moment."""

    def __init__(self, disk: SimDisk, settings: TopicConfig) -> None:
        disk.make_dir("topics")
        disk.sync_dir("")
        self.disk = disk
        self.settings = settings
        self.log = Log.open(disk, FOLDER, settings)
        self.batches: dict[int, bytes] = {}
        """What stands, or is about to stand, at each base offset."""
        self.history: list[bytes] = []
        self.flushed_offset = 0
        self.starts = {0}
        self.sequence = 0
        self.outcomes = 0

    def append(self, *values: bytes, term: int, idempotent: bool = False, timestamp: int = NOW_MS) -> None:
        producer = (7, 0, self.sequence) if idempotent else None
        data, header = batch(*values, producer=producer, timestamp=timestamp)
        self.sequence += len(values) if idempotent else 0
        data[0:8] = self.log.end_offset.to_bytes(8, "big")
        data[12:16] = term.to_bytes(4, "big")
        self.batches[self.log.end_offset] = bytes(data)
        self.log.append(data, header, Term(term), NOW_MS)

    def flush(self) -> None:
        flush(self.log)
        self.flushed_offset = self.log.flushed_offset

    def truncate(self, offset: int) -> None:
        cut = max(base for base in [0, *self.batches] if base <= offset)
        self.flushed_offset = min(self.flushed_offset, cut)
        self.log.truncate(Offset(offset))
        assert self.log.end_offset == cut
        kept = {base: data for base, data in self.batches.items() if base < self.log.end_offset}
        self.batches = kept
        self.sequence = self._next_sequence()

    def delete_prefix(self, offset: int) -> None:
        self.starts.add(offset)
        self.log.delete_prefix(Offset(offset))

    def retain(self) -> None:
        expired = self.log.expired(NOW_MS)
        assert expired, "the workload must have something to expire"
        self.starts.add(expired[-1].next_offset)
        assert self.log.apply_retention(NOW_MS) > 0

    def reopen(self) -> None:
        self.log.close()
        self.flushed_offset = self.log.end_offset
        self.log = Log.open(self.disk, FOLDER, self.settings)
        assert self.log.end_offset == self.flushed_offset

    def _next_sequence(self) -> int:
        headers = [read_header(data) for data in self.batches.values()]
        return max((h.last_sequence + 1 for h in headers if h.producer_id >= 0), default=0)

    # --- what must hold after a power cut now

    def check(self, after: SimDisk) -> None:
        self.outcomes += 1
        log = Log.open(after, FOLDER, self.settings)
        assert self.flushed_offset <= log.end_offset <= max(self.batches, default=0) + 100
        assert log.start_offset in self.starts
        assert log.flushed_offset == log.end_offset
        self._check_batches(log)
        self._check_terms(log)
        self._check_controls(log)
        assert producer_state(log) == self._replayed(log.end_offset)
        self._go_on(log, after)

    def _check_batches(self, log: Log) -> None:
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
            assert log.term_at(Offset(header.base_offset)) == header.leader_epoch
            term, end = log.end_of_term(Term(header.leader_epoch))
            assert term == header.leader_epoch
            assert end >= header.next_offset

    def _check_controls(self, log: Log) -> None:
        """One for each reign, also those whose records were deleted; the last may have come without its
        record."""
        terms = {
            read_header(data).leader_epoch for base, data in self.batches.items() if base < log.end_offset
        }
        assert log.control_count in (len(terms), len(terms) + 1)

    def _replayed(self, end_offset: int) -> list[tuple[object, ...]]:
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


@pytest.fixture
def small_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and snapshots come every few batches instead of every few megabytes."""
    monkeypatch.setattr(upkeep, "CHECKPOINT_INTERVAL_BYTES", 600)
    monkeypatch.setattr(upkeep, "SNAPSHOT_INTERVAL_BYTES", 2500)


SMALL = config(segment_bytes=3000, index_interval_bytes=300, retention_bytes=4000)


def workload(world: Promises) -> None:
    """Everything a log can be asked for except compaction, with sizes around and across sectors."""
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
def test_nothing_flushed_is_lost_wherever_the_power_is_cut() -> None:
    disk = SimDisk(1)
    world = Promises(disk, SMALL)
    with power_cut_before_every_operation(disk, world.check, SEEDS_PER_POINT):
        workload(world)
    assert disk.operations > 150
    assert world.outcomes > 600
