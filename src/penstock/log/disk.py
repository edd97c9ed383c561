"""The interface between the log and a disk: every file operation of the log goes through these protocols.

There are three implementations: `OsDisk` (files), `MemoryDisk` (nothing survives, nothing is flushed) and
`sim.SimDisk` (forgets on a power cut what was not flushed, and breaks on request).

An implementation promises this, and no more:
 1. A write is seen by later reads at once; after a crash of the machine it may be there in part, in any order of
    512-byte sectors, until `flush` of that file has returned.
 2. Such a crash may undo the creation, renaming or removal of a file until `sync_dir` of its folder has returned.
 3. `append` writes all or raises: a short write is cut off again, so the file never ends with half a batch while this
    process runs.
 4. An error of `flush` is final: the system may have dropped the pages, and a second flush would falsely succeed. The
    caller must not retry. Reads may show the lost bytes until `forget_cached`, also to a process that starts later.
 5. No space is `DiskFull`, no descriptor `TooManyOpenFiles`: nothing was done, and the same call may succeed later.
    Every other failure of a write, flush or name is `StorageError`. A flush fails for neither reason.
 6. A read never skips bytes: those that the disk cannot return are `CorruptLog`, as wrong ones are. They are as lost.

Paths are strings with forward slashes, relative to the disk's root (or absolute on an OsDisk).
"""

import posixpath
from collections.abc import Sequence
from typing import Protocol

from penstock.batch import Buffer
from penstock.errors import StorageError
from penstock.log.open_files import OpenFiles

SECTOR_SIZE = 512
"""The unit that a disk writes completely or not at all. Larger sectors (4 KiB) are multiples of it, and also safe."""


class File(Protocol):
    """An open file that grows at its end. Only one thread may use it at a time, except that any thread may flush and
    load."""

    size: int
    """Bytes in the file, as this process sees it."""

    def read_at(self, position: int, count: int) -> bytes:
        """At most `count` bytes; fewer only where the file ends."""
        ...

    def is_cached(self, position: int, count: int) -> bool:
        """Whether a read of these bytes finds them in memory, as far as that can be told cheaply."""
        ...

    def load(self, position: int, count: int) -> None:
        """Reads these bytes into the system's cache."""
        ...

    def append(self, data: Buffer | Sequence[Buffer]) -> None:
        """Adds all bytes of one buffer, or of several in order with one call, at the end."""
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrites in place; extends the file if it is shorter. For files of fixed slots."""
        ...

    def truncate(self, size: int) -> None: ...

    def flush(self) -> None:
        """Returns when content and size are on stable storage.

        Once it has failed, it fails each time. The system tells a descriptor of a lost page once, so a second flush
        would report success: a thread's flush may fail while the event loop flushes the same file for a snapshot,
        which would then count lost bytes as flushed."""
        ...

    def forget_cached(self) -> None:
        """Later reads find what is on stable storage, as far as the system can forget: not blocks of the file (of any
        size) in which bytes are still to be written, of which there are none after `flush`, and nothing that another
        program has mapped into its memory."""
        ...

    def close(self) -> None:
        """May be called twice."""
        ...


class Lock(Protocol):
    """A held lock on a file."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A tree of folders and files."""

    volatile: bool
    """Nothing survives this process, so there is nothing to flush."""
    open_files: OpenFiles
    """The segments whose files are open, on the event loop."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Raises FileNotFoundError when it is not there and `create` is false."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted; [] when there is no such folder."""
        ...

    def make_dir(self, path: str) -> None:
        """Creates it with its parents; it may exist already."""
        ...

    def remove(self, path: str) -> None:
        """The file may be gone already. Open handles can still read it."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a target file."""
        ...

    def sync_dir(self, path: str) -> None:
        """Returns when the names in this folder are on stable storage."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def write_file_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """The file has the old content or the new, never a mixture. Not `durable`: for content that can be rebuilt.
        After a crash of the machine such a file may hold anything, so it must have a checksum."""
        ...

    def lock(self, path: str) -> Lock:
        """Raises DataFolderInUse when another holder has it."""
        ...

    def free_bytes(self) -> int: ...

    def sync_all(self) -> None:
        """Flushes all files and names of this disk at once: cheaper than four files one by one."""
        ...

    def close(self) -> None:
        """Releases what the disk itself holds. It may be used again."""
        ...


def read_uncached(disk: Disk, path: str) -> bytes:
    """The content of a file as it is on stable storage, except for bytes that are still to be written. For small files
    that are overwritten in place, and not after a failed flush: if an earlier process had one, the system may still
    show what that process wrote, and would never write it. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        file.forget_cached()
        return file.read_at(0, file.size)
    finally:
        file.close()


def replace_file(disk: Disk, path: str, data: bytes, *, durable: bool) -> None:
    """`write_file_atomic` for disks that lose unflushed bytes: the new file gets its name when its content is there."""
    temporary = f"{path}.tmp"
    file = disk.open(temporary, create=True)
    try:
        if file.size:
            file.truncate(0)
        file.append(data)
        if durable:
            file.flush()
    except StorageError:
        disk.remove(temporary)
        raise
    finally:
        file.close()
    disk.rename(temporary, path)
    if durable:
        disk.sync_dir(posixpath.dirname(path))
