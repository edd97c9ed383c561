"""The contract of every disk, and of the real one."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock.errors import DataFolderInUse, DiskFull, StorageError
from penstock.log import Disk, MemoryDisk
from penstock.log.os_disk import OsDisk


def test_a_file_grows_at_its_end_and_is_read_anywhere(disk: Disk) -> None:
    file = disk.open("topics/f", create=True)
    file.append(b"hello ")
    file.append([b"wor", bytearray(b"ld"), memoryview(b"!")])
    assert file.size == disk.size("topics/f") == 12
    assert file.read_at(0, 100) == b"hello world!"
    assert file.read_at(3, 5) == b"lo wo"
    assert file.read_at(12, 5) == file.read_at(99, 5) == b""
    file.truncate(5)
    file.append(b"?")
    assert disk.read_file("topics/f") == b"hello?"
    file.flush()
    file.close()
    file.close()


def test_large_and_small_appends_mix(disk: Disk) -> None:
    file = disk.open("topics/f", create=True)
    expected = bytearray()
    for number in range(40):
        part = bytes([number]) * (number % 7 * 30_000 + 1)
        file.append(part)
        expected += part
    for start in range(0, len(expected), 99_991):
        assert file.read_at(start, 150_000) == expected[start : start + 150_000]
    file.truncate(100_001)
    assert file.read_at(0, 10**9) == expected[:100_001]


def test_slots_are_overwritten_in_place(disk: Disk) -> None:
    file = disk.open("topics/f", create=True)
    file.write_at(4, b"slot")
    file.write_at(0, b"abcd")
    file.write_at(4, b"SLOT")
    assert disk.read_file("topics/f") == b"abcdSLOT"
    assert file.size == 8


def test_files_are_listed_renamed_and_removed(disk: Disk) -> None:
    disk.make_dir("a/b/c")
    disk.make_dir("a/b/c")
    disk.open("a/b/c/two", create=True).close()
    disk.write_file_atomic("a/b/c/one", b"1")
    disk.write_file_atomic("a/b/c/one", b"11", durable=False)
    assert disk.list_dir("a/b/c") == ["one", "two"]
    assert disk.list_dir("a") == ["b"]
    assert disk.list_dir("nowhere") == []
    assert disk.exists("a/b")
    assert disk.exists("a/b/c/one")
    assert not disk.exists("a/b/c/three")
    disk.rename("a/b/c/one", "a/b/c/two")
    assert disk.list_dir("a/b/c") == ["two"]
    assert disk.read_file("a/b/c/two") == b"11"
    disk.sync_dir("a/b/c")
    disk.rename("a/b", "a/B")
    assert disk.read_file("a/B/c/two") == b"11"
    disk.remove("a/B/c/two")
    disk.remove("a/B/c/two")
    assert disk.list_dir("a/B/c") == []
    disk.remove_tree("a")
    disk.remove_tree("a")
    assert not disk.exists("a")
    disk.sync_all()
    assert disk.free_bytes() > 0


def test_missing_files_are_not_found(disk: Disk) -> None:
    for action in (
        lambda: disk.open("topics/none"),
        lambda: disk.open("none/none", create=True),
        lambda: disk.read_file("topics/none"),
        lambda: disk.size("topics/none"),
        lambda: disk.rename("topics/none", "topics/other"),
    ):
        with pytest.raises(FileNotFoundError):
            action()


def test_an_open_file_can_be_read_after_its_removal(disk: Disk) -> None:
    file = disk.open("topics/f", create=True)
    file.append(b"still here")
    disk.remove("topics/f")
    assert file.read_at(0, 5) == b"still"
    file.flush()
    file.close()


def test_a_lock_has_one_holder(disk: Disk) -> None:
    lock = disk.lock("lock")
    with pytest.raises(DataFolderInUse):
        disk.lock("lock")
    lock.release()
    lock.release()
    disk.lock("lock").release()


def test_truncation_and_removal_release_memory() -> None:
    disk = MemoryDisk()
    disk.make_dir("d")
    file = disk.open("d/f", create=True)
    for _ in range(100):
        file.append(b"x" * 100_000)
    file.truncate(1)
    assert sum(map(len, file._chunks)) == 1
    disk.remove("d/f")
    assert disk._folders["d"].files == {}


# --- the real disk


class Failing:
    """Replaces a function of `os` so that it fails, or writes less, from some call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.real = getattr(os, name)
        self.outcomes: list[int | OSError] = []
        monkeypatch.setattr(os, name, self)

    def __call__(self, fd: int, data: bytes, position: int) -> int:
        outcome = self.outcomes.pop(0) if self.outcomes else len(data)
        if isinstance(outcome, OSError):
            raise outcome
        return int(self.real(fd, memoryview(data)[:outcome], position))


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = Failing(monkeypatch, "pwrite")
    file = OsDisk(tmp_path).open("f", create=True)
    pwrite.outcomes = [3, 2]
    file.append(b"hello world")
    assert file.read_at(0, 99) == b"hello world"


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageError)]
)
def test_a_write_that_fails_half_way_is_cut_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StorageError]
) -> None:
    pwrite = Failing(monkeypatch, "pwrite")
    file = OsDisk(tmp_path).open("f", create=True)
    file.append(b"whole")
    pwrite.outcomes = [3, OSError(code, "no")]
    with pytest.raises(kind) as caught:
        file.append(b"torn apart")
    assert type(caught.value) is kind
    assert file.size == os.stat(tmp_path / "f").st_size == 5
    file.append(b" again")
    assert file.read_at(0, 99) == b"whole again"


def test_a_failed_flush_is_never_reported_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = OsDisk(tmp_path).open("f", create=True)
    monkeypatch.setattr("penstock.log.os_disk._datasync", fail)
    with pytest.raises(StorageError) as caught:
        file.flush()
    assert not isinstance(caught.value, DiskFull)


def test_after_a_failed_flush_the_file_never_counts_as_flushed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells a descriptor of lost pages once."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk = OsDisk(tmp_path)
    file = disk.open("f", create=True)
    with monkeypatch.context() as failing:
        failing.setattr("penstock.log.os_disk._datasync", fail)
        with pytest.raises(StorageError):
            file.flush()
    with pytest.raises(StorageError, match="Input/output error"):
        file.flush()
    file.close()
    disk.open("f").flush()  # a restart decides by what is on the disk


def test_a_flush_beside_one_that_fails_does_not_count_as_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has told the first flush of lost pages, and tells the second one nothing."""
    file = OsDisk(tmp_path).open("f", create=True)
    told, both = Event(), Event()

    def lose(_: int) -> None:
        if not told.is_set():
            told.set()
            both.wait(0.2)  # without a lock the second flush comes meanwhile, and ends this wait
            raise OSError(errno.EIO, "Input/output error")
        both.set()

    monkeypatch.setattr("penstock.log.os_disk._datasync", lose)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(file.flush)
        assert told.wait(60)
        with pytest.raises(StorageError, match="Input/output error"):
            file.flush()
        with pytest.raises(StorageError, match="Input/output error"):
            first.result(60)
    file.close()


def test_a_failed_atomic_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(tmp_path)
    disk.write_file_atomic("f", b"old")
    Failing(monkeypatch, "pwrite").outcomes = [OSError(errno.ENOSPC, "no")]
    with pytest.raises(DiskFull):
        disk.write_file_atomic("f", b"new")
    assert disk.read_file("f") == b"old"
    assert disk.list_dir("") == ["f"]


def test_an_append_is_one_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.log import Log
    from tests.log.tools import append, config

    log = Log.open(OsDisk(tmp_path), "orders-0", config())
    append(log, b"first")
    calls: list[str] = []
    own = threading.get_ident()

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """The brokers that other tests share call the system, too, in threads of their own."""

        def call(*arguments: Any) -> Any:
            if threading.get_ident() == own:
                calls.append(name)
            return real(*arguments)

        return call

    for name in ("pwrite", "pwritev", "pread", "lseek", "ftruncate", "fstat", "open"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    for _ in range(10):
        append(log, b"v" * 5000)
    assert calls == ["pwrite"] * 10
    calls.clear()
    for offset in range(1, 11):
        log.read(offset, 5000, limit=log.end_offset)  # type: ignore[arg-type]
    assert calls.count("pread") <= 20
    calls.clear()
    log.read(1, 10**6, limit=log.end_offset)  # type: ignore[arg-type]
    assert calls == ["pread"]


def test_a_new_data_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    OsDisk(tmp_path / "data").make_dir("meta")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
