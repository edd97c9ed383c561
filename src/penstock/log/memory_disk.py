"""A disk in memory: for topics with `penstock.storage=memory`, embedded brokers and tests.

A file is a list of chunks, so that growing never copies existing bytes and truncation or removal frees memory at once.
Small appends share a chunk until it is CHUNK_SIZE long; a larger append gets its own chunk.
"""

import posixpath
from bisect import bisect_right
from collections.abc import Sequence

from penstock.batch import Buffer
from penstock.errors import DataFolderInUse
from penstock.log.open_files import OpenFiles

CHUNK_SIZE = 64 * 1024
"""Small enough that a topic with one record costs little, large enough that a read seldom joins many chunks."""
OWN_CHUNK_SIZE = 4 * 1024
"""From this size on, copying into a shared chunk costs more than a separate object."""


class MemoryFile:
    """Bytes in chunks; `_starts[i]` is the position of `_chunks[i]`'s first byte."""

    __slots__ = ("_chunks", "_starts", "size")

    def __init__(self) -> None:
        self._chunks: list[bytes | bytearray] = []
        self._starts: list[int] = []
        self.size = 0

    def read_at(self, position: int, count: int) -> bytes:
        end = min(position + count, self.size)
        if position >= end:
            return b""
        at = bisect_right(self._starts, position) - 1
        start, chunk = self._starts[at], self._chunks[at]
        if end <= start + len(chunk):
            return bytes(memoryview(chunk)[position - start : end - start])
        parts = []
        while position < end:
            start, chunk = self._starts[at], self._chunks[at]
            parts.append(memoryview(chunk)[position - start : end - start])
            position = start + len(chunk)
            at += 1
        return b"".join(parts)

    def is_cached(self, position: int, count: int) -> bool:
        return True

    def load(self, position: int, count: int) -> None:
        """The bytes are in memory."""

    def append(self, data: Buffer | Sequence[Buffer]) -> None:
        for part in [data] if isinstance(data, (bytes, bytearray, memoryview)) else data:
            last = self._chunks[-1] if self._chunks else b""
            if len(part) < OWN_CHUNK_SIZE and isinstance(last, bytearray) and len(last) < CHUNK_SIZE:
                last += part
            else:
                self._starts.append(self.size)
                self._chunks.append(bytes(part) if len(part) >= OWN_CHUNK_SIZE else bytearray(part))
            self.size += len(part)

    def write_at(self, position: int, data: Buffer) -> None:
        """For small files of fixed slots: makes the file one chunk."""
        whole = bytearray(self.read_at(0, self.size))
        whole.extend(bytes(max(0, position - len(whole))))
        whole[position : position + len(data)] = data
        self._chunks, self._starts, self.size = [whole], [0], len(whole)

    def truncate(self, size: int) -> None:
        if size > self.size:
            self.append(bytes(size - self.size))
        while self._starts and self._starts[-1] >= size:
            self._starts.pop()
            self._chunks.pop()
        if self._chunks:
            self._chunks[-1] = bytearray(self._chunks[-1][: size - self._starts[-1]])
        self.size = size

    def flush(self) -> None:
        """Memory needs no flush."""

    def forget_cached(self) -> None:
        """Memory has no cache."""

    def close(self) -> None:
        """The disk holds the bytes, not the handle."""


class MemoryLock:
    """An entry in the disk's set of held locks."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class MemoryFolder:
    """The files of a folder and the names of its subfolders."""

    __slots__ = ("files", "folders")

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.folders: set[str] = set()


class MemoryDisk:
    """Folders by path."""

    volatile = True

    def __init__(self) -> None:
        self._folders: dict[str, MemoryFolder] = {}
        self._locks: set[str] = set()
        self.open_files = OpenFiles()

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        parent, name = posixpath.split(path)
        folder = self._folders.get(parent)
        file = folder.files.get(name) if folder is not None else None
        if file is not None:
            return file
        if not create or folder is None:
            raise FileNotFoundError(path)
        file = folder.files[name] = MemoryFile()
        return file

    def exists(self, path: str) -> bool:
        parent, name = posixpath.split(path)
        return path in self._folders or (parent in self._folders and name in self._folders[parent].files)

    def size(self, path: str) -> int:
        return self.open(path).size

    def list_dir(self, path: str) -> list[str]:
        folder = self._folders.get(path)
        return sorted(folder.folders | folder.files.keys()) if folder is not None else []

    def make_dir(self, path: str) -> None:
        if path in self._folders:
            return
        self._folders[path] = MemoryFolder()
        parent, name = posixpath.split(path)
        if name:
            self.make_dir(parent)
            self._folders[parent].folders.add(name)

    def remove(self, path: str) -> None:
        parent, name = posixpath.split(path)
        if parent in self._folders:
            self._folders[parent].files.pop(name, None)

    def remove_tree(self, path: str) -> None:
        folder = self._folders.pop(path, None)
        if folder is None:
            return
        for name in sorted(folder.folders):
            self.remove_tree(posixpath.join(path, name))
        parent, name = posixpath.split(path)
        if parent in self._folders:
            self._folders[parent].folders.discard(name)

    def rename(self, source: str, target: str) -> None:
        if source in self._folders:
            self._rename_folder(source, target)
            return
        file = self.open(source)
        self.remove(source)
        parent, name = posixpath.split(target)
        self._folders[parent].files[name] = file

    def sync_dir(self, path: str) -> None:
        """Nothing is durable here."""

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        return file.read_at(0, file.size)

    def write_file_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        parent, name = posixpath.split(path)
        if parent not in self._folders:
            raise FileNotFoundError(parent)
        file = MemoryFile()
        file.append(data)
        self._folders[parent].files[name] = file

    def lock(self, path: str) -> MemoryLock:
        if path in self._locks:
            raise DataFolderInUse(f"{path} is locked by another user of this memory disk")
        self._locks.add(path)
        return MemoryLock(self._locks, path)

    def free_bytes(self) -> int:
        """The disk does not know: retention bounds topics in memory."""
        return 2**63 - 1

    def sync_all(self) -> None:
        """Memory needs no flush."""

    def close(self) -> None:
        """There is nothing to release."""

    def _rename_folder(self, source: str, target: str) -> None:
        self.make_dir(target)
        for name in sorted(self._folders[source].folders):
            self._rename_folder(posixpath.join(source, name), posixpath.join(target, name))
        self._folders[target].files = self._folders[source].files
        self.remove_tree(source)
