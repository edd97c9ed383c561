"""A disk that loses unflushed writes, and fails on request. Its seed determines everything random.

It has two images. The *visible* one is what the running process sees: every write at once. The *durable* one is what is
on the disk. `flush` copies a file's content to it, `sync_dir` a folder's names. A power cut may or may not keep the
difference, and `after_power_cut` draws one of the possible outcomes:

 content    of each file, each 512-byte sector that was written since the last flush is the old one or the new one.
            A sector that was never written is zeros. The file may be as long as its surviving sectors need, or longer,
            filled with zeros, because its size was written and its data was not.
 names      of each folder, any subset of the changes since its last sync_dir, in their order. A rename is one change:
            the file is found under the old name or under the new one.
 writeback  now and then the system writes some dirty sectors by itself, so that what survives need not be the last
            version of a sector.

Faults on request: a capacity (ENOSPC, with a short write first), flushes that fail (EIO; as on Linux the pages count as
clean afterwards, so a second flush would "succeed" and save nothing), bit-rot. `on_operation` is called before every
change of the disk, with its number: a test cuts the power there, or looks at what a cut would leave.
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from random import Random

from penstock.batch import Buffer
from penstock.errors import DataFolderInUse, DiskFull, StorageError
from penstock.log.disk import SECTOR_SIZE, replace_file
from penstock.log.open_files import UNBOUNDED, OpenFiles

KEEP_CHANCES = (0.0, 0.5, 0.9, 1.0)
"""How likely a dirty sector survives; drawn for each file, because the extremes find other bugs than the middle."""
DEFAULT_WRITEBACK_CHANCE = 0.02
MOST_OPEN = 2
"""Segments that may have their file open, on every other disk: a log then closes and opens its files all the time."""


class PowerCut(BaseException):
    """Raised by `on_operation` to stop the process under test. No `except Exception` may stop it."""


class SimInode:
    """A file's content in both images."""

    __slots__ = ("dirty", "durable", "losses", "visible")

    def __init__(self, content: bytes = b"") -> None:
        self.visible = bytearray(content)
        self.durable = bytearray(content)
        self.dirty: set[int] = set()
        """Numbers of sectors in which the images may differ."""
        self.losses = 0
        """Flushes that failed."""

    def write(self, position: int, data: Buffer) -> None:
        if len(self.visible) < position:
            self.visible.extend(bytes(position - len(self.visible)))
        self.visible[position : position + len(data)] = data
        if data:
            self.dirty.update(range(position // SECTOR_SIZE, (position + len(data) - 1) // SECTOR_SIZE + 1))

    def truncate(self, size: int) -> None:
        self.dirty.update(range(size // SECTOR_SIZE, len(self.visible) // SECTOR_SIZE + 1))
        if size <= len(self.visible):
            del self.visible[size:]
        else:
            self.visible.extend(bytes(size - len(self.visible)))

    def flush(self) -> None:
        """Writes dirty sectors only: what a failed flush has dropped stays lost."""
        for sector in self.dirty:
            self._persist(self.durable, sector)
        self.dirty.clear()
        del self.durable[len(self.visible) :]
        self.durable.extend(bytes(len(self.visible) - len(self.durable)))

    def fail_flush(self) -> None:
        """The system drops what it could not write."""
        self.dirty.clear()
        self.losses += 1

    def forget_cached(self) -> None:
        """The system reads again what it does not have to write: after a failed flush that is not the same."""
        if not self.losses:
            return
        for sector in set(range(len(self.visible) // SECTOR_SIZE + 1)) - self.dirty:
            start = sector * SECTOR_SIZE
            size = len(self.visible[start : start + SECTOR_SIZE])
            self.visible[start : start + size] = self.durable[start : start + size].ljust(size, b"\0")

    def write_back(self, random: Random) -> None:
        """The system writes a few dirty sectors of its own accord."""
        for sector in sorted(self.dirty):
            if random.random() < 0.5:
                self._persist(self.durable, sector)

    def survivor(self, random: Random) -> bytes:
        """One of the contents that a power cut may leave."""
        if not self.dirty and len(self.visible) == len(self.durable):
            return bytes(self.durable)
        content = bytearray(self.durable)
        chance = random.choice(KEEP_CHANCES)
        for sector in sorted(self.dirty):
            if random.random() < chance:
                self._persist(content, sector)
        size = self._survivor_size(len(content), random)
        if size > len(content):
            content.extend(bytes(size - len(content)))
        return bytes(content[:size])

    def _persist(self, content: bytearray, sector: int) -> None:
        start = sector * SECTOR_SIZE
        data = self.visible[start : start + SECTOR_SIZE]
        if len(content) < start + len(data):
            content.extend(bytes(start + len(data) - len(content)))
        content[start : start + len(data)] = data

    def _survivor_size(self, kept: int, random: Random) -> int:
        """The size is metadata and goes its own way: as durable, as visible, or as the sectors that made it."""
        shortest = min(len(self.durable), len(self.visible))
        return max(shortest, random.choice((kept, len(self.visible), min(kept, len(self.visible)))))


COLD_BYTES = 512
"""Every second piece of a simulated file of this size is cold."""


class SimFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: "SimDisk", path: str, inode: SimInode) -> None:
        self._disk = disk
        self.path = path
        self.inode = inode
        self.closed = False
        self._losses = inode.losses
        """Those that were told before this file was opened: its flushes fail after any other one."""

    @property
    def size(self) -> int:
        return len(self.inode.visible)

    @size.setter
    def size(self, value: int) -> None:
        raise AttributeError("a file's size follows from its content")

    def read_at(self, position: int, count: int) -> bytes:
        self._check_open()
        return bytes(self.inode.visible[position : position + count])

    def is_cached(self, position: int, count: int) -> bool:
        """The first byte decides: some reads of every seed wait for the disk, and the same ones each time."""
        return position // COLD_BYTES % 2 == 0

    def load(self, position: int, count: int) -> None:
        self._check_open()

    def append(self, data: Buffer | Sequence[Buffer]) -> None:
        whole = data if isinstance(data, (bytes, bytearray, memoryview)) else b"".join(data)
        self._write(self.size, whole, what="append to")

    def write_at(self, position: int, data: Buffer) -> None:
        self._write(position, data, what="write")

    def truncate(self, size: int) -> None:
        self._check_open()
        self._disk.operation("truncate", self.path)
        self.inode.truncate(size)

    def flush(self) -> None:
        self._check_open()
        self._disk.operation("flush", self.path)
        if self._disk.take_flush_failure(self.path):
            self.inode.fail_flush()
        if self.inode.losses > self._losses:
            raise StorageError(f"flush {self.path}: Input/output error")
        self.inode.flush()

    def forget_cached(self) -> None:
        self._check_open()
        self.inode.forget_cached()

    def close(self) -> None:
        self.closed = True

    def _write(self, position: int, data: Buffer, *, what: str) -> None:
        self._check_open()
        self._disk.operation("write", self.path)
        size = self.size
        free = self._disk.free_bytes()
        if max(position + len(data) - size, 0) > free:
            # As the system does it: what fits is written, then the caller is told and cuts it off again.
            self.inode.write(position, data[: max(0, size + free - position)])
            self.inode.truncate(size)
            raise DiskFull(f"{what} {self.path}: No space left on device")
        self.inode.write(position, data)
        self._disk.maybe_write_back(self.inode)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.path} is closed")


class SimLock:
    """Held until released, or until the power goes."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class SimFolder:
    """A folder's names in both images."""

    __slots__ = ("changes", "durable", "visible")

    def __init__(self) -> None:
        self.visible: dict[str, SimEntry] = {}
        self.durable: dict[str, SimEntry] = {}
        self.changes: list[Sequence[NameChange]] = []
        """Changes since the last sync; those in one sequence happen together."""

    def change(self, *parts: "NameChange") -> None:
        self.changes.append(parts)
        _apply(self.visible, parts)

    def sync(self) -> None:
        self.durable = dict(self.visible)
        self.changes.clear()

    def survivor(self, random: Random, contents: dict[SimInode, SimInode]) -> "SimFolder":
        """One of the folders that a power cut may leave."""
        names = dict(self.durable)
        chance = random.choice(KEEP_CHANCES)
        for parts in self.changes:
            if random.random() < chance:
                _apply(names, parts)
        after = SimFolder()
        for name, entry in sorted(names.items()):
            if isinstance(entry, SimFolder):
                after.visible[name] = entry.survivor(random, contents)
            else:
                if entry not in contents:
                    contents[entry] = SimInode(entry.survivor(random))
                after.visible[name] = contents[entry]
        after.sync()
        return after

    def inodes(self) -> Iterator[tuple[str, SimInode]]:
        """All files below, with their paths."""
        for name, entry in sorted(self.visible.items()):
            if isinstance(entry, SimFolder):
                for path, inode in entry.inodes():
                    yield f"{name}/{path}", inode
            else:
                yield name, entry

    def folders(self) -> Iterator["SimFolder"]:
        yield self
        for _, entry in sorted(self.visible.items()):
            if isinstance(entry, SimFolder):
                yield from entry.folders()


SimEntry = SimInode | SimFolder
NameChange = tuple[str, SimEntry | None]
"""A name and what it leads to from now on; None: nothing."""


def _apply(names: dict[str, SimEntry], parts: Sequence[NameChange]) -> None:
    for name, entry in parts:
        if entry is not None:
            names[name] = entry
        else:
            names.pop(name, None)


class SimDisk:
    """A disk in memory that can lose power. Never shared by two threads."""

    volatile = False

    def __init__(self, seed: int = 0, *, writeback_chance: float = DEFAULT_WRITEBACK_CHANCE) -> None:
        self._random = Random(seed)
        self._writeback_chance = writeback_chance
        self._root = SimFolder()
        self._locks: set[str] = set()
        self._failing_flushes: list[str] = []
        self.capacity: int | None = None
        """Bytes of file content that fit; None: no limit."""
        self._most_open = MOST_OPEN if seed % 2 else UNBOUNDED
        self.open_files = OpenFiles(self._most_open)
        self.operations = 0
        self.on_operation: Callable[[int, str, str], None] | None = None
        """Called with number, kind and path before each change of the disk."""

    # --- faults

    def operation(self, kind: str, path: str) -> None:
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(self.operations, kind, path)

    def maybe_write_back(self, inode: SimInode) -> None:
        if self._random.random() < self._writeback_chance:
            inode.write_back(self._random)

    def fail_flush(self, path_part: str) -> None:
        """The next flush of a file whose path contains this fails."""
        self._failing_flushes.append(path_part)

    def take_flush_failure(self, path: str) -> bool:
        for part in self._failing_flushes:
            if part in path:
                self._failing_flushes.remove(part)
                return True
        return False

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Rot: on the platter and, since nothing caches it for years, in what is read."""
        inode = self._inode(path)
        for image in (inode.visible, inode.durable):
            if position < len(image):
                image[position] ^= 1 << bit

    def forgive(self) -> None:
        """No flush is to fail any more."""
        self._failing_flushes.clear()

    def used(self) -> int:
        return sum(len(inode.visible) for _, inode in self._root.inodes())

    def free_bytes(self) -> int:
        return 2**62 if self.capacity is None else max(0, self.capacity - self.used())

    def after_power_cut(self, seed: int) -> "SimDisk":
        """The disk as it may come back. This one stays as it is, so that many outcomes can be drawn."""
        random = Random(seed)
        after = SimDisk(random.getrandbits(32), writeback_chance=self._writeback_chance)
        after._root = self._root.survivor(random, {})
        return after

    def process_died(self) -> None:
        """The machine goes on: all that was written is still there, flushed or not; only locks are gone."""
        self._locks.clear()
        self.open_files = OpenFiles(self._most_open)

    # --- what a power cut would certainly leave

    def durable_names(self, path: str) -> list[str]:
        """Names in a folder that are on the platter, the folder's own included."""
        folder = self._find_durable(path)
        return sorted(folder.durable) if isinstance(folder, SimFolder) else []

    def durable_content(self, path: str) -> bytearray:
        """The durable content of a file; empty if its name is not durable."""
        inode = self._find_durable(path)
        return inode.durable if isinstance(inode, SimInode) else bytearray()

    def is_durable(self, path: str) -> bool:
        """Whether a file is on the platter as it is."""
        inode = self._find_durable(path)
        return isinstance(inode, SimInode) and not inode.dirty

    def _find_durable(self, path: str) -> SimEntry | None:
        entry: SimEntry | None = self._root
        for name in path.split("/") if path else ():
            entry = entry.durable.get(name) if isinstance(entry, SimFolder) else None
        return entry

    # --- the Disk seam

    def open(self, path: str, *, create: bool = False) -> SimFile:
        entry = self._find(path)
        if entry is None:
            parent, name = posixpath.split(path)
            folder = self._find(parent)
            if not create or not isinstance(folder, SimFolder):
                raise FileNotFoundError(path)
            self.operation("create", path)
            if self.free_bytes() <= 0:
                raise DiskFull(f"open {path}: No space left on device")
            entry = SimInode()
            folder.change((name, entry))
        if isinstance(entry, SimFolder):
            raise IsADirectoryError(path)
        return SimFile(self, path, entry)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return len(self._inode(path).visible)

    def list_dir(self, path: str) -> list[str]:
        folder = self._find(path)
        return sorted(folder.visible) if isinstance(folder, SimFolder) else []

    def make_dir(self, path: str) -> None:
        if self.exists(path):
            return
        parent, name = posixpath.split(path)
        self.make_dir(parent)
        self.operation("make_dir", path)
        self._folder(parent).change((name, SimFolder()))

    def remove(self, path: str) -> None:
        if self.exists(path):
            self.operation("remove", path)
            parent, name = posixpath.split(path)
            self._folder(parent).change((name, None))

    def remove_tree(self, path: str) -> None:
        """One change: who removes a tree renames it first, and whatever comes back of it is found by that name."""
        self.remove(path)

    def rename(self, source: str, target: str) -> None:
        entry = self._find(source)
        if entry is None:
            raise FileNotFoundError(source)
        self.operation("rename", target)
        (parent, old), (new_parent, new) = posixpath.split(source), posixpath.split(target)
        if parent == new_parent:
            self._folder(parent).change((old, None), (new, entry))
        else:
            # Between folders the two names may be lost one by one; the new one first, as file systems do.
            self._folder(new_parent).change((new, entry))
            self._folder(parent).change((old, None))

    def sync_dir(self, path: str) -> None:
        self.operation("sync_dir", path)
        self._folder(path).sync()

    def read_file(self, path: str) -> bytes:
        return bytes(self._inode(path).visible)

    def write_file_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        replace_file(self, path, data, durable=durable)

    def lock(self, path: str) -> SimLock:
        if path in self._locks:
            raise DataFolderInUse(f"{path} is locked by another process")
        self._locks.add(path)
        return SimLock(self._locks, path)

    def sync_all(self) -> None:
        """Everything; a file that was told to fail fails the whole."""
        self.operation("sync_all", "")
        for folder in self._root.folders():
            folder.sync()
        for path, inode in self._root.inodes():
            if self.take_flush_failure(path):
                inode.fail_flush()
                raise StorageError("sync: Input/output error")
            inode.flush()

    def close(self) -> None:
        """There is nothing to release."""

    def _find(self, path: str) -> SimEntry | None:
        entry: SimEntry | None = self._root
        for name in path.split("/") if path else ():
            entry = entry.visible.get(name) if isinstance(entry, SimFolder) else None
        return entry

    def _folder(self, path: str) -> SimFolder:
        folder = self._find(path)
        if not isinstance(folder, SimFolder):
            raise FileNotFoundError(path)
        return folder

    def _inode(self, path: str) -> SimInode:
        inode = self._find(path)
        if not isinstance(inode, SimInode):
            raise FileNotFoundError(path)
        return inode
