"""Retention by age and by size drops whole segments, oldest first."""

from penstock.log import Disk, Log, MemoryDisk
from penstock.sim import SimDisk
from penstock.types import Offset
from tests.log.tools import FOLDER, NOW_MS, append, config, flush, offsets, tidy

HOUR_MS = 3_600_000


def hourly(disk: Disk, **settings: object) -> Log:
    """A segment for each hour, two batches in each, the last one now."""
    log = Log.open(disk, FOLDER, config(segment_ms=HOUR_MS - 1, **settings))
    for hour in range(10):
        for _ in range(2):
            append(log, b"v" * 100, timestamp=NOW_MS - (9 - hour) * HOUR_MS)
    flush(log)
    assert log.segment_count == 10
    return log


def test_segments_whose_latest_record_is_too_old_are_deleted(disk: Disk) -> None:
    log = hourly(disk, retention_ms=3 * HOUR_MS)
    removed = log.retention.apply(NOW_MS)
    assert offsets(log) == list(range(12, 20))
    assert removed > 6 * 300
    assert log.retention.apply(NOW_MS) == 0


def test_the_active_segment_expires_too(disk: Disk) -> None:
    log = hourly(disk, retention_ms=HOUR_MS)
    log.retention.apply(NOW_MS + 100 * HOUR_MS)
    assert (log.start_offset, log.end_offset, log.segment_count) == (20, 20, 1)
    tidy(log)
    append(log, b"next")
    assert offsets(log) == [20]


def test_retention_by_size_keeps_at_least_that_size(disk: Disk) -> None:
    log = hourly(disk, retention_ms=-1)
    segment = log.files.segments.segments[1].size
    log.reconfigure(config(retention_ms=-1, retention_bytes=3 * segment + 10))
    log.retention.apply(NOW_MS)
    assert log.segment_count == 4
    assert log.size_bytes >= 3 * segment + 10
    log.reconfigure(config(retention_ms=-1, retention_bytes=0))
    log.retention.apply(NOW_MS)
    assert log.segment_count == 1


def test_without_the_delete_policy_nothing_expires(disk: Disk) -> None:
    log = hourly(disk, retention_ms=1, retention_bytes=1, cleanup_delete=False, cleanup_compact=True)
    assert log.retention.apply(NOW_MS) == 0
    assert offsets(log) == list(range(20))


def test_unflushed_records_do_not_expire(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(retention_ms=1))
    append(log, b"v", timestamp=5)
    assert log.retention.apply(NOW_MS) == 0
    flush(log)
    assert log.retention.apply(NOW_MS) > 0


def test_records_without_a_time_do_not_expire_by_age(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(retention_ms=1))
    append(log, b"v", timestamp=-1)
    flush(log)
    assert log.retention.apply(NOW_MS) == 0


def test_a_memory_disk_releases_the_memory() -> None:
    disk = MemoryDisk()
    log = Log.open(disk, FOLDER, config(segment_bytes=100_000, retention_bytes=100_000))
    for _ in range(60):
        append(log, b"v" * 20_000)
        flush(log)
        log.retention.apply(NOW_MS)
        tidy(log)
    names = disk.list_dir(FOLDER)
    assert sum(disk.size(f"{FOLDER}/{name}") for name in names) < 250_000
    assert log.start_offset > 40
    log.destroy()()
    assert disk.list_dir("topics") == []


def test_deletion_does_not_affect_readers_ahead_of_it(disk: Disk) -> None:
    log = hourly(disk, retention_ms=5 * HOUR_MS)
    log.read(Offset(15), 10, limit=Offset(20))
    log.retention.apply(NOW_MS)
    assert log.read(Offset(16), 10, limit=Offset(20)) != b""


def test_files_are_removed_although_more_expires_before_each_snapshot(sim: SimDisk) -> None:
    """A snapshot covers the garbage at its time; later garbage must not delay its removal."""
    log = Log.open(sim, FOLDER, config(segment_bytes=300, retention_bytes=300))
    most = 0
    for term in range(1, 31):
        for _ in range(8):
            append(log, b"v" * 100, term=term)
            flush(log)
            log.retention.apply(NOW_MS)
        chores = log.maintenance.next_task()
        if chores is not None:
            chores()
        most = max(most, len([name for name in sim.list_dir(FOLDER) if name.endswith(".log")]))
    assert most < 25
    again = Log.open(sim.after_power_cut(1), FOLDER, config())
    assert again.files.state.controls.total == 30
    assert offsets(again) == list(range(int(again.start_offset), 240))
