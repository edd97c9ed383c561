"""All errors of the operating system reach the log as StorageError, or as CorruptLog if the disk has lost bytes: raw
errors would kill its threads."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import CorruptLog, StorageError
from penstock.log.os_disk import OsDisk
from tests.log.tools import pread_with_a_bad_sector

CALLS: dict[str, Callable[[OsDisk], object]] = {
    "list_dir": lambda disk: disk.list_dir("file"),
    "size": lambda disk: disk.size("file/below"),
    "read_file": lambda disk: disk.read_file("folder"),
    "open": lambda disk: disk.open("folder"),
    "make_dir": lambda disk: disk.make_dir("file/below"),
    "lock": lambda disk: disk.lock("folder"),
    "rename": lambda disk: disk.rename("file", "folder"),
    "write_file_atomic": lambda disk: disk.write_file_atomic("file/below", b"x"),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_of_the_operating_system_are_storage_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError):
        CALLS[name](OsDisk(tmp_path))


def forgets(path: Path, content: bytes) -> bool:
    """Whether this file system can drop what it has in memory, and can tell."""
    path.write_bytes(content)
    file = OsDisk(path.parent).open(path.name)
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return not file.is_cached(0, len(content))


def test_what_the_system_has_forgotten_is_read_from_the_disk(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    if not forgets(tmp_path / "other", content):
        pytest.skip("this file system has its files in memory only, or cannot tell")
    file = OsDisk(tmp_path).open("f", create=True)
    file.append(content)
    assert file.is_cached(0, len(content))
    file.flush()
    file.forget_cached()
    assert not file.is_cached(0, len(content))
    assert file.read_at(0, len(content)) == content
    file.close()
    file.forget_cached()


@pytest.mark.parametrize("count", [3000, 9000])
def test_a_bad_sector_within_a_read_is_an_error_and_not_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    file = OsDisk(tmp_path).open("f", create=True)
    file.append(bytes(4096))
    monkeypatch.setattr(os, "pread", pread_with_a_bad_sector(2048))
    assert file.read_at(0, 2048) == bytes(2048)
    with pytest.raises(CorruptLog, match="cannot be read: Input/output error"):
        file.read_at(0, count)


def test_a_read_that_the_system_ends_early_goes_on_up_to_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(4096)
    file = OsDisk(tmp_path).open("f", create=True)
    file.append(content)
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, position: read(fd, min(count, 1000), position))
    assert file.read_at(100, 2500) == content[100:2600]
    assert file.read_at(100, 9000) == content[100:]
    os.truncate(tmp_path / "f", 3000)
    assert file.read_at(100, 9000) == content[100:3000]


def test_a_missing_disk_is_a_storage_error(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "gone")
    for call in (disk.sync_all, disk.free_bytes):
        with pytest.raises(StorageError):
            call()
