"""What readers of committed records may see of transactions, and what programs may have done."""

import pytest

from penstock.batch import EndMarker, Record, build_batch, build_marker
from penstock.sim.entries import Entry
from penstock.sim.outcome import Violation
from penstock.sim.transaction_history import (
    Ending,
    Poll,
    SimTransaction,
    TransactionHistory,
    committed_records,
    stored_records,
)

PRODUCER = 7


class Truth:
    """The committed entries of one partition."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    @property
    def end(self) -> int:
        return len(self.entries)

    def add(self, value: bytes, *, transactional: bool = True, producer_id: int = PRODUCER) -> int:
        data = build_batch(
            [Record(self.end, 1, b"k", value)],
            base_offset=self.end,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )
        return self._append(data)

    def mark(self, *, commit: bool, producer_id: int = PRODUCER) -> int:
        marker = EndMarker(commit, 1)
        data = build_marker(
            marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=1, offset=self.end
        )
        return self._append(bytes(data))

    def _append(self, data: bytes) -> int:
        at = self.end
        self.entries.append(Entry(at, at + 1, 1, at, False, data))
        return at


class Scene:
    """A history with two partitions."""

    def __init__(self) -> None:
        self.history = TransactionHistory()
        self.truths = {0: Truth(), 1: Truth()}

    def write(self, one: SimTransaction, partition: int, value: bytes) -> None:
        self.history.sends(one, [value])
        one.written[value] = (partition, self.truths[partition].add(value))

    def end(self, *commits: bool) -> None:
        for partition, commit in enumerate(commits):
            self.truths[partition].mark(commit=commit)

    def check(self, *, compacted: bool = False, **offsets: int) -> None:
        truths = {index: truth.entries for index, truth in self.truths.items()}
        self.history.check(truths, offsets, compacted=compacted)


def committed(scene: Scene, number: int = 1) -> SimTransaction:
    """A transaction on both partitions that is committed."""
    one = scene.history.begin("t", number)
    for partition in (0, 1):
        scene.write(one, partition, one.value(partition, 0, 0))
    one.commit_asked = one.committed = True
    scene.end(True, True)
    return one


def test_what_was_committed_and_polled_keeps_all_promises() -> None:
    scene = Scene()
    one = committed(scene)
    scene.history.polled(Poll("r", 0, 0, 2, [(0, one.value(0, 0, 0))]))
    scene.check(t=1)


def test_a_torn_transaction_is_found() -> None:
    scene = Scene()
    one = scene.history.begin("t", 1)
    for partition in (0, 1):
        scene.write(one, partition, one.value(partition, 0, 0))
    one.commit_asked = True
    scene.end(True, False)
    with pytest.raises(Violation, match="visible as a whole"):
        scene.check(t=1)


def test_a_transaction_whose_commit_was_not_answered_may_end_either_way() -> None:
    for commit in (True, False):
        scene = Scene()
        one = scene.history.begin("t", 1)
        for partition in (0, 1):
            scene.write(one, partition, one.value(partition, 0, 0))
        one.commit_asked = True
        scene.end(commit, commit)
        scene.check(t=int(commit))


def test_a_lost_transaction_is_found() -> None:
    scene = Scene()
    committed(scene)
    lost = scene.history.begin("t", 2)
    scene.write(lost, 0, lost.value(0, 0, 0))
    lost.commit_asked = lost.committed = True
    scene.end(False)
    with pytest.raises(Violation, match="that was committed is there once"):
        scene.check(t=2)


def test_a_record_that_is_visible_twice_is_found() -> None:
    scene = Scene()
    one = committed(scene)
    scene.truths[0].add(one.value(0, 0, 0))
    scene.end(True)
    with pytest.raises(Violation, match="that was committed is there once"):
        scene.check(t=1)


def test_an_aborted_record_is_found_when_a_reader_sees_it() -> None:
    scene = Scene()
    one = scene.history.begin("t", 1)
    scene.write(one, 0, one.value(0, 0, 0))
    with pytest.raises(Violation, match="no reader sees an aborted record"):
        scene.history.polled(Poll("r", 0, 0, 1, [(0, one.value(0, 0, 0))]))


def test_a_transaction_that_its_program_never_committed_must_not_become_visible() -> None:
    scene = Scene()
    one = scene.history.begin("t", 1)
    scene.write(one, 0, one.value(0, 0, 0))
    scene.end(True)
    with pytest.raises(Violation, match="what was not committed is not visible"):
        scene.check(t=0)


def test_a_record_that_becomes_visible_behind_a_reader_is_found() -> None:
    scene = Scene()
    committed(scene)
    scene.history.polled(Poll("r", 0, 0, 2, []))
    with pytest.raises(Violation, match="nothing becomes visible behind a reader"):
        scene.check(t=1)
    scene.check(compacted=True, t=1)


def test_a_record_that_a_reader_saw_and_that_was_aborted_later_is_found() -> None:
    scene = Scene()
    one = scene.history.begin("t", 1)
    scene.write(one, 0, one.value(0, 0, 0))
    one.commit_asked = True
    scene.history.polled(Poll("r", 0, 0, 1, [(0, one.value(0, 0, 0))]))
    scene.end(False)
    with pytest.raises(Violation, match="readers see what was committed"):
        scene.check(t=0)


def test_a_transaction_that_never_ends_is_found() -> None:
    scene = Scene()
    scene.truths[1].add(b"hanging")
    with pytest.raises(Violation, match="each transaction ends"):
        scene.check()


def test_a_step_that_is_done_twice_or_left_out_is_found() -> None:
    for numbers in ((1, 1), (1, 3)):
        scene = Scene()
        for number in numbers:
            committed(scene, number)
        with pytest.raises(Violation, match="each step is done exactly once"):
            scene.check(t=2)


def test_an_offset_that_is_not_that_of_the_last_transaction_is_found() -> None:
    scene = Scene()
    committed(scene)
    with pytest.raises(Violation, match="offsets are committed with their transaction"):
        scene.check(t=0)


def test_a_marker_ends_the_transaction_of_its_producer_and_no_other() -> None:
    truth = Truth()
    truth.add(b"a")
    truth.add(b"b", producer_id=8)
    truth.add(b"plain", transactional=False, producer_id=9)
    truth.mark(commit=False, producer_id=8)
    endings = {one.mark: one.ending for one in stored_records(truth.entries)}
    assert endings == {b"a": Ending.OPEN, b"b": Ending.ABORT, b"plain": Ending.COMMIT}


def test_a_reader_leaves_out_markers_and_aborted_records() -> None:
    truth = Truth()
    truth.add(b"a")
    truth.mark(commit=False)
    truth.add(b"b")
    truth.mark(commit=True)
    data = b"".join(entry.data for entry in truth.entries)
    assert committed_records(data, [(PRODUCER, 0)], 0) == [(2, b"b")]
    assert committed_records(data, [], 1) == [(2, b"b")]
