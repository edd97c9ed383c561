"""A log against a list: after any order of calls, both have the same contents."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.batch import read_header, read_records
from penstock.errors import KafkaError
from penstock.log import Disk, FlushTicket, Log, MemoryDisk
from penstock.sim import SimDisk
from penstock.types import Offset
from tests.log.tools import FOLDER, NOW_MS, append, config, stored

VALUES = st.lists(st.integers(0, 500).map(lambda size: b"v" * size), min_size=1, max_size=4)
SETTINGS = config(segment_bytes=2500, index_interval_bytes=300, segment_ms=5_000)


class LogAgainstList(RuleBasedStateMachine):
    """`rows` holds one (value, timestamp, term) per offset, from 0; the log may have deleted the first of them."""

    disk: Disk
    log: Log

    @initialize(memory=st.booleans())
    def open(self, memory: bool) -> None:
        self.disk = MemoryDisk() if memory else SimDisk(1)
        self.disk.make_dir("topics")
        self.log = Log.open(self.disk, FOLDER, SETTINGS)
        self.rows: list[tuple[bytes, int, int]] = []
        self.bases: list[int] = []
        self.start = 0
        self.term = 1
        self.ticket: FlushTicket | None = None

    @rule(values=VALUES, timestamp=st.integers(0, 10_000))
    def append(self, values: list[bytes], timestamp: int) -> None:
        appended = append(self.log, *values, term=self.term, timestamp=NOW_MS + timestamp)
        assert appended.base_offset == len(self.rows)
        self.bases.append(len(self.rows))
        self.rows += [(value, NOW_MS + timestamp + i, self.term) for i, value in enumerate(values)]
        assert appended.last_offset == len(self.rows) - 1

    @rule()
    def new_term(self) -> None:
        self.term += 1

    @precondition(lambda self: self.ticket is None)
    @rule()
    def begin_flush(self) -> None:
        self.ticket = self.log.flushes.begin()

    @precondition(lambda self: self.ticket is not None)
    @rule()
    def finish_flush(self) -> None:
        assert self.ticket is not None
        self.ticket.run()
        self.log.flushes.finish(self.ticket)
        self.ticket = None

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(len(self.rows) - back, self.start)
        self.log.truncation.to_offset(Offset(offset))
        if offset < len(self.rows):
            offset = max(base for base in self.bases if base <= offset)
        del self.rows[offset:]
        self.bases = [base for base in self.bases if base < offset]
        self.start = min(self.start, offset)
        self.term += 1

    @rule(part=st.floats(0, 1))
    def delete_prefix(self, part: float) -> None:
        self.start += int(part * (self.log.flushed_offset - self.start))
        self.log.retention.delete_prefix(Offset(self.start))

    @rule()
    def tidy(self) -> None:
        chores = self.log.maintenance.next_task()
        if chores is not None:
            chores()

    @precondition(lambda self: self.ticket is None)
    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = Log.open(self.disk, FOLDER, SETTINGS)
        assert self.log.flushed_offset == len(self.rows)

    @rule(part=st.floats(0, 1), max_bytes=st.integers(1, 5000), ahead=st.integers(0, 20))
    def read(self, part: float, max_bytes: int, ahead: int) -> None:
        """From any offset, up to a limit at the end of a batch."""
        offset = self.start + int(part * (len(self.rows) - self.start))
        ends = [*self.bases, len(self.rows)]
        limit = min(end for end in ends if end >= min(offset + ahead, len(self.rows)))
        data = self.log.read(Offset(offset), max_bytes, limit=Offset(limit))
        if offset >= limit:
            assert data == b""
            return
        assert read_header(data).base_offset == max(base for base in self.bases if base <= offset)
        assert len(data) <= max(max_bytes, read_header(data).size)

    @rule(timestamp=st.integers(-5, 10_005))
    def find_timestamp(self, timestamp: int) -> None:
        wanted = NOW_MS + timestamp
        rows = enumerate(self.rows)
        expected = next(((t, i, term) for i, (_, t, term) in rows if t >= wanted and i >= self.start), None)
        assert self.log.find_timestamp(wanted, Offset(len(self.rows))) == expected

    @rule(beyond=st.integers(1, 5))
    def read_outside(self, beyond: int) -> None:
        for offset in (self.start - beyond, len(self.rows) + beyond):
            try:
                self.log.read(Offset(offset), 100, limit=Offset(len(self.rows)))
            except KafkaError:
                continue
            raise AssertionError(f"{offset} was read")

    @invariant()
    def same_offsets(self) -> None:
        if hasattr(self, "rows"):
            assert (self.log.start_offset, self.log.end_offset) == (self.start, len(self.rows))
            assert self.start <= self.log.flushed_offset <= len(self.rows)

    def teardown(self) -> None:
        if not hasattr(self, "rows"):
            return
        seen = {r.offset: (r.value, r.timestamp) for _, data in stored(self.log) for r in read_records(data)}
        for offset in range(self.start, len(self.rows)):
            assert seen.pop(offset) == self.rows[offset][:2]
            assert self.log.term_at(Offset(offset)) == self.rows[offset][2]
        assert all(offset < self.start for offset in seen)


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
