"""Terms and votes of all Raft groups of a node: one small store, so that many simultaneous elections cost one flush.

A replica may lose everything but this: one that forgets its vote may vote twice in a term, and two leaders of one term
lose data. So flushed votes are never lost, a damaged byte is reported and not skipped, and a full disk does not stop
elections: the files have their size from the beginning, and are overwritten in place.

Two files, NAME.0 and NAME.1, big-endian. The one with the higher generation counts.
  head, in a sector of its own
      0   4  "PVOT"          4   2  version, 1        6   2  zero
      8   8  generation: 0 and 1 when the store is created, then one more with each rewrite
     16   4  number of records when this file was written
     20   4  CRC-32C of the 20 bytes before
  from 512 on, records of 64 bytes (8 to a sector, so a torn write never splits a record), then zeros to the end
      0   4  CRC-32C of the 60 bytes that follow
      4   4  number in its batch: the records of one flush are numbered from 0
      8   8  generation of the file
     16  16  topic id        32   4  partition
     36   8  term            44   4  node that got the vote
     48   8  ... and its incarnation
     56   1  flags: 1 a vote was given, 2 there is a log of this group here, 4 the group is forgotten
     57   2  life: how often this replica was rebuilt because its log was lost or damaged
     59   5  zero

A flush writes its records after the last ones and flushes the file once. Of several records of one group the last one
counts. When the file is full, all current records are written to the other file and flushed, and then that file's head
is written and flushed: a head never exists without its records.

How it is read. Both heads must have their checksums, because a sector is written completely or not at all; only a store
that was never used may lack a file. Records count up to the first one with a wrong checksum or another generation. That
one is the end, a torn tail, or bit rot. A batch is written only after the one before it was flushed. So it is bit rot
if a good record follows whose batch began behind it, or if the head counts more records: CorruptLog. Else the rest was
never flushed, and the store is rewritten without it. Everything that was read is flushed before the node uses it.
The files are read from the disk, not from the system's cache: after a failed flush that may show a vote which was never
saved, and a replica that counted it as saved could forget it.
"""

import threading
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.batch.checksum import crc32c
from penstock.errors import CorruptLog, DiskFull, OutOfResources, StorageError
from penstock.log.disk import SECTOR_SIZE, Disk, File, read_uncached
from penstock.log.layout import FORMAT_VERSION, check_format
from penstock.types import NO_TERM, GroupId, NodeId, Replica, Term

MAGIC = b"PVOT"
HEAD = Struct(">4sHHQI")
CRC = Struct(">I")
RECORD = Struct(">IQ16siqiQBH5x")
RECORD_SIZE = CRC.size + RECORD.size
FIRST_RECORD = SECTOR_SIZE
MIN_FILE_SIZE = 64 * 1024
"""About a thousand records: some hundred elections of a small node between two rewrites."""
SPARE_FACTOR = 4
"""A rewritten file has space for this many times its records."""

VOTED = 1
HAS_LOG = 2
FORGOTTEN = 4

MAX_LIFE = 2**16 - 1


class Hard(Protocol):
    """The hard state of a Raft group: term and vote."""

    @property
    def term(self) -> int: ...

    @property
    def voted_for(self) -> Replica | None: ...


class SavedVote(NamedTuple):
    """The hard state of one group, and facts about its log."""

    term: Term
    voted_for: Replica | None
    has_log: bool
    """There was a log of this group here. If it is gone, this replica has lost entries that it acknowledged."""
    life: int = 0
    """Each life is another member of its group (`Replica.in_life`): acknowledgements of an earlier life do not count
    for a later one."""


NEVER_VOTED = SavedVote(NO_TERM, None, False)


class VoteStore:
    """`get`, `put` and `forget` on the event loop, `flush` in any thread."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Reads the files, or creates them. Raises CorruptLog."""
        self._disk = disk
        self._paths = (f"{path}.0", f"{path}.1")
        self._votes: dict[GroupId, SavedVote] = {}
        self._pending: dict[GroupId, SavedVote | None] = {}
        """Votes that are not flushed yet; None: the vote is to be removed."""
        self._pending_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._flushed: dict[GroupId, SavedVote] = {}
        """The records on the disk, for rewriting. Guarded by the flush lock."""
        self._generation = 0
        self._end = FIRST_RECORD
        self._size = 0
        self.failed: StorageError | None = None
        """Why nothing can be saved any more: after a failed flush it is unknown what is on the disk."""
        self._open()

    # --- on the loop

    def get(self, group: GroupId) -> SavedVote:
        return self._votes.get(group, NEVER_VOTED)

    def groups(self) -> list[GroupId]:
        return list(self._votes)

    def put(self, group: GroupId, hard: Hard, has_log: bool) -> None:
        """`get` returns it at once; it is on the disk when the next `flush` has returned."""
        self._put(group, SavedVote(Term(hard.term), hard.voted_for, has_log, self.get(group).life))

    def renew(self, group: GroupId, life: int) -> None:
        """The replica begins another life, without a log. Term and vote stay: they do not restrict the new member, and
        a vote that is not forgotten cannot be given twice."""
        kept = self.get(group)
        if not kept.life < life <= MAX_LIFE:
            raise StorageError(f"{group}: no life {life} after {kept.life}")
        self._put(group, SavedVote(kept.term, kept.voted_for, False, life))

    def _put(self, group: GroupId, vote: SavedVote) -> None:
        self._votes[group] = vote
        with self._pending_lock:
            self._pending[group] = vote

    def forget(self, group: GroupId) -> None:
        """Removes the vote of a group that was deleted, or that this replica has left for good."""
        if self._votes.pop(group, None) is not None:
            with self._pending_lock:
                self._pending[group] = None

    @property
    def dirty(self) -> bool:
        return bool(self._pending)

    # --- in a thread

    def flush(self) -> None:
        """Returns when everything that was put before is on the disk. Raises OutOfResources, after which the caller may
        retry, or StorageError, after which it may not."""
        with self._flush_lock:
            if self.failed is not None:
                raise StorageError(f"{self._paths[0]} takes no votes: {self.failed}")
            with self._pending_lock:
                pending, self._pending = self._pending, {}
            if not pending:
                return
            try:
                self._save(pending)
            except OutOfResources:
                with self._pending_lock:
                    self._pending = {**pending, **self._pending}
                raise
            except StorageError as problem:
                self.failed = problem
                raise

    def _save(self, pending: dict[GroupId, SavedVote | None]) -> None:
        for group, vote in pending.items():
            if vote is None:
                self._flushed.pop(group, None)
            else:
                self._flushed[group] = vote
        if self._end + len(pending) * RECORD_SIZE > self._size:
            self._rewrite()
            return
        data = _encode(pending.items(), self._generation)
        file = self._disk.open(self._paths[self._generation % 2])
        try:
            file.write_at(self._end, data)
            file.flush()
        finally:
            file.close()
        self._end += len(data)

    def _rewrite(self) -> None:
        """Writes all current records to the other file."""
        generation = self._generation + 1
        data = _encode(self._flushed.items(), generation)
        file = self._disk.open(self._paths[generation % 2], create=True)
        try:
            size = max(MIN_FILE_SIZE, file.size, FIRST_RECORD + _rounded(len(data) * SPARE_FACTOR))
            try:
                file.write_at(FIRST_RECORD, data.ljust(size - FIRST_RECORD, b"\0"))
            except DiskFull:
                # No space to grow: the records may still fit into the existing file.
                size = file.size
                if FIRST_RECORD + len(data) > size:
                    raise
                file.write_at(FIRST_RECORD, data.ljust(size - FIRST_RECORD, b"\0"))
            file.flush()
            file.write_at(0, _head(generation, len(self._flushed)))
            file.flush()
        finally:
            file.close()
        self._generation, self._end, self._size = generation, FIRST_RECORD + len(data), size

    # --- opening

    def _open(self) -> None:
        contents = [self._read(path) for path in self._paths]
        heads = [_read_head(path, data) for path, data in zip(self._paths, contents, strict=True)]
        known = [head for head in heads if head is not None]
        if len(known) < 2:
            self._make([data for data in contents if data is not None])
            return
        generation, count = max(known)
        number = generation % 2
        data = contents[number]
        assert data is not None
        end, is_torn = self._read_records(self._paths[number], data, generation, count)
        self._generation, self._end, self._size = generation, end, len(data)
        self._flushed = dict(self._votes)
        if is_torn:
            self._rewrite()
        else:
            self._sync(self._paths[number])

    def _read(self, path: str) -> bytes | None:
        try:
            return read_uncached(self._disk, path)
        except FileNotFoundError:
            return None

    def _make(self, found: list[bytes]) -> None:
        """Each file is complete or missing; generation 1 is written first, and no vote before both exist."""
        if found and found[0].rstrip(b"\0") != _head(1, 0).rstrip(b"\0"):
            raise CorruptLog(self._paths[0], 0, "one of the two files of votes is gone")
        for generation in (1, 0):
            content = _head(generation, 0).ljust(MIN_FILE_SIZE, b"\0")
            self._disk.write_file_atomic(self._paths[generation], content)
        self._generation, self._size = 1, MIN_FILE_SIZE

    def _read_records(self, path: str, data: bytes, generation: int, count: int) -> tuple[int, bool]:
        """Where the records end, and whether other bytes follow."""
        end = len(data)
        for position, record in _records(data, FIRST_RECORD, generation):
            if record is None:
                end = position
                break
            group, vote, _ = record
            self._votes.pop(group, None)
            if vote is not None:
                self._votes[group] = vote
        if end < FIRST_RECORD + count * RECORD_SIZE:
            raise CorruptLog(path, end, "the checksum of a record of votes is wrong")
        for position, record in _records(data, end, generation):
            if record is not None and position - record[2] * RECORD_SIZE > end:
                raise CorruptLog(path, end, "a record of votes before the last has a wrong checksum")
        return end, bool(data[end:].strip(b"\0"))

    def _sync(self, path: str) -> None:
        file: File = self._disk.open(path)
        try:
            file.flush()
        finally:
            file.close()


def _rounded(size: int) -> int:
    return -(-size // SECTOR_SIZE) * SECTOR_SIZE


def _head(generation: int, count: int) -> bytes:
    head = HEAD.pack(MAGIC, FORMAT_VERSION, 0, generation, count)
    return (head + CRC.pack(crc32c(head))).ljust(SECTOR_SIZE, b"\0")


def _read_head(path: str, data: bytes | None) -> tuple[int, int] | None:
    """Generation and number of records; None if there is no file."""
    if data is None:
        return None
    head = data[: HEAD.size]
    if (
        len(data) < SECTOR_SIZE
        or CRC.unpack_from(data, HEAD.size)[0] != crc32c(head)
        or not head.strip(b"\0")
    ):
        raise CorruptLog(path, 0, "the checksum of the votes' head is wrong")
    magic, version, _, generation, count = HEAD.unpack(head)
    check_format(path, magic, MAGIC, version)
    return generation, count


def _encode(votes: Iterable[tuple[GroupId, SavedVote | None]], generation: int) -> bytes:
    """The records of one batch."""
    parts = []
    for number, (group, vote) in enumerate(votes):
        term, voted_for, has_log, life = vote or NEVER_VOTED
        node, incarnation = voted_for or (0, 0)
        flags = (VOTED if voted_for else 0) | (HAS_LOG if has_log else 0) | (FORGOTTEN if vote is None else 0)
        topic, partition = group.topic_id.bytes, group.partition
        body = RECORD.pack(number, generation, topic, partition, term, node, incarnation, flags, life)
        parts.append(CRC.pack(crc32c(body)) + body)
    return b"".join(parts)


_Record = tuple[GroupId, SavedVote | None, int]
"""Group, its state or None if it is forgotten, and the record's number in its batch."""


def _records(data: bytes, position: int, generation: int) -> Iterator[tuple[int, _Record | None]]:
    """Position and content of each record from `position` on; None for one that is damaged, or of another
    generation."""
    while position + RECORD_SIZE <= len(data):
        yield position, _decode(data[position : position + RECORD_SIZE], generation)
        position += RECORD_SIZE


def _decode(record: bytes, generation: int) -> _Record | None:
    body = record[CRC.size :]
    number, found, topic, partition, term, node, incarnation, flags, life = RECORD.unpack(body)
    if found != generation or CRC.unpack_from(record)[0] != crc32c(body):
        return None
    group = GroupId(UUID(bytes=topic), partition)
    if flags & FORGOTTEN:
        return group, None, number
    voted_for = Replica(NodeId(node), incarnation) if flags & VOTED else None
    return group, SavedVote(Term(term), voted_for, bool(flags & HAS_LOG), life), number
