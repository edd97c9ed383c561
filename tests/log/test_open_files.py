"""The open files of logs: bounded on each disk, and never closed with bytes whose loss would go unnoticed."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.config import TopicConfig
from penstock.errors import CorruptLog, StorageError
from penstock.log import Log
from penstock.log.open_files import OpenFiles
from penstock.log.os_disk import OsDisk
from penstock.log.segment import Segment
from penstock.types import Offset
from tests.log.tools import append, config, flush

END = Offset(2**62)
LARGE = config()
SMALL = config(segment_bytes=200, index_interval_bytes=64)


def open_descriptors(folder: Path) -> list[str]:
    """The segments below the folder that this process has open."""
    targets: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return [target for target in targets if target.startswith(str(folder)) and target.endswith(".log")]


def logs_on(disk: OsDisk, count: int, settings: TopicConfig = LARGE) -> list[Log]:
    disk.make_dir("topics")
    return [Log.open(disk, f"topics/t-{number}", settings) for number in range(count)]


def test_logs_share_a_bounded_number_of_open_files(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, most_open=5)
    logs = logs_on(disk, 20)
    for _round in range(3):
        for log in logs:
            append(log, b"value")
            assert len(open_descriptors(tmp_path)) <= 5
    for log in logs:
        assert log.read(log.start_offset, 10_000, limit=END).count(b"value") == 3
        assert len(open_descriptors(tmp_path)) <= 5
    for log in logs:
        log.close()
    disk.close()
    assert open_descriptors(tmp_path) == []


def test_the_segments_of_one_log_count_as_well(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, most_open=2)
    [log] = logs_on(disk, 1, SMALL)
    for _ in range(12):
        append(log, b"value")
        flush(log)
    assert log.segment_count > 4
    for offset in range(12):
        assert b"value" in log.read(Offset(offset), 10, limit=END)
        assert len(disk.open_files) <= 2
    log.close()


def test_a_file_that_was_used_again_stays_open_before_others(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, most_open=3)
    logs = logs_on(disk, 5)
    for log in logs[:4]:
        append(log, b"value")  # the last one looks at all others, and takes the place of the first
        flush(log)
    append(logs[1], b"value")
    flush(logs[1])
    append(logs[4], b"value")
    opened = {Path(path).parent.name for path in open_descriptors(tmp_path)}
    assert opened == {"t-1", "t-3", "t-4"}


class Counted(OsDisk):
    """Lists the files that were flushed, and fails the flush of some."""

    def __init__(self, root: Path, most_open: int) -> None:
        super().__init__(root, most_open=most_open)
        self.flushed: list[str] = []
        self.broken = ""


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    disk = Counted(tmp_path, 1)

    def flush_file(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if disk.broken and disk.broken in path:
            raise OSError(5, "Input/output error")
        disk.flushed.append(Path(path).parent.name)

    monkeypatch.setattr("penstock.log.os_disk._datasync", flush_file)
    return disk


def test_a_flushed_file_is_closed_before_one_that_is_not(counted: Counted) -> None:
    counted.open_files = OpenFiles(2)
    first, second, third = logs_on(counted, 3)
    append(first, b"value")
    append(second, b"value")
    flush(second)
    append(third, b"value")
    assert counted.flushed == ["t-1"]


def test_bytes_that_are_not_flushed_are_flushed_before_their_file_is_closed(counted: Counted) -> None:
    first, second = logs_on(counted, 2)
    append(first, b"value")
    append(second, b"value")
    assert counted.flushed == ["t-0"]
    flush(first)  # its file is closed, and nothing was written since: there is nothing left to do
    assert counted.flushed == ["t-0"]
    assert first.flushed_offset == 1
    append(first, b"value")
    flush(first)
    assert counted.flushed == ["t-0", "t-1", "t-0"]


def test_a_flushed_file_is_closed_without_another_flush(counted: Counted) -> None:
    first, second = logs_on(counted, 2)
    append(first, b"value")
    flush(first)
    append(second, b"value")
    assert counted.flushed == ["t-0"]


def test_a_failed_flush_before_closing_is_final(counted: Counted) -> None:
    first, second = logs_on(counted, 2)
    append(first, b"value")
    counted.broken = "t-0"
    append(second, b"value")  # the other log is not affected
    counted.broken = ""  # as on Linux: a second flush would succeed, and the bytes would be lost
    with pytest.raises(StorageError, match="could not be flushed"):
        first.flushes.begin()
    with pytest.raises(StorageError, match="takes no writes"):
        append(first, b"value")
    assert first.flushed_offset == 0
    flush(second)
    assert second.flushed_offset == 1


def test_a_file_that_is_being_flushed_is_not_closed(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, most_open=1)
    first, second, third = logs_on(disk, 3)
    append(first, b"value")
    ticket = first.flushes.begin()
    assert ticket is not None
    append(second, b"value")
    append(third, b"value")
    assert any("t-0" in path for path in open_descriptors(tmp_path))
    ticket.run()
    first.flushes.finish(ticket)
    assert first.flushed_offset == 1
    assert len(disk.open_files) == 1


def test_a_sealed_segment_that_is_not_flushed_stays_open(tmp_path: Path) -> None:
    [log] = logs_on(OsDisk(tmp_path), 1, SMALL)
    while log.segment_count < 8:
        append(log, b"value")
    assert len(open_descriptors(tmp_path)) == 8
    flush(log)
    log.files.segments.close_unused()
    assert len(open_descriptors(tmp_path)) == 5  # the active one, and those that were read last
    log.close()


def test_too_many_open_files_close_files_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk(tmp_path)
    logs = logs_on(disk, 5)
    for log in logs:
        append(log, b"value")
        flush(log)
    opened, allowed = os.open, 3

    def scarce_open(path: str, flags: int, mode: int = 0o777) -> int:
        if len(open_descriptors(tmp_path)) >= allowed:
            raise OSError(24, "Too many open files")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", scarce_open)
    for log in logs:
        append(log, b"value")
        flush(log)
        assert log.read(log.start_offset, 10_000, limit=END).count(b"value") == 2


def test_a_log_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    [log] = logs_on(disk, 1, SMALL)
    while log.segment_count < 4:
        append(log, b"value")
    log.close()
    path = tmp_path / log.files.segments.segments[1].path
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    for name in (tmp_path / "topics/t-0").iterdir():
        if name.suffix in (".index", ".timeindex", ".snapshot"):
            name.unlink()
    with pytest.raises(CorruptLog):
        Log.open(disk, "topics/t-0", SMALL)
    disk.close()
    assert open_descriptors(tmp_path) == []


def test_a_segment_of_no_log_is_left_alone(tmp_path: Path) -> None:
    """Compaction writes one in a thread."""
    disk = OsDisk(tmp_path, most_open=1)
    own = Segment(disk, ".", 0, 64)
    own.create()
    for log in logs_on(disk, 3):
        append(log, b"value")
    own.file.append(b"still open")
    own.close()
