"""All errors of the operating system reach the log as StorageError: raw errors would kill its threads."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.log.os_disk import OsDisk

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


def test_what_the_system_has_forgotten_is_read_from_the_disk(tmp_path: Path) -> None:
    file = OsDisk(tmp_path).open("f", create=True)
    content = os.urandom(3_000_000)
    file.append(content)
    assert file.is_cached(0, len(content))
    file.flush()
    file.forget_cached()
    if file.is_cached(0, len(content)):
        pytest.skip("this file system has its files in memory only, or cannot tell")
    assert file.read_at(0, len(content)) == content
    file.close()
    file.forget_cached()


def test_a_missing_disk_is_a_storage_error(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "gone")
    for call in (disk.sync_all, disk.free_bytes):
        with pytest.raises(StorageError):
            call()
