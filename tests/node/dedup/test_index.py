"""The index of message ids of a partition: for a window, up to a limit, with the offset of the first one."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.node.dedup.index import RUNS, SWEEP, DedupIndex
from penstock.node.dedup.message_ids import MessageId

WINDOW_MS = 10_000


def ids(*names: str) -> list[MessageId]:
    """Records with these ids, one after the other; "" has none."""
    return [MessageId(delta, name.encode()) for delta, name in enumerate(names) if name]


def test_an_id_is_found_with_its_offset_until_its_window_ends() -> None:
    index = DedupIndex(100)
    index.note(1_000, WINDOW_MS, 70, ids("a", "", "c"))
    index.expire(1_000 + WINDOW_MS - 1, WINDOW_MS)
    assert (index.find(b"a"), index.find(b"c"), index.find(b"b")) == (70, 72, None)
    index.expire(1_000 + WINDOW_MS, WINDOW_MS)
    assert (index.find(b"a"), index.find(b"c")) == (None, None)
    assert len(index) == 0


def test_an_id_that_comes_again_after_its_window_is_indexed_again() -> None:
    index = DedupIndex(100)
    index.note(0, WINDOW_MS, 5, ids("a"))
    index.expire(WINDOW_MS, WINDOW_MS)
    index.note(WINDOW_MS, WINDOW_MS, 9, ids("a"))
    assert index.find(b"a") == 9
    index.expire(2 * WINDOW_MS - 1, WINDOW_MS)
    assert index.find(b"a") == 9


def test_a_known_id_keeps_its_first_offset() -> None:
    index = DedupIndex(100)
    index.note(0, WINDOW_MS, 5, ids("a"))
    index.note(1, WINDOW_MS, 6, ids("a", "b"))
    assert (index.find(b"a"), index.find(b"b")) == (5, 7)


def test_ids_of_one_time_slot_are_kept_as_long_as_the_latest_of_them() -> None:
    index = DedupIndex(100)
    index.note(0, WINDOW_MS, 0, ids("a"))
    index.note(WINDOW_MS // RUNS, WINDOW_MS, 1, ids("b"))
    index.expire(WINDOW_MS, WINDOW_MS)
    assert (index.find(b"a"), index.find(b"b")) == (0, 1)
    index.expire(WINDOW_MS + WINDOW_MS // RUNS, WINDOW_MS)
    assert (index.find(b"a"), index.find(b"b")) == (None, None)


def test_above_the_limit_the_oldest_ids_are_dropped() -> None:
    index = DedupIndex(3)
    index.note(0, WINDOW_MS, 0, ids("a", "b", "c"))
    assert not index.limited
    index.note(1, WINDOW_MS, 3, ids("d", "e"))
    assert index.limited
    assert len(index) == 3
    assert [index.find(name) for name in (b"a", b"b", b"c", b"d", b"e")] == [None, None, 2, 3, 4]


def test_expired_ids_do_not_count_towards_the_limit() -> None:
    index = DedupIndex(3)
    index.note(0, WINDOW_MS, 0, ids("a", "b", "c"))
    index.expire(WINDOW_MS, WINDOW_MS)
    index.note(WINDOW_MS, WINDOW_MS, 3, ids("d", "e", "f"))
    assert not index.limited
    assert [index.find(name) for name in (b"a", b"d", b"f")] == [None, 3, 5]


def test_a_million_ids_expire_at_once_and_are_removed_a_few_at_a_time() -> None:
    index = DedupIndex(1_000_000)
    for batch in range(1_000):
        rows = [MessageId(row, (batch * 1_000 + row).to_bytes(16, "big")) for row in range(1_000)]
        index.note(batch, WINDOW_MS, batch * 1_000, rows)
    assert len(index) == 1_000_000
    index.expire(10**9, WINDOW_MS)
    assert index.find((999_999).to_bytes(16, "big")) is None
    assert len(index) == 1_000_000 - SWEEP


def test_an_id_that_comes_again_before_its_expired_entry_was_removed_stays() -> None:
    index = DedupIndex(10_000)
    names = [f"id {number}" for number in range(3 * SWEEP)]
    index.note(0, WINDOW_MS, 0, ids(*names))
    index.expire(WINDOW_MS, WINDOW_MS)
    last = names[-1].encode()
    assert (index.find(last), len(index)) == (None, 2 * SWEEP)
    index.note(WINDOW_MS, WINDOW_MS, 1_000, ids(names[-1]))
    assert index.find(last) == 1_000
    for _ in range(3):
        index.expire(WINDOW_MS, WINDOW_MS)
    assert (index.find(last), len(index)) == (1_000, 1)


def test_a_clock_that_goes_back_expires_nothing() -> None:
    index = DedupIndex(100)
    index.note(5_000, WINDOW_MS, 0, ids("a"))
    index.note(1_000, WINDOW_MS, 1, ids("b"))
    index.expire(5_000 + WINDOW_MS - 1, WINDOW_MS)
    assert (index.find(b"a"), index.find(b"b")) == (0, 1)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 50))
def test_the_number_of_time_slots_is_bounded(steps: list[int], first_ms: int) -> None:
    index, now_ms = DedupIndex(1_000), first_ms
    for offset, step in enumerate(steps):
        now_ms += step * WINDOW_MS // RUNS
        index.expire(now_ms, WINDOW_MS)
        index.note(now_ms, WINDOW_MS, offset, ids(f"id {offset}"))
    assert len(index._runs) <= RUNS + 1


NAMES = st.lists(st.sampled_from(["", "a", "b", "c", "d", "e", "f", "g"]), min_size=1, max_size=4)
MAX_IDS = 5


class IndexAgainstDict(RuleBasedStateMachine):
    """A plain dict keeps all ids with their times; the index may drop only expired ids, or those above the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DedupIndex(MAX_IDS)
        self.known: dict[bytes, tuple[int, int]] = {}
        self.now_ms = 0
        self.end_offset = 0

    @rule(names=NAMES)
    def batch(self, names: list[str]) -> None:
        self.index.expire(self.now_ms, WINDOW_MS)
        rows = ids(*names)
        for delta, digest in rows:
            if self.index.find(digest) is None and self._in_batch(rows, delta, digest):
                self.known[digest] = (self.end_offset + delta, self.now_ms)
        self.index.note(self.now_ms, WINDOW_MS, self.end_offset, rows)
        self.end_offset += len(names)

    @staticmethod
    def _in_batch(rows: list[MessageId], delta: int, digest: bytes) -> bool:
        return next(row.delta for row in rows if row.digest == digest) == delta

    @rule(step_ms=st.sampled_from([0, 1, WINDOW_MS // RUNS, WINDOW_MS // 3, WINDOW_MS]))
    def time_goes_by(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.index.expire(self.now_ms, WINDOW_MS)

    @invariant()
    def keeps_ids_of_the_window_and_no_long_expired_ones(self) -> None:
        newest = sorted(offset for offset, _ in self.known.values())[-MAX_IDS:]
        for digest, (offset, time_ms) in self.known.items():
            found = self.index.find(digest)
            assert found in (None, offset)
            if self.now_ms < time_ms + WINDOW_MS and offset in newest:
                assert found == offset
            if self.now_ms >= time_ms + WINDOW_MS + WINDOW_MS // RUNS:
                assert found is None

    @invariant()
    def holds_no_more_than_it_may(self) -> None:
        assert len(self.index) <= MAX_IDS


TestIndexAgainstDict = IndexAgainstDict.TestCase
