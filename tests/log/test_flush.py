"""Flushing off the event loop: tickets, changes during a flush, and disks that fail or are full."""

import pytest

from penstock.errors import DiskFull, StorageError
from penstock.log import Disk, Log
from penstock.sim import SimDisk
from penstock.types import Offset
from tests.log.tools import FOLDER, append, config, flush, offsets, tidy

SMALL = config(segment_bytes=600)


def test_only_a_finished_ticket_moves_the_flushed_offset(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"a", b"b")
    assert (log.flushes.is_needed, log.flushed_offset) == (True, 0)
    ticket = log.flushes.begin()
    assert ticket is not None
    assert (log.flushes.is_needed, log.flushed_offset) == (False, 0)
    append(log, b"c")
    ticket.run()
    assert log.flushed_offset == 0
    log.flushes.finish(ticket)
    assert (log.flushes.is_needed, log.flushed_offset) == (True, 2)
    flush(log)
    assert (log.flushes.is_needed, log.flushed_offset) == (False, 3)


def test_a_memory_log_has_no_files_to_flush(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"a")
    ticket = log.flushes.begin()
    assert ticket is not None
    assert (ticket.files == 0) == disk.volatile
    log.flushes.finish(ticket)
    assert log.flushed_offset == 1


def test_two_flushes_at_once_are_a_bug(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"a")
    ticket = log.flushes.begin()
    append(log, b"b")
    with pytest.raises(RuntimeError, match="under way"):
        log.flushes.begin()
    assert ticket is not None


def test_a_roll_does_not_lose_the_flush_of_the_old_segment(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, SMALL)
    for _ in range(12):
        append(log, b"v" * 100)
    assert log.segment_count > 3
    flush(log)
    for seed in range(10):
        assert offsets(Log.open(sim.after_power_cut(seed), FOLDER, SMALL)) == list(range(12))


def test_a_truncation_during_a_flush_lowers_its_result(sim: SimDisk) -> None:
    """Else batches that are appended after the truncation, at the same offsets, would count as flushed."""
    log = Log.open(sim, FOLDER, SMALL)
    for _ in range(10):
        append(log, b"v" * 100)
    ticket = log.flushes.begin()
    assert ticket is not None
    log.truncation.to_offset(Offset(4))
    for _ in range(6):
        append(log, b"w" * 100, term=2)
    ticket.run()
    log.flushes.finish(ticket)
    assert log.flushed_offset == 4
    flush(log)
    assert log.flushed_offset == 10


def test_a_deletion_during_a_flush_is_safe(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SMALL)
    for _ in range(6):
        append(log, b"v" * 100)
    flush(log)
    for _ in range(6):
        append(log, b"v" * 100)
    ticket = log.flushes.begin()
    assert ticket is not None
    log.retention.delete_prefix(Offset(6))
    tidy(log)
    ticket.run()
    log.flushes.finish(ticket)
    assert offsets(log) == list(range(6, 12))
    assert log.flushed_offset == 12


def test_destroying_during_a_flush_is_safe(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SMALL)
    append(log, b"v")
    ticket = log.flushes.begin()
    assert ticket is not None
    log.destroy()()
    ticket.run()
    log.flushes.finish(ticket)
    with pytest.raises(StorageError, match="deleted"):
        append(log, b"v")


def test_after_a_failed_flush_the_log_refuses_writes_and_serves_reads(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config())
    append(log, b"flushed")
    flush(log)
    append(log, b"lost")
    sim.fail_flush(".log")
    ticket = log.flushes.begin()
    assert ticket is not None
    with pytest.raises(StorageError) as caught:
        ticket.run()
    log.flushes.finish(ticket, caught.value)
    assert (log.failed, log.flushed_offset) == (caught.value, 1)
    with pytest.raises(StorageError, match="takes no writes"):
        append(log, b"more")
    assert log.flushes.begin() is None
    assert log.maintenance.next_task() is None
    assert log.read(Offset(0), 100, limit=log.flushed_offset) != b""
    log.close()
    for seed in range(5):
        assert offsets(Log.open(sim.after_power_cut(seed), FOLDER, config()))[:1] == [0]


@pytest.mark.parametrize("pause", ["before the flush", "during the flush"])
def test_a_process_that_starts_after_a_failed_flush_counts_nothing_that_was_lost(
    sim: SimDisk, pause: str
) -> None:
    """The machine goes on, so its cache still shows the lost bytes. `during the flush`: others come while it runs, and
    are still to be written."""
    log = Log.open(sim, FOLDER, config())
    append(log, b"flushed" * 100)
    flush(log)
    append(log, b"lost" * 500)
    sim.fail_flush(".log")
    ticket = log.flushes.begin()
    assert ticket is not None
    with pytest.raises(StorageError) as caught:
        ticket.run()
    if pause == "during the flush":
        append(log, b"after the lost ones" * 100)
    log.flushes.finish(ticket, caught.value)
    sim.process_died()
    again = Log.open(sim, FOLDER, config())
    assert (offsets(again), again.flushed_offset) == ([0], 1)
    append(again, b"in their place" * 100)
    flush(again)
    tidy(again)
    for seed in range(20):
        assert offsets(Log.open(sim.after_power_cut(seed), FOLDER, config())) == [0, 1]


def test_a_full_disk_refuses_appends_and_recovers_by_itself(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config(segment_bytes=4000))
    append(log, b"v" * 100)
    flush(log)
    sim.capacity = sum(sim.size(f"{FOLDER}/{name}") for name in sim.list_dir(FOLDER)) + 300
    append(log, b"fits")
    before = log.size_bytes
    for _ in range(3):
        with pytest.raises(DiskFull):
            append(log, b"w" * 1000)
        assert (log.size_bytes, log.end_offset, log.failed) == (before, 2, None)
        assert sim.size(f"{FOLDER}/00000000000000000000.log") == before
    assert offsets(log) == [0, 1]
    flush(log)
    sim.capacity = None
    assert append(log, b"w" * 1000).base_offset == 2
    assert offsets(log) == [0, 1, 2]


@pytest.mark.parametrize("room", range(0, 400, 25))
def test_a_disk_that_fills_at_any_point_leaves_a_usable_log(sim: SimDisk, room: int) -> None:
    """Also if the new term's control entry, or the new segment's file, does not fit."""
    log = Log.open(sim, FOLDER, config(segment_bytes=400))
    append(log, b"v" * 50)
    flush(log)
    sim.capacity = sum(sim.size(f"{FOLDER}/{name}") for name in sim.list_dir(FOLDER)) + room
    stored = 1
    for term in range(2, 8):
        try:
            append(log, b"w" * 40, term=term)
            stored += 1
        except DiskFull:
            assert log.failed is None
    sim.capacity = None
    append(log, b"x", term=9)
    assert offsets(log) == list(range(stored + 1))
    flush(log)
    assert offsets(Log.open(sim.after_power_cut(room), FOLDER, config())) == list(range(stored + 1))


def test_a_full_disk_does_not_stop_deletion(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, SMALL)
    for _ in range(12):
        append(log, b"v" * 100)
    flush(log)
    sim.capacity = 0
    log.retention.delete_prefix(Offset(8))
    assert offsets(log) == [8, 9, 10, 11]
    before = sum(sim.size(f"{FOLDER}/{name}") for name in sim.list_dir(FOLDER))
    saving = log.maintenance.next_task()
    assert saving is not None
    with pytest.raises(DiskFull):
        saving()
    removing = log.maintenance.next_task()
    assert removing is not None
    removing()
    assert sum(sim.size(f"{FOLDER}/{name}") for name in sim.list_dir(FOLDER)) < before - 800
    sim.capacity = None
    tidy(log)
    assert [name for name in sim.list_dir(FOLDER) if name.endswith(".log")] == [
        f"{base:020d}.log" for base in log.files.segments.bases
    ]
    for seed in range(5):
        assert offsets(Log.open(sim.after_power_cut(seed), FOLDER, SMALL)) == [8, 9, 10, 11]
