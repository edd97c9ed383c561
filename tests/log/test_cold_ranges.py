"""Which reads would wait for the disk, and what loads their bytes."""

import os
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.log.cold_range import READ_LEAST_BYTES, RECENT_BYTES, find_cold
from penstock.log.os_disk import READ_AHEAD_BYTES, READ_IF_CACHED, OsDisk, OsFile
from penstock.log.segment import Segment

PAGE = 4096
SIZE = 8 * READ_AHEAD_BYTES


def make_file(folder: Path, size: int = SIZE) -> OsFile:
    path = folder / "00000000000000000000.log"
    path.write_bytes(os.urandom(size))
    return OsFile(str(path), os.open(path, os.O_RDWR))


def evict(path: str) -> bool:
    """Asks the system to forget a file's bytes. Whether it did."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, READ_IF_CACHED)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


@pytest.fixture
def cold_file(tmp_path: Path) -> OsFile:
    file = make_file(tmp_path)
    if not READ_IF_CACHED or not evict(file.path):
        pytest.skip("this system does not forget the bytes of a file when it is asked to, or does not tell")
    return file


def test_bytes_that_the_system_has_forgotten_are_cold_until_they_are_loaded(cold_file: OsFile) -> None:
    assert not cold_file.is_cached(0, SIZE)
    cold_file.load(0, SIZE)
    assert cold_file.is_cached(0, SIZE)


def test_one_cold_piece_makes_a_range_cold(cold_file: OsFile) -> None:
    cold_file.load(0, PAGE)
    assert not cold_file.is_cached(0, SIZE)


def test_a_load_ends_where_the_file_ends(tmp_path: Path) -> None:
    file = make_file(tmp_path, PAGE)
    file.load(0, SIZE)
    assert file.is_cached(0, PAGE)


def test_a_load_of_a_closed_file_is_a_storage_error(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    file.close()
    with pytest.raises(StorageError, match="read "):
        file.load(0, SIZE)


class CountingFile(OsFile):
    """Says that its bytes are cold, and records which were asked for."""

    asked: list[tuple[int, int]]

    def is_cached(self, position: int, count: int) -> bool:
        self.asked = [*getattr(self, "asked", []), (position, count)]
        return False


def make_segment(folder: Path, size: int, written_from: int) -> tuple[Segment, CountingFile]:
    segment = Segment(OsDisk(str(folder)), "", 0, PAGE)
    path = folder / "log"
    path.touch()
    file = CountingFile(str(path), os.open(path, os.O_RDWR))
    segment._file, segment.size, segment.written_from = file, size, written_from
    return segment, file


def test_a_reader_at_the_end_of_the_log_asks_nothing(tmp_path: Path) -> None:
    segment, file = make_segment(tmp_path, 2 * RECENT_BYTES, 0)
    assert find_cold(segment, RECENT_BYTES, PAGE) is None
    assert not hasattr(file, "asked")


def test_bytes_that_an_earlier_process_has_written_may_be_cold_at_the_end_too(tmp_path: Path) -> None:
    segment, _ = make_segment(tmp_path, PAGE, PAGE)
    assert find_cold(segment, 0, PAGE) is not None


def test_a_range_covers_what_a_read_returns_and_ends_with_the_segment(tmp_path: Path) -> None:
    segment, file = make_segment(tmp_path, 2 * RECENT_BYTES, 2 * RECENT_BYTES)
    for position, most in ((0, 1), (0, RECENT_BYTES), (2 * RECENT_BYTES - PAGE, RECENT_BYTES)):
        assert find_cold(segment, position, most) is not None
    expected = [(0, READ_LEAST_BYTES), (0, RECENT_BYTES), (2 * RECENT_BYTES - PAGE, PAGE)]
    assert file.asked == expected


def test_the_file_of_a_held_range_stays_open_until_it_is_released(tmp_path: Path) -> None:
    segment, file = make_segment(tmp_path, PAGE, PAGE)
    cold = find_cold(segment, 0, PAGE)
    assert cold is not None
    cold.hold()
    segment.close()
    cold.load()  # the descriptor is still its own
    cold.release()
    with pytest.raises(StorageError):
        file.load(0, PAGE)


def test_a_range_of_a_file_that_was_closed_before_is_left_alone(tmp_path: Path) -> None:
    segment, _ = make_segment(tmp_path, PAGE, PAGE)
    cold = find_cold(segment, 0, PAGE)
    assert cold is not None
    segment.close()
    cold.hold()
    cold.load()
    cold.release()
