"""Replacing a log by an empty one that begins behind a prefix that other replicas have deleted.

A replica that needs deleted entries receives the *prefix*: where the log begins now, and the facts that cannot be
derived from the entries that are left. It discards its own log, whatever that holds, and begins an empty one.

A crash must leave either the old log or the new one, and the next opening must know which. So:
 1. The file `reset` is written: the whole of the new state, flushed before it gets its name. Its name is the point of
    no return; an opening that finds it continues here.
 2. Everything else in the folder is removed, and the removal is flushed.
 3. The new log is written: an empty segment, its checkpoint, the snapshot of its beginning. All flushed.
 4. `reset` is removed, and that is flushed.
Steps 2 to 4 may be repeated from any point.
"""

import msgspec

from penstock.batch.checksum import crc32c
from penstock.errors import CorruptLog
from penstock.log.checkpoint import MAX_CONFIG_BYTES, Checkpoint, CheckpointFacts, FlushPoint, Removed
from penstock.log.disk import Disk
from penstock.log.layout import LOG_SUFFIX, RESET_NAME, sidecar
from penstock.log.producers import ProducerRow, TransactionRows
from penstock.log.snapshot import Snapshot, snapshot_path
from penstock.types import NO_TERM

CRC_SIZE = 4


class Prefix(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Facts about the entries before a log's first one. Another replica sends it, so its fields are checked."""

    offset: int
    """The offset of the log's first entry."""
    index: int
    """Raft's index of the log's first entry."""
    term: int
    """The term of the last entry of the prefix; -1: there was none."""
    start_offset: int
    """The first offset that readers of the sender may see, not before `offset`. This replica follows once its log
    reaches it."""
    producers: list[ProducerRow]
    """The producers' state as of `offset`, without the entries behind it."""
    gaps_below: int
    """Below it offsets may be missing."""
    config: bytes
    """The last payload of the caller's own in the prefix; b"": there was none."""
    transactions: TransactionRows = TransactionRows()
    """Transactions that began in the prefix and had not ended before `offset`. The markers behind it tell which of them
    were aborted, so the index of aborted transactions is empty. Nodes of versions without transactions send none."""

    def validate(self) -> None:
        if not 0 <= self.offset <= self.index or self.start_offset < self.offset:
            raise ValueError(
                f"an impossible prefix: offset {self.offset}, index {self.index}, start {self.start_offset}"
            )
        if (self.index > 0) != (self.term != NO_TERM) or self.term < NO_TERM:
            raise ValueError(f"an impossible prefix: index {self.index}, last term {self.term}")
        if len(self.config) > MAX_CONFIG_BYTES:
            raise ValueError(f"a configuration of {len(self.config)} bytes: at most {MAX_CONFIG_BYTES}")
        if any(not 0 <= first < self.offset for _, first in self.transactions.open):
            raise ValueError(f"an impossible prefix: a transaction that begins behind offset {self.offset}")
        if self.transactions.aborted:
            raise ValueError("an impossible prefix: it has aborted transactions, whose markers are deleted")


def announce_reset(disk: Disk, folder: str, prefix: Prefix) -> None:
    """Step 1. If this raises, nothing has changed."""
    body = msgspec.msgpack.encode(prefix)
    disk.write_file_atomic(f"{folder}/{RESET_NAME}", crc32c(body).to_bytes(CRC_SIZE, "big") + body)


def finish_reset(disk: Disk, folder: str) -> None:
    """Steps 2 to 4."""
    path = f"{folder}/{RESET_NAME}"
    prefix = _read(path, disk.read_file(path))
    for name in disk.list_dir(folder):
        if name != RESET_NAME:
            disk.remove(f"{folder}/{name}")
    disk.sync_dir(folder)
    disk.open(sidecar(folder, prefix.offset, LOG_SUFFIX), create=True).close()
    Checkpoint(disk, folder).save_durably(_facts(prefix))
    disk.write_file_atomic(snapshot_path(folder, prefix.offset), _snapshot(prefix).encode())
    disk.remove(path)
    disk.sync_dir(folder)


def _read(path: str, data: bytes) -> Prefix:
    body = data[CRC_SIZE:]
    if int.from_bytes(data[:CRC_SIZE], "big") != crc32c(body):
        raise CorruptLog(path, 0, "the checksum of the announced reset is wrong")
    return msgspec.msgpack.decode(body, type=Prefix)


def _facts(prefix: Prefix) -> CheckpointFacts:
    removed = Removed(prefix.offset, prefix.index - prefix.offset, prefix.term, prefix.config)
    flushed = FlushPoint(prefix.offset, prefix.offset, 0)
    return CheckpointFacts(prefix.offset, removed, flushed, 0, prefix.gaps_below)


def _snapshot(prefix: Prefix) -> Snapshot:
    return Snapshot(
        offset=prefix.offset,
        base_offset=prefix.offset,
        position=0,
        start_offset=prefix.offset,
        start_controls=prefix.index - prefix.offset,
        last_term=prefix.term,
        gone_term=prefix.term,
        terms=[] if prefix.term == NO_TERM else [(prefix.term, prefix.offset)],
        controls=[],
        control_count=0,
        producers=prefix.producers,
        gone_config=prefix.config,
        gaps_below=prefix.gaps_below,
        first_base=prefix.offset,
        transactions=prefix.transactions,
    )
