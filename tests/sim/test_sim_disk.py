"""The simulated disk loses exactly what a real disk may lose."""

import pytest

from penstock.errors import DiskFull, StorageError
from penstock.log.disk import SECTOR_SIZE
from penstock.sim import PowerCut, SimDisk


def written(flushed: bytes, unflushed: bytes = b"") -> SimDisk:
    disk = SimDisk(1, writeback_chance=0.0)
    file = disk.open("f", create=True)
    file.append(flushed)
    file.flush()
    disk.sync_dir("")
    if unflushed:
        file.append(unflushed)
    return disk


def outcomes(disk: SimDisk, path: str = "f", seeds: int = 200) -> set[bytes | None]:
    after = [disk.after_power_cut(seed) for seed in range(seeds)]
    return {survivor.read_file(path) if survivor.exists(path) else None for survivor in after}


def test_flushed_bytes_survive_and_unflushed_bytes_may_be_lost() -> None:
    disk = written(b"a" * 1000, b"b" * 1000)
    seen = outcomes(disk)
    assert None not in seen
    assert all(content is not None and content.startswith(b"a" * 1000) for content in seen)
    assert b"a" * 1000 in seen
    assert b"a" * 1000 + b"b" * 1000 in seen


def test_sectors_survive_one_by_one_and_holes_are_zeros() -> None:
    sectors = [bytes([65 + number]) * SECTOR_SIZE for number in range(4)]
    seen = outcomes(written(b"", b"".join(sectors)))
    hole = sectors[0] + bytes(SECTOR_SIZE) + sectors[2] + sectors[3]
    assert hole in seen
    assert bytes(4 * SECTOR_SIZE) in seen
    assert b"" in seen
    for content in seen:
        assert content is not None
        for number in range(len(content) // SECTOR_SIZE):
            sector = content[number * SECTOR_SIZE : (number + 1) * SECTOR_SIZE]
            assert sector in (sectors[number], bytes(SECTOR_SIZE))


def test_a_truncation_may_be_forgotten_until_it_is_flushed() -> None:
    disk = written(b"a" * 1500)
    file = disk.open("f")
    file.truncate(100)
    assert outcomes(disk) == {b"a" * 100, b"a" * 1500}
    file.flush()
    assert outcomes(disk) == {b"a" * 100}


def test_names_may_be_forgotten_until_the_folder_is_synced() -> None:
    disk = written(b"old")
    file = disk.open("new", create=True)
    file.append(b"new")
    file.flush()
    assert outcomes(disk, "new") == {None, b"new"}
    disk.rename("new", "f")
    assert outcomes(disk, "f") == {b"old", b"new"}
    disk.sync_dir("")
    assert outcomes(disk, "f") == {b"new"}
    disk.remove("f")
    assert outcomes(disk, "f") == {None, b"new"}


def test_a_rename_never_loses_both_names() -> None:
    disk = written(b"x")
    disk.rename("f", "g")
    for seed in range(50):
        assert disk.after_power_cut(seed).list_dir("") in (["f"], ["g"])


def test_a_folder_that_was_not_synced_may_be_lost_with_its_files() -> None:
    disk = SimDisk(1)
    disk.make_dir("a")
    file = disk.open("a/f", create=True)
    file.append(b"x")
    file.flush()
    disk.sync_dir("a")
    assert {disk.after_power_cut(seed).exists("a/f") for seed in range(20)} == {True, False}
    disk.sync_all()
    assert {disk.after_power_cut(seed).exists("a/f") for seed in range(20)} == {True}


def test_the_system_may_have_written_an_earlier_version_of_a_sector() -> None:
    disk = SimDisk(1, writeback_chance=1.0)
    file = disk.open("f", create=True)
    disk.sync_dir("")
    for _ in range(4):
        file.append(b"a" * 50)
    disk._writeback_chance = 0.0
    file.append(b"a" * 100)
    sizes = {len(content.rstrip(b"\0")) for content in outcomes(disk) if content is not None}
    assert 300 in sizes
    assert sizes & {50, 100, 150, 200}
    assert all(size % 50 == 0 for size in sizes)


def test_the_same_seed_gives_the_same_outcome() -> None:
    disk = written(b"a" * 700, b"b" * 5000)
    assert disk.after_power_cut(7).read_file("f") == disk.after_power_cut(7).read_file("f")


def test_a_failed_flush_has_lost_the_pages_and_a_second_one_does_not_bring_them_back() -> None:
    disk = written(b"a" * 512, b"b" * 512)
    file = disk.open("f")
    disk.fail_flush("f")
    with pytest.raises(StorageError):
        file.flush()
    with pytest.raises(StorageError):
        file.flush()
    disk.open("f").flush()
    assert file.read_at(512, 1) == b"b"
    assert outcomes(disk) == {b"a" * 512 + bytes(512)}


def test_lost_bytes_are_seen_until_the_system_forgets_them_and_others_stay() -> None:
    disk = written(b"a" * 512, b"b" * 1000)
    disk.fail_flush("f")
    file = disk.open("f")
    with pytest.raises(StorageError):
        file.flush()
    file.append(b"c" * 1000)
    disk.process_died()
    assert disk.read_file("f") == b"a" * 512 + b"b" * 1000 + b"c" * 1000
    disk.open("f").forget_cached()
    # The sector at 1024 has bytes of both: it is still to be written.
    assert disk.read_file("f") == b"a" * 512 + bytes(512) + b"b" * 488 + b"c" * 1000


def test_a_write_without_space_is_undone() -> None:
    disk = written(b"a" * 100)
    disk.capacity = 150
    file = disk.open("f")
    with pytest.raises(DiskFull):
        file.append(b"b" * 51)
    assert disk.read_file("f") == b"a" * 100
    file.append(b"b" * 50)
    with pytest.raises(DiskFull):
        disk.open("g", create=True)
    disk.capacity = None
    disk.open("g", create=True)


def test_damaged_bytes_are_visible_to_readers_and_survive_a_crash() -> None:
    disk = written(b"abc")
    disk.flip_bit("f", 1, bit=0)
    assert disk.read_file("f") == b"acc"
    assert outcomes(disk) == {b"acc"}


def test_every_operation_is_counted_and_can_be_the_last() -> None:
    disk = SimDisk(1)
    seen: list[str] = []

    def cut(number: int, kind: str, path: str) -> None:
        seen.append(f"{kind} {path}")
        if number == 5:
            raise PowerCut

    disk.on_operation = cut
    disk.make_dir("d")
    file = disk.open("d/f", create=True)
    file.append(b"1")
    file.flush()
    with pytest.raises(PowerCut):
        file.append(b"2")
    assert seen == ["make_dir d", "create d/f", "write d/f", "flush d/f", "write d/f"]
    assert disk.read_file("d/f") == b"1"
