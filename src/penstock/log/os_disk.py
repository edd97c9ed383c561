"""The `Disk` of files in the operating system. One system call per append and per read."""

import ctypes
import errno
import fcntl
import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NoReturn, TypeVar

from penstock.batch import Buffer
from penstock.errors import CorruptLog, DataFolderInUse, DiskFull, StorageError, TooManyOpenFiles
from penstock.log.disk import replace_file
from penstock.log.open_files import UNBOUNDED, OpenFiles

T = TypeVar("T")

FILE_MODE = 0o644
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})

DAMAGED = frozenset({errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)})
"""A read fails for these when the disk has lost the bytes, or when the file system finds that they are wrong. macOS has
no EUCLEAN."""

READ_IF_CACHED: int = getattr(os, "RWF_NOWAIT", 0)
"""Linux: a read with this flag fails instead of waiting for the disk. 0: the system has no such read."""
READ_AHEAD_BYTES = 128 * 1024
"""Linux reads files in pieces of this size by default, so one byte of each tells whether all are there."""
LOAD_BYTES = 256 * 1024
"""The buffer of a load. The bytes go into the system's cache, and are not kept here."""

_FORGET: int | None = getattr(os, "POSIX_FADV_DONTNEED", None)
"""macOS has no such advice: there, bytes that a failed flush lost are seen as long as they are in memory."""

_datasync = getattr(os, "fdatasync", os.fsync)
"""fdatasync does not flush timestamps, but the size: enough to find the data again. macOS has only fsync."""


class OsFile:
    """One file descriptor, written only at its end and in fixed slots."""

    __slots__ = ("_fd", "_flushing", "_lost", "path", "size")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.size = os.fstat(fd).st_size
        self._fd = fd
        self._flushing = Lock()
        """A thread and the event loop may flush at the same time. The system tells one of them of lost bytes; without
        the lock, the other one could return before `_lost` is set."""
        self._lost: StorageError | None = None
        """The flush that failed."""

    def read_at(self, position: int, count: int) -> bytes:
        try:
            data = os.pread(self._fd, count, position)
            if len(data) < count and position + len(data) < self.size:
                data += self._read_rest(position + len(data), count - len(data))
            return data
        except OSError as problem:
            _raise_unread(problem, self.path, position)

    def is_cached(self, position: int, count: int) -> bool:
        if not READ_IF_CACHED:
            return True
        byte = bytearray(1)
        try:
            for at in (*range(position, position + count, READ_AHEAD_BYTES), position + count - 1):
                os.preadv(self._fd, [byte], at, READ_IF_CACHED)
        except BlockingIOError:
            return False
        except OSError:  # not this file system; or the read that follows will tell
            return True
        return True

    def load(self, position: int, count: int) -> None:
        buffer = memoryview(bytearray(min(count, LOAD_BYTES)))
        end = position + count
        try:
            while position < end:
                read = os.preadv(self._fd, [buffer[: end - position]], position)
                if not read:
                    return
                position += read
        except OSError as problem:
            _raise_unread(problem, self.path, position)

    def append(self, data: Buffer | Sequence[Buffer]) -> None:
        size = self.size
        try:
            if isinstance(data, (memoryview, bytearray, bytes)):
                expected = len(data)
                written = os.pwrite(self._fd, data, size)
            else:
                expected = sum(map(len, data))
                written = os.pwritev(self._fd, data, size)
            if written != expected:
                self._write_rest(data, size, written)
        except OSError as problem:
            self._cut_back(size)
            _raise(problem, "append to", self.path)
        self.size = size + expected

    def write_at(self, position: int, data: Buffer) -> None:
        try:
            if os.pwrite(self._fd, data, position) != len(data):
                raise OSError(errno.ENOSPC, "short write")
        except OSError as problem:
            _raise(problem, "write", self.path)
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as problem:
            _raise(problem, "truncate", self.path)
        self.size = size

    def flush(self) -> None:
        with self._flushing:
            if self._lost is not None:
                raise StorageError(str(self._lost))
            try:
                _datasync(self._fd)
            except OSError as problem:
                # Never DiskFull, whatever the reason: bytes that a failed flush lost cannot be written again.
                self._lost = StorageError(f"flush {self.path}: {problem.strerror}")
                raise self._lost from problem

    def forget_cached(self) -> None:
        # The whole file: the kernel keeps bytes in blocks of up to some megabytes, and forgets only blocks that lie
        # completely within the range. It is advice, and a file system that cannot follow it ignores it.
        if _FORGET is not None:
            with suppress(OSError):
                os.posix_fadvise(self._fd, 0, 0, _FORGET)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_rest(self, position: int, count: int) -> bytes:
        """The system ends a read before a bad sector without an error, and fails only the read that begins there. A
        caller that took the first bytes for the whole file would forget votes, or cut off a log."""
        parts: list[bytes] = []
        while part := os.pread(self._fd, count, position):
            parts.append(part)
            position, count = position + len(part), count - len(part)
        return b"".join(parts)

    def _write_rest(self, data: Buffer | Sequence[Buffer], start: int, written: int) -> None:
        """A nearly full disk, a quota or the 2 GiB limit of one call causes a short write."""
        whole = data if isinstance(data, (memoryview, bytearray, bytes)) else b"".join(data)
        rest = memoryview(whole)[written:]
        while rest:
            written = os.pwrite(self._fd, rest, start + len(whole) - len(rest))
            rest = rest[written:]

    def _cut_back(self, size: int) -> None:
        """Cuts off a partial write: half a batch would stay after the last whole one."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as problem:
            raise StorageError(f"cut {self.path} back to {size} bytes: {problem.strerror}") from problem


class OsLock:
    """An flock: the system releases it when the process ends, however it ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """A folder of the file system. Relative paths are relative to it."""

    volatile = False

    def __init__(self, root: str | os.PathLike[str] = ".", *, most_open: int = UNBOUNDED) -> None:
        """`most_open`: how many segments may have their file open, beside those that are being flushed."""
        self.root = os.path.abspath(root)
        self._has_root = False
        self.open_files = OpenFiles(most_open)
        self._root = RootDescriptor(self.root)
        self._spare_root = RootDescriptor(self.root)

    def path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def close(self) -> None:
        self._root.close()
        self._spare_root.close()

    def _with_descriptor(self, call: Callable[[], T]) -> T:
        """Calls, and calls again after closing the file of a log, as long as the process has too many open."""
        while True:
            try:
                return call()
            except OSError as problem:
                if problem.errno not in TOO_MANY_FILES or not self.open_files.close_one():
                    raise

    def open(self, path: str, *, create: bool = False) -> OsFile:
        full = self.path(path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return OsFile(full, self._with_descriptor(lambda: os.open(full, flags, FILE_MODE)))
        except FileNotFoundError:
            raise
        except OSError as problem:
            _raise(problem, "open", full)

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def size(self, path: str) -> int:
        try:
            return os.stat(self.path(path)).st_size
        except FileNotFoundError:
            raise
        except OSError as problem:
            _raise(problem, "stat", self.path(path))

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(self._with_descriptor(lambda: os.listdir(self.path(path))))
        except FileNotFoundError:
            return []
        except OSError as problem:
            _raise(problem, "list", self.path(path))

    def make_dir(self, path: str) -> None:
        try:
            if not self._has_root:
                # For this user alone: other users must not read records, or what is kept of passwords.
                os.makedirs(self.root, mode=0o700, exist_ok=True)
                self._has_root = True
            os.makedirs(self.path(path), exist_ok=True)
        except OSError as problem:
            _raise(problem, "make", self.path(path))

    def remove(self, path: str) -> None:
        try:
            os.unlink(self.path(path))
        except FileNotFoundError:
            pass
        except OSError as problem:
            _raise(problem, "remove", self.path(path))

    def remove_tree(self, path: str) -> None:
        try:
            import shutil  # with the first topic that is deleted

            shutil.rmtree(self.path(path))
        except FileNotFoundError:
            pass
        except OSError as problem:
            _raise(problem, "remove", self.path(path))

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(self.path(source), self.path(target))
        except FileNotFoundError:
            raise
        except OSError as problem:
            _raise(problem, "rename", self.path(source))

    def sync_dir(self, path: str) -> None:
        self._spare_root.open()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = self._with_descriptor(lambda: os.open(self.path(path), flags))
        except FileNotFoundError:
            raise
        except OSError as problem:
            if problem.errno not in TOO_MANY_FILES:
                raise StorageError(f"sync {self.path(path)}: {problem.strerror}") from problem
            self._spare_root.sync()  # a flush must not fail for want of a descriptor
            return
        try:
            os.fsync(fd)
        except OSError as problem:
            raise StorageError(f"sync {self.path(path)}: {problem.strerror}") from problem
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes:
        try:
            return self._with_descriptor(lambda: _read_file(self.path(path)))
        except FileNotFoundError:
            raise
        except OSError as problem:
            _raise_unread(problem, self.path(path), 0)

    def write_file_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        replace_file(self, path, data, durable=durable)

    def lock(self, path: str) -> OsLock:
        try:
            fd = os.open(self.path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as problem:
            _raise(problem, "open", self.path(path))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise DataFolderInUse(f"{self.path(path)} is locked by another process") from None
        return OsLock(fd)

    def free_bytes(self) -> int:
        try:
            facts = os.statvfs(self.root)
        except OSError as problem:
            _raise(problem, "stat", self.root)
        return facts.f_bavail * facts.f_frsize

    def sync_all(self) -> None:
        self._root.sync()


class RootDescriptor:
    """Syncs a whole file system through a descriptor that stays open. So it never lacks one, and the system tells it
    once of all bytes that could not be written since the last time: a descriptor that is opened later may not be told.
    Therefore two users that need the answer have one each."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._fd = -1

    def open(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as problem:
                raise StorageError(f"open {self._root}: {problem.strerror}") from problem
        return self._fd

    def sync(self) -> None:
        try:
            _syncfs(self.open())
        except OSError as problem:
            raise StorageError(f"sync {self._root}: {problem.strerror}") from problem

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _raise_unread(problem: OSError, path: str, position: int) -> NoReturn:
    if problem.errno in DAMAGED:
        raise CorruptLog(path, position, f"cannot be read: {problem.strerror}") from problem
    _raise(problem, "read", path)


def _raise(problem: OSError, what: str, path: str) -> NoReturn:
    kind = StorageError
    if problem.errno in FULL:
        kind = DiskFull
    elif problem.errno in TOO_MANY_FILES:
        kind = TooManyOpenFiles
    raise kind(f"{what} {path}: {problem.strerror}") from problem


@functools.cache
def _libc_syncfs() -> Any | None:
    """Linux has had syncfs(2) since 2.6.39 (and it reports write errors since 5.8); Python does not wrap it."""
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def _syncfs(fd: int) -> None:
    syncfs = _libc_syncfs()
    if syncfs is None:
        os.sync()  # other systems than Linux: may return before all is on the disk
    elif syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
