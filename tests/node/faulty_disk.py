"""A real disk that fails on request, or is slow."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.batch import Buffer
from penstock.errors import DiskFull, StorageError
from penstock.log import File
from penstock.log.os_disk import OsDisk


class FaultyDisk(OsDisk):
    """`full`: no write finds space, whole files neither. `broken_write`: an append with these bytes fails.
    `broken_flush`: flushing a file whose path contains it fails. `surprise`: syncing the whole disk fails with an
    unexpected exception. `flush_seconds`: every flush takes this long. `may_flush`: while it is not set, no flush
    ends."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.full = False
        self.broken_write = b""
        self.broken_flush: str | None = None
        self.surprise = False
        self.flush_seconds = 0.0
        self.may_flush = threading.Event()
        self.may_flush.set()

    def delay_flush(self) -> None:
        time.sleep(self.flush_seconds)
        self.may_flush.wait()

    def sync_all(self) -> None:
        if self.surprise:
            raise ZeroDivisionError("injected")
        self.delay_flush()
        super().sync_all()

    def write_file_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self.full:
            raise DiskFull(f"{path}: no space left (injected)")
        super().write_file_atomic(path, data, durable=durable)

    def open(self, path: str, *, create: bool = False) -> File:
        return FaultyFile(super().open(path, create=create), self, path)


class FaultyFile:
    """A file of a FaultyDisk."""

    def __init__(self, file: File, disk: FaultyDisk, path: str) -> None:
        self._file = file
        self._disk = disk
        self._path = path

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, data: Buffer | Sequence[Buffer]) -> None:
        self._check_space()
        broken = self._disk.broken_write
        if broken and broken in b"".join([data] if isinstance(data, Buffer) else data):
            raise StorageError(f"{self._path}: write failed (injected)")
        self._file.append(data)

    def write_at(self, position: int, data: Buffer) -> None:
        if position + len(data) > self._file.size:  # existing bytes can be overwritten on a full disk too
            self._check_space()
        self._file.write_at(position, data)

    def flush(self) -> None:
        if self._disk.broken_flush is not None and self._disk.broken_flush in self._path:
            raise StorageError(f"{self._path}: flush failed (injected)")
        self._disk.delay_flush()
        self._file.flush()

    def read_at(self, position: int, count: int) -> bytes:
        return self._file.read_at(position, count)

    def is_cached(self, position: int, count: int) -> bool:
        return self._file.is_cached(position, count)

    def load(self, position: int, count: int) -> None:
        self._file.load(position, count)

    def forget_cached(self) -> None:
        self._file.forget_cached()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()

    def _check_space(self) -> None:
        if self._disk.full:
            raise DiskFull(f"{self._path}: no space left (injected)")
