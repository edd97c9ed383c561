"""Raft's index over a log: exact between control entries, after any flush, truncation or deletion."""

from contextlib import suppress

import pytest

from penstock.errors import DiskFull, ErrorCode, KafkaError
from penstock.log import Disk, Log
from penstock.sim import SimDisk
from penstock.types import Index, Offset, Term
from tests.log.tools import FOLDER, NOW_MS, append, compact, config, flush, offsets, tidy

SMALL = config(segment_bytes=600, index_interval_bytes=100)


def with_controls(disk: Disk) -> Log:
    """Indexes: 0 term 1, 1..2 a batch, 3 term 2, 4 and 5 members, 6 a batch, 7 members."""
    log = Log.open(disk, FOLDER, config())
    append(log, b"a", b"b", term=1)
    log.writer.begin_term(Term(2))
    log.writer.append_control(b"first", Term(2))
    log.writer.append_control(b"second", Term(2))
    append(log, b"c", term=2)
    log.writer.append_control(b"third", Term(2))
    return log


def test_a_batch_is_as_wide_as_its_offsets_and_a_control_entry_is_one_wide(disk: Disk) -> None:
    log = with_controls(disk)
    assert (log.entries.first_index, log.entries.end_index, log.end_offset) == (0, 8, 3)
    assert [log.entries.offset_at(index) for index in (0, 1, 3, 4, 5, 6, 7, 8)] == [0, 0, 2, 2, 2, 2, 3, 3]
    assert [log.entries.index_at(Offset(offset)) for offset in (0, 1, 2, 3)] == [0, 2, 3, 7]
    assert [log.entries.term_before(index) for index in (-1, 0, 1, 3, 4, 6, 7, 8, 9)] == [
        None,
        -1,
        1,
        1,
        2,
        2,
        2,
        2,
        None,
    ]
    assert [log.entries.floor(index) for index in range(-1, 10)] == [0, 0, 1, 1, 3, 4, 5, 6, 7, 8, 8]
    assert [log.entries.end_of_term_index(term) for term in (0, 1, 2, 3)] == [0, 3, 8, 8]
    assert log.entries.control_payloads() == [(4, b"first"), (5, b"second"), (7, b"third")]


def test_entries_are_read_whole_and_at_least_one(disk: Disk) -> None:
    log = with_controls(disk)
    everything, end = log.entries.read_entries(Index(0), 10_000)
    assert end == 8
    assert len(everything) == log.size_bytes
    index, parts = Index(0), []
    while index < log.entries.end_index:
        part, index = log.entries.read_entries(index, 1)
        parts.append(part)
    assert len(parts) == 7
    assert b"".join(parts) == everything
    assert log.entries.read_entries(Index(8), 100) == (b"", 8)
    for index in (Index(2), Index(9), Index(-1)):
        with pytest.raises(ValueError, match="index"):
            log.entries.read_entries(index, 100)


@pytest.mark.parametrize("index", [0, 1, 3, 4, 5, 6, 7, 8])
def test_truncation_is_exact_between_control_entries_of_one_offset(disk: Disk, index: int) -> None:
    log = with_controls(disk)
    flush(log)
    tidy(log)
    before, _ = log.entries.read_entries(Index(0), 10_000)
    log.truncation.to_index(index)
    assert (log.entries.end_index, log.entries.flushed_index) == (index, index)
    kept = before[: log.size_bytes]
    for again in (log, Log.open(disk, FOLDER, config())):
        assert again.entries.end_index == index
        assert again.entries.read_entries(Index(0), 10_000) == (kept, index)
        assert again.entries.last_term == (-1 if index == 0 else 1 if index <= 3 else 2)
        assert len(again.entries.control_payloads()) == sum(index > place for place in (4, 5, 7))


def test_truncation_never_cuts_a_batch_and_stays_in_the_log(disk: Disk) -> None:
    log = with_controls(disk)
    with pytest.raises(ValueError, match="within the batch at 1"):
        log.truncation.to_index(2)
    for index in (-1, 9):
        with pytest.raises(KafkaError) as caught:
            log.truncation.to_index(index)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.entries.end_index == 8


def test_a_control_entry_behind_the_last_flushed_record_is_not_flushed(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config())
    append(log, b"a", term=1)
    flush(log)
    log.writer.append_control(b"members", Term(1))
    assert (log.flushed_offset, log.end_offset) == (1, 1)
    assert (log.entries.flushed_index, log.entries.end_index, log.flushes.is_needed) == (2, 3, True)
    flush(log)
    assert log.entries.flushed_index == 3
    for seed in range(5):
        assert Log.open(sim.after_power_cut(seed), FOLDER, config()).entries.end_index == 3


def test_a_running_flush_counts_only_up_to_a_truncation(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config())
    append(log, b"a", term=1)
    for payload in (b"x", b"y", b"z"):
        log.writer.append_control(payload, Term(1))
    ticket = log.flushes.begin()
    assert ticket is not None
    log.truncation.to_index(3)
    for _ in range(4):
        log.writer.append_control(b"other", Term(1))
    ticket.run()
    log.flushes.finish(ticket)
    assert (log.entries.flushed_index, log.entries.end_index) == (3, 7)


def test_no_segment_ends_with_a_control_entry(disk: Disk) -> None:
    """It takes no offset: if it were lost, the next segment would still seem contiguous."""
    log = Log.open(disk, FOLDER, SMALL)
    for number in range(40):
        append(log, b"v" * 100, term=1 + number // 2)
        log.writer.append_control(b"m" * 50, Term(log.entries.last_term))
    assert log.segment_count > 5
    for segment in log.files.segments.segments[:-1]:
        assert not [header for _, header in segment.headers(0, segment.size)][-1].is_zero_width


def test_the_payload_of_a_control_entry_has_a_limit(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    log.writer.append_control(b"m" * 414, Term(1))
    with pytest.raises(ValueError, match="415"):
        log.writer.append_control(b"m" * 415, Term(1))
    assert log.entries.end_index == 2


def test_a_term_cannot_begin_twice_nor_before_another(disk: Disk) -> None:
    log = with_controls(disk)
    for term in (1, 2):
        with pytest.raises(ValueError, match="cannot follow"):
            log.writer.begin_term(Term(term))


# --- facts about a deleted prefix


def long_log(disk: Disk) -> Log:
    log = Log.open(disk, FOLDER, SMALL)
    for number in range(40):
        append(log, b"v" * 60, term=1 + number // 4, producer=(7, 0, number))
        if number % 5 == 0:
            log.writer.append_control(b"members %d" % number, Term(log.entries.last_term))
    flush(log)
    return log


def test_index_term_and_configuration_of_a_deleted_prefix_are_kept(sim: SimDisk) -> None:
    log = long_log(sim)
    terms = {
        index: log.entries.term_before(index)
        for index in range(log.entries.end_index + 1)
        if log.entries.floor(index) == index
    }
    payloads = log.entries.control_payloads()
    log.retention.delete_prefix(Offset(25))
    tidy(log)
    gone = [payload for index, payload in payloads if index < log.entries.first_index]
    for seed in range(10):
        again = Log.open(sim.after_power_cut(seed), FOLDER, SMALL)
        assert (again.entries.first_index, again.entries.end_index) == (
            log.entries.first_index,
            log.entries.end_index,
        )
        assert again.entries.prefix_config == gone[-1]
        assert again.entries.control_payloads() == payloads[len(gone) :]
        for index, term in terms.items():
            assert again.entries.term_before(index) == (term if index >= again.entries.first_index else None)


def test_they_are_kept_also_if_there_was_no_space_for_a_snapshot(sim: SimDisk) -> None:
    log = long_log(sim)
    sim.capacity = 0
    log.retention.delete_prefix(Offset(25))
    chores = log.maintenance.next_task()
    assert chores is not None
    with suppress(DiskFull):  # the first fails for lack of space, the second frees some
        chores()
    chores = log.maintenance.next_task()
    assert chores is not None
    with suppress(DiskFull):
        chores()
    names = sim.list_dir(FOLDER)
    assert f"{0:020d}.log" not in names
    assert not [name for name in names if name.endswith(".snapshot")]
    for seed in range(10):
        again = Log.open(sim.after_power_cut(seed), FOLDER, SMALL)
        assert (again.entries.first_index, again.entries.end_index) == (
            log.entries.first_index,
            log.entries.end_index,
        )
        assert again.entries.prefix_config == log.entries.prefix_config != b""
        assert (
            again.entries.term_before(again.entries.first_index)
            == log.entries.term_before(log.entries.first_index)
            != -1
        )


def test_uncommitted_entries_are_never_deleted(disk: Disk) -> None:
    log = long_log(disk)
    log.entries.commit_index = log.entries.index_at(20)
    log.reconfigure(config(segment_bytes=600, retention_bytes=0))
    with pytest.raises(KafkaError, match="committed up to 20"):
        log.retention.delete_prefix(Offset(21))
    log.retention.apply(NOW_MS)
    assert 10 < log.start_offset <= 20
    assert log.entries.first_index <= log.entries.index_at(Offset(20))
    log.entries.commit_index = log.entries.end_index
    log.retention.apply(NOW_MS)
    assert log.start_offset > 20


def test_a_term_that_may_have_to_be_truncated_keeps_its_segment(disk: Disk) -> None:
    """All records are committed and deleted; the control entry behind them is not committed."""
    log = Log.open(disk, FOLDER, SMALL)
    for _ in range(3):
        append(log, b"v", term=1)
    log.entries.commit_index = log.entries.end_index
    log.writer.begin_term(Term(5))
    flush(log)
    log.retention.delete_prefix(Offset(3))
    tidy(log)
    assert (log.start_offset, log.entries.first_index, log.entries.end_index) == (3, 0, 5)
    log.close()
    log = Log.open(disk, FOLDER, SMALL)
    log.entries.commit_index = Index(4)
    assert log.entries.first_index == 0
    log.truncation.to_index(4)
    assert (log.entries.last_term, log.entries.end_index) == (1, 4)
    log.writer.begin_term(Term(6))
    flush(log)
    log.entries.commit_index = log.entries.end_index
    tidy(log)
    assert (log.entries.first_index, log.entries.term_before(log.entries.first_index)) == (5, 6)


def test_compaction_stays_below_the_commit_index_and_keeps_every_index(sim: SimDisk) -> None:
    log = Log.open(
        sim, FOLDER, config(segment_bytes=600, cleanup_compact=True, min_cleanable_dirty_ratio=0.01)
    )
    for number in range(40):
        append(log, b"v" * 60, term=1 + number // 4, key=b"%d" % (number % 3))
    flush(log)
    log.entries.commit_index = log.entries.index_at(20)
    ends = {index: log.entries.term_before(index) for index in range(log.entries.end_index + 1)}
    assert compact(log)
    assert log.cleaned_offset <= 20
    assert [o for o in offsets(log) if o >= 20] == list(range(20, 40))
    assert len(offsets(log)) < 36
    again = Log.open(sim.after_power_cut(1), FOLDER, log.config)
    for each in (log, again):
        assert {index: each.entries.term_before(index) for index in range(each.entries.end_index + 1)} == ends
        index = each.entries.first_index
        while index < each.entries.end_index:
            data, index = each.entries.read_entries(index, 100)
            assert data
        assert index == log.entries.end_index
