"""Truncation, deletion of the prefix, and terms."""

import errno
import os
from pathlib import Path

import pytest

from penstock.errors import CorruptLog, ErrorCode, KafkaError
from penstock.log import Disk, Log
from penstock.log.os_disk import OsDisk
from penstock.log.terms import UNDEFINED, TermCache
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import FOLDER, NOW_MS, append, config, flush, offsets, tidy

SMALL = config(segment_bytes=700, index_interval_bytes=100)


def filled(disk: Disk, count: int = 30) -> Log:
    log = Log.open(disk, FOLDER, SMALL)
    for number in range(count):
        append(log, b"v" * 40, b"w", term=1 + number // 10, timestamp=NOW_MS + number)
    flush(log)
    return log


@pytest.mark.parametrize("offset", range(0, 61, 3))
def test_truncation_removes_everything_from_the_batch_that_holds_the_offset(disk: Disk, offset: int) -> None:
    log = filled(disk)
    log.truncation.to_offset(Offset(offset))
    end = offset - offset % 2
    assert (log.end_offset, log.flushed_offset) == (end, end)
    assert offsets(log) == list(range(end))
    append(log, b"new", term=7)
    assert offsets(log) == list(range(end + 1))
    log.close()
    again = Log.open(disk, FOLDER, SMALL)
    assert offsets(again) == list(range(end + 1))
    assert again.entries.last_term == 7
    assert again.files.state.controls.total == log.files.state.controls.total


def test_truncation_outside_the_log_is_refused(disk: Disk) -> None:
    log = filled(disk)
    log.retention.delete_prefix(Offset(20))
    for offset in (61, 19):
        with pytest.raises(KafkaError) as caught:
            log.truncation.to_offset(Offset(offset))
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_truncation_removes_the_terms_that_began_there(disk: Disk) -> None:
    log = filled(disk)
    assert (log.entries.last_term, log.end_of_term(Term(2))) == (3, (2, 40))
    log.truncation.to_offset(Offset(40))
    assert (log.entries.last_term, log.end_of_term(Term(2))) == (2, (2, 40))
    log.truncation.to_offset(Offset(11))
    assert (log.entries.last_term, log.end_of_term(Term(1))) == (1, (1, 10))
    assert log.max_timestamp(Offset(99)) == (NOW_MS + 5, 9, 1)


def test_truncation_below_the_flushed_offset_is_durable_at_once(sim: SimDisk) -> None:
    log = filled(sim)
    tidy(log)
    log.truncation.to_offset(Offset(24))
    for seed in range(20):
        assert offsets(Log.open(sim.after_power_cut(seed), FOLDER, SMALL)) == list(range(24))


def test_deleting_the_prefix_moves_the_start_also_within_a_batch(disk: Disk) -> None:
    log = filled(disk)
    log.retention.delete_prefix(Offset(27))
    assert (log.start_offset, offsets(log)) == (27, list(range(27, 60)))
    with pytest.raises(KafkaError):
        log.read(Offset(26), 100, limit=Offset(60))
    log.retention.delete_prefix(Offset(5))
    assert log.start_offset == 27
    log.close()
    assert offsets(Log.open(disk, FOLDER, SMALL)) == list(range(27, 60))


def test_files_of_the_prefix_are_removed_with_the_garbage(disk: Disk) -> None:
    log = filled(disk)
    before = log.segment_count
    log.retention.delete_prefix(Offset(40))
    assert log.segment_count < before
    tidy(log)
    bases = [name for name in disk.list_dir(FOLDER) if name.endswith(".log")]
    assert bases == [f"{base:020d}.log" for base in log.files.segments.bases]


def test_deleting_everything_leaves_an_empty_usable_log(disk: Disk) -> None:
    log = filled(disk)
    log.retention.delete_prefix(Offset(60))
    assert (log.start_offset, log.end_offset, log.size_bytes) == (60, 60, 0)
    tidy(log)
    log.close()
    log = Log.open(disk, FOLDER, SMALL)
    assert (log.start_offset, log.end_offset, log.entries.last_term) == (60, 60, 3)
    assert append(log, b"next", term=3).base_offset == 60
    assert offsets(log) == [60]


def test_unflushed_records_cannot_be_deleted(disk: Disk) -> None:
    log = filled(disk)
    append(log, b"unflushed", term=3)
    with pytest.raises(KafkaError) as caught:
        log.retention.delete_prefix(Offset(61))
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_number_of_deleted_control_entries_is_remembered(disk: Disk) -> None:
    log = filled(disk)
    log.retention.delete_prefix(Offset(45))
    tidy(log)
    assert log.files.state.start_controls > 0
    log.close()
    again = Log.open(disk, FOLDER, SMALL)
    assert (again.files.state.start_controls, again.files.state.controls.total) == (
        log.files.state.start_controls,
        3,
    )


def test_a_removal_of_files_that_was_cut_short_is_finished(sim: SimDisk) -> None:
    log = filled(sim)
    log.retention.delete_prefix(Offset(45))
    chores = log.maintenance.next_task()
    assert chores is not None
    survivors = []
    sim.on_operation = lambda number, kind, path: survivors.append(sim.after_power_cut(number))
    chores()
    assert len(survivors) > 10
    for after in survivors:
        again = Log.open(after, FOLDER, SMALL)
        assert (again.end_offset, again.files.state.controls.total) == (60, 3)
        assert offsets(again) == list(range(int(again.start_offset), 60))
        tidy(again)
        assert len([n for n in after.list_dir(FOLDER) if n.endswith(".log")]) == again.segment_count


def test_a_log_that_is_truncated_to_its_start_knows_the_term_before_it(disk: Disk) -> None:
    log = filled(disk)
    log.retention.delete_prefix(Offset(50))
    log.truncation.to_offset(Offset(50))
    assert (log.start_offset, log.end_offset, log.entries.last_term) == (50, 50, 3)
    append(log, b"v", term=3)
    assert log.term_at(Offset(50)) == 3
    log.close()
    again = Log.open(disk, FOLDER, SMALL)
    assert (again.entries.last_term, again.term_at(Offset(50)), again.files.state.controls.total) == (3, 3, 3)


# --- terms


def test_the_end_of_a_term_is_answered_as_kafka_does(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    for term in (2, 2, 5, 5, 5, 9):
        append(log, b"v", term=term)
    asked = {term: log.end_of_term(Term(term)) for term in (0, 1, 2, 3, 4, 5, 8, 9, 10, -1)}
    assert asked == {
        0: (0, 0),
        1: (1, 0),
        2: (2, 2),
        3: (2, 2),
        4: (2, 2),
        5: (5, 5),
        8: (5, 5),
        9: (9, 6),
        10: (-1, -1),
        -1: (-1, -1),
    }


def test_a_term_without_records_is_kept() -> None:
    cache = TermCache([(1, 0), (3, 10), (4, 10)])
    assert cache.end_of(3, 20) == (3, 10)
    assert (cache.at(9), cache.at(10)) == (1, 4)
    with pytest.raises(ValueError, match="cannot begin"):
        cache.begin(4, 30)


def test_the_term_at_the_log_start_is_kept_when_its_first_records_are_deleted() -> None:
    cache = TermCache([(1, 0), (3, 10), (7, 20)])
    cache.delete_prefix(15)
    assert cache.entries() == [(3, 15), (7, 20)]
    assert cache.end_of(1, 30) == (1, 15)
    cache.delete_prefix(20)
    assert cache.entries() == [(7, 20)]
    cache.truncate(20, last_term=3)
    assert cache.entries() == [(3, 20)], "term 7 began with what was truncated"
    assert cache.end_of(7, 20) == UNDEFINED


def test_a_truncation_that_meets_a_bad_sector_stops_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done in part then, and closing the log would save what it has in memory."""
    disk = OsDisk(tmp_path)
    log = Log.open(disk, FOLDER, config(index_interval_bytes=100))
    for number in range(20):
        append(log, b"v" * 200, producer=(7, 0, number))
    flush(log)
    read = os.pread

    def fails_at_the_start(fd: int, count: int, position: int) -> bytes:
        if position == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, count, position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fails_at_the_start)
        with pytest.raises(CorruptLog, match="cannot be read"):
            log.truncation.to_offset(Offset(10))
    assert log.failed is not None
    log.close()
    assert offsets(Log.open(disk, FOLDER, config())) == list(range(10))
