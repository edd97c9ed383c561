"""Reads that compare checksums: wrong bytes of a disk are not returned, and nothing is checked twice without need."""

from pathlib import Path

import pytest

from penstock.errors import CorruptLog
from penstock.log import Disk, Log, checked_read, segments
from penstock.log.os_disk import OsDisk
from penstock.sim import SimDisk
from penstock.types import Offset
from tests.log.tools import FOLDER, append, batch, config, flush

END = Offset(2**62)


def filled(disk: Disk, count: int = 5) -> Log:
    """A log that was written by another process."""
    log = Log.open(disk, FOLDER, config())
    for number in range(count):
        append(log, b"value %d" % number)
    log.close()
    return Log.open(disk, FOLDER, config())


def read(log: Log, offset: int = 0, max_bytes: int = 10_000) -> bytes:
    return log.read(Offset(offset), max_bytes, limit=END, is_checked=True)


def rot(disk: SimDisk, value: bytes) -> None:
    path = f"{FOLDER}/00000000000000000000.log"
    disk.flip_bit(path, disk.read_file(path).index(value))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that were checked."""
    sizes: list[int] = []

    def counted(data: bytes) -> int:
        sizes.append(len(data))
        return checked_read.checked_length(data)

    monkeypatch.setattr(segments, "checked_length", counted)
    return sizes


def test_the_batches_before_a_wrong_one_are_returned_and_then_the_error(sim: SimDisk) -> None:
    log = filled(sim)
    rot(sim, b"value 3")
    whole = read(log)
    assert [b"value %d" % number in whole for number in range(5)] == [True, True, True, False, False]
    with pytest.raises(CorruptLog, match="the checksum of a batch is wrong") as wrong:
        read(log, 3)
    assert wrong.value.position == control_bytes(log) + len(whole)
    assert b"value 4" in read(log, 4)


def control_bytes(log: Log) -> int:
    """The first entry of the log begins its term, and no reader sees it."""
    return log.files.segments.segments[0].locate(0)


def test_a_read_that_does_not_ask_for_it_is_not_checked(sim: SimDisk) -> None:
    log = filled(sim)
    rot(sim, b"value 3")
    assert b"value 4" in log.read(Offset(0), 10_000, limit=END)


def test_bytes_that_were_written_since_the_file_was_opened_are_not_checked(
    sim: SimDisk, checks: list[int]
) -> None:
    log = Log.open(sim, FOLDER, config())
    for _ in range(3):
        append(log, b"new")
    assert read(log).count(b"new") == 3
    assert checks == []


def test_bytes_are_checked_once_by_all_readers_that_follow_each_other(
    sim: SimDisk, checks: list[int]
) -> None:
    log = filled(sim)
    append(log, b"new")
    size = len(batch(b"value 0")[0])
    assert len(read(log, 0, 2 * size)) == 2 * size
    assert len(read(log, 2, 2 * size)) == 2 * size
    assert checks == [2 * size, 2 * size]
    for offset in (0, 1, 2):
        read(log, offset, 2 * size)
    assert len(checks) == 2
    assert b"new" in read(log, 4)
    assert b"new" in read(log, 5)
    assert len(checks) == 3  # what was written since needs none


def test_a_reader_far_from_the_others_has_its_bytes_checked(sim: SimDisk, checks: list[int]) -> None:
    log = filled(sim, 20)
    size = len(batch(b"value 0")[0])
    for offset in (0, 10, 10, 11):
        assert read(log, offset, size)
    assert len(checks) == 4


def test_bytes_are_checked_again_when_the_file_was_closed(tmp_path: Path, checks: list[int]) -> None:
    disk = OsDisk(tmp_path, most_open=1)
    disk.make_dir("topics")
    log = filled(disk)
    other = Log.open(disk, "topics/other-0", config())
    read(log)
    read(log)
    assert len(checks) == 1
    append(other, b"takes the place")
    flush(other)
    read(log)
    assert len(checks) == 2


def test_a_file_that_ends_too_early_is_an_error(sim: SimDisk) -> None:
    log = filled(sim)
    file = sim.open(f"{FOLDER}/00000000000000000000.log")
    file.truncate(file.size - 10)
    assert read(log).count(b"value") == 4
    with pytest.raises(CorruptLog):
        read(log, 4)


def test_one_read_checks_a_bounded_number_of_batches_and_the_next_one_goes_on() -> None:
    one = bytes(batch(b"v")[0])
    assert checked_read.checked_length(one * 50, 20) == 20 * len(one)
    assert checked_read.checked_length(
        one * (checked_read.BATCHES_MOST + 5)
    ) == checked_read.BATCHES_MOST * len(one)


@pytest.mark.parametrize("wrong", [(8, 0x80), (16, 1), (17, 1), (21, 1), (60, 4)])
def test_every_byte_that_the_checksum_covers_counts_and_so_do_length_and_magic(
    wrong: tuple[int, int],
) -> None:
    position, bits = wrong
    one = bytes(batch(b"v")[0])
    damaged = bytearray(one)
    damaged[position] ^= bits
    assert checked_read.checked_length(one + bytes(damaged) + one) == len(one)
