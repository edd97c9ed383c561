"""Appended batches are read back: offsets, order, limits of a read."""

from pathlib import Path

import pytest

from penstock.batch import iter_headers, read_header
from penstock.errors import ErrorCode, KafkaError
from penstock.log import Disk, Log
from penstock.log.os_disk import OsDisk
from penstock.types import Offset, Term
from tests.log.tools import FOLDER, NOW_MS, append, batch, config, flush, offsets, records, stored

END = Offset(2**62)


def test_offsets_are_consecutive_from_zero_and_survive_reopening(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(segment_bytes=1000))
    for number in range(30):
        appended = append(log, b"x" * 40, b"y", term=1 + number // 10)
        assert (appended.base_offset, appended.last_offset) == (2 * number, 2 * number + 1)
        assert (appended.timestamp_ms, appended.duplicate) == (-1, False)
    assert offsets(log) == list(range(60))
    assert log.segment_count > 3
    log.close()
    again = Log.open(disk, FOLDER, config(segment_bytes=1000))
    assert offsets(again) == list(range(60))
    assert again.end_offset == again.flushed_offset == 60
    assert again.entries.last_term == 3


def test_an_empty_log_creates_no_file_before_the_first_append(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    assert (log.start_offset, log.end_offset, log.segment_count, log.flushes.is_needed) == (0, 0, 0, False)
    assert log.flushes.begin() is None
    assert log.maintenance.next_task() is None
    log.truncation.to_offset(Offset(0))
    log.close()
    assert disk.list_dir("topics") == []
    assert log.read(Offset(0), 100, limit=END) == b""


def test_a_stored_batch_is_the_sent_one_with_offset_and_term_stamped(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"one")
    append(log, b"two", b"three", term=5)
    (_, first), (header, second) = stored(log)
    assert read_header(first).leader_epoch == 1
    assert (header.base_offset, header.leader_epoch, header.last_offset_delta) == (1, 5, 1)
    assert [r.value for r in records(log)] == [b"one", b"two", b"three"]
    assert len(second) == header.size


def test_a_read_in_the_middle_of_a_batch_gives_the_whole_batch(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(index_interval_bytes=200))
    for _ in range(20):
        append(log, b"a" * 30, b"b", b"c")
    for offset in range(60):
        data = log.read(Offset(offset), 1, limit=END)
        assert read_header(data).base_offset == offset - offset % 3
        assert len(data) == read_header(data).size


def test_a_read_gives_whole_batches_within_max_bytes(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(index_interval_bytes=300))
    for _ in range(50):
        append(log, b"v" * 30)
    size = next(iter(stored(log)))[0].size
    for wanted in (size, 2 * size + 1, 10 * size - 1, 1000 * size):
        data = log.read(Offset(0), wanted, limit=END)
        assert len(data) % size == 0
        assert size <= len(data) <= wanted
        assert sum(header.size for _, header in iter_headers(data)) == len(data)


def test_a_batch_larger_than_max_bytes_is_returned_only_on_request(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"v" * 500)
    append(log, b"w")
    assert log.read(Offset(0), 100, limit=END, at_least_one=False) == b""
    assert read_header(log.read(Offset(0), 100, limit=END)).size > 500
    assert read_header(log.read(Offset(1), 100, limit=END, at_least_one=False)).base_offset == 1


def test_a_read_stops_at_the_limit(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    for _ in range(10):
        append(log, b"v")
    assert [h.base_offset for _, h in iter_headers(log.read(Offset(3), 9999, limit=Offset(6)))] == [3, 4, 5]
    assert log.read(Offset(6), 9999, limit=Offset(6)) == b""
    assert log.read(Offset(10), 9999, limit=END) == b""


@pytest.mark.parametrize("offset", [-1, 11])
def test_a_read_outside_the_log_is_out_of_range(disk: Disk, offset: int) -> None:
    log = Log.open(disk, FOLDER, config())
    for _ in range(10):
        append(log, b"v")
    with pytest.raises(KafkaError) as caught:
        log.read(Offset(offset), 100, limit=END)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_readers_never_see_control_entries(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(segment_bytes=2000, index_interval_bytes=100))
    for term in range(1, 30):
        log.writer.append_control(b"members: 1, 2", Term(term))
        append(log, b"v" * (term * 7), b"w", term=term)
        log.writer.append_control(b"members: 1", Term(term))
    assert log.files.state.controls.total == 29 * 3
    for max_bytes in (1, 150, 10_000):
        seen = [(h.base_offset, h.is_zero_width) for h, _ in stored(log, max_bytes)]
        assert seen == [(2 * number, False) for number in range(29)]
    for offset in range(58):
        assert read_header(log.read(Offset(offset), 1, limit=END)).base_offset == offset - offset % 2


def test_control_entries_stay_hidden_after_reopening(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    for term in (1, 1, 2, 4):
        log.writer.append_control(b"x", Term(term))
        append(log, b"v", term=term)
    log.writer.append_control(b"last", Term(4))
    count = log.files.state.controls.total
    log.close()
    again = Log.open(disk, FOLDER, config())
    assert offsets(again) == [0, 1, 2, 3]
    assert again.files.state.controls.total == count
    append(again, b"more", term=4)
    assert offsets(again) == [0, 1, 2, 3, 4]


def test_a_term_cannot_go_back(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"v", term=3)
    with pytest.raises(ValueError, match="term 2"):
        append(log, b"v", term=2)


def test_a_segment_rolls_by_size_and_a_batch_larger_than_one_is_refused(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(segment_bytes=500))
    for _ in range(6):
        append(log, b"v" * 100)
    assert all(segment.size <= 500 for segment in log.files.segments.segments)
    assert log.segment_count == 3
    with pytest.raises(KafkaError) as caught:
        append(log, b"v" * 600)
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert offsets(log) == list(range(6))


def test_a_batch_as_large_as_a_segment_fits_also_in_a_new_term(disk: Disk) -> None:
    size = len(batch(b"v" * 100)[0])
    log = Log.open(disk, FOLDER, config(segment_bytes=size))
    for number in range(6):
        append(log, b"v" * 100, term=1 + number // 2)
    assert log.segment_count == 6
    assert offsets(log) == list(range(6))


def test_a_term_begins_in_the_segment_of_its_first_batch(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(segment_bytes=500))
    for term in range(1, 12):
        append(log, b"v" * 110, term=term)
    assert log.segment_count > 3
    for segment in log.files.segments.segments:
        assert next(iter(segment.headers(0, segment.size)))[1].is_zero_width


def test_a_segment_rolls_by_the_time_of_records_and_not_by_the_clock(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(segment_ms=1000))
    append(log, b"a", timestamp=NOW_MS)
    append(log, b"b", timestamp=NOW_MS + 1000, now_ms=NOW_MS + 10**9)
    assert log.segment_count == 1
    append(log, b"c", timestamp=NOW_MS + 1001)
    assert log.segment_count == 2
    append(log, b"late", timestamp=NOW_MS - 10**6)
    assert log.segment_count == 2


def test_the_jitter_of_rolling_is_the_same_on_every_replica() -> None:
    from penstock.log import MemoryDisk

    def bases(folder: str) -> list[int]:
        log = Log.open(MemoryDisk(), folder, config(segment_ms=10_000, segment_jitter_ms=5_000))
        for number in range(60):
            append(log, b"v", timestamp=NOW_MS + number * 500)
        return log.files.segments.bases

    assert bases("node1/orders-0") == bases("elsewhere/orders-0")
    assert bases("node1/orders-0") != bases("node1/orders-1")


def test_a_segment_rolls_when_its_index_is_full(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(index_interval_bytes=0, segment_index_bytes=80))
    for _ in range(40):
        append(log, b"v")
    assert log.segment_count > 2
    assert all(segment.load_index().size_bytes() <= 96 for segment in log.files.segments.segments)
    assert offsets(log) == list(range(40))


def test_log_append_time_is_stamped_and_returned(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(message_timestamp_log_append=True))
    assert append(log, b"v", b"w", timestamp=5, now_ms=NOW_MS).timestamp_ms == NOW_MS
    assert [record.timestamp for record in records(log)] == [NOW_MS, NOW_MS]


def test_a_new_configuration_applies_from_the_next_batch_on(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    for _ in range(5):
        append(log, b"v" * 100)
    log.reconfigure(config(segment_bytes=400))
    append(log, b"v" * 100)
    append(log, b"v" * 100)
    append(log, b"v" * 100)
    assert log.segment_count == 3


def test_a_long_log_keeps_few_files_open(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(segment_bytes=300))
    for _ in range(40):
        append(log, b"v" * 100)
    flush(log)
    chores = log.maintenance.next_task()
    if chores is not None:
        chores()
    log.maintenance.next_task()
    assert offsets(log) == list(range(40))
    open_files = [segment for segment in log.files.segments.segments if segment._file is not None]
    assert len(open_files) <= 5


def test_a_folder_with_the_longest_name_is_deleted_and_made_again(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    names = [f"topics/{'t' * 244}{tail}-0" for tail in ("", "aaaaa", "bbbbb")]
    names.append(f"topics/{'t' * 249}-10000")
    removals = []
    for name in names * 2:
        log = Log.open(disk, name, config())
        assert append(log, b"new").base_offset == 0
        removals.append(log.destroy())
    aside = disk.list_dir("topics")
    assert len(aside) == len(removals)
    assert all(name.endswith(".deleted") and len(name) <= 255 for name in aside)
    for remove in removals:
        remove()
    assert disk.list_dir("topics") == []


def test_destroying_frees_the_name_at_once(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"old")
    remove = log.destroy()
    log = Log.open(disk, FOLDER, config())
    assert append(log, b"new").base_offset == 0
    remove()
    assert [record.value for record in records(log)] == [b"new"]
    assert disk.list_dir("topics") == ["orders-0"]
