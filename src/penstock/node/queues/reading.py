"""Reading the log for a queue: ahead, to learn which records there are, and what a consumer is handed."""

from penstock.batch import iter_headers
from penstock.node.partition import Partition
from penstock.node.queues.notes import read_notes
from penstock.node.queues.values import Delivery
from penstock.queue import Acquired, QueuePartition
from penstock.types import Offset

READ_AHEAD_BYTES = 1024 * 1024
"""What is read from the log at once to learn which records there are."""
EXTENDS_PER_TURN = 16
"""Reads in one turn of the loop: a long stretch of deferred or deleted records must not hold up everybody else."""


class LogReader:
    """Reads one partition for the core of one queue."""

    def __init__(self, core: QueuePartition, partition: Partition, *, with_keys: bool) -> None:
        self._core = core
        self._partition = partition
        self._with_keys = with_keys
        self._record_bytes = 1024
        """The usual size of a record here, so that no more is read than will be sent."""

    def ahead(self, now_ms: int, wanted: int, *, reads: int = EXTENDS_PER_TURN) -> None:
        """The core learns of more records, as long as there are some and too few are available."""
        core, partition = self._core, self._partition
        for _ in range(reads):
            if core.available_count >= wanted or not core.wants_more(wanted):
                return
            if core.next_offset < partition.start_offset:
                core.trimmed(now_ms, partition.start_offset)
            if core.next_offset >= partition.high_watermark:
                return
            data = partition.read(Offset(core.next_offset), READ_AHEAD_BYTES, at_least_one=True)
            if not data:  # compaction took all that was left
                return
            end, notes = read_notes(data, core.next_offset, keys=self._with_keys)
            records = max(1, end - core.next_offset)
            self._record_bytes = max(32, len(data) // records)
            core.extend(now_ms, end, notes)

    def fetch(
        self, now_ms: int, member: str, acquired: list[Acquired], max_bytes: int, *, whole_batches: bool
    ) -> Delivery:
        """The batches that hold what was acquired. What does not fit goes back as if it had not been handed out."""
        parts: list[bytes] = []
        room = max_bytes
        covered = 0
        kept: list[Acquired] = []
        for given in acquired:
            at = max(given.first, covered)
            while at <= given.last and (room > 0 or not parts):
                data = self._read(at, given.last, room, at_least_one=not parts)
                if not data:
                    break
                parts.append(data)
                room -= len(data)
                at = covered = _next_offset(data)
            last = min(given.last, at - 1)
            if last >= given.first:
                kept.append(Acquired(given.first, last, given.deliveries))
            if last < given.last:
                self._core.hand_back(now_ms, member, max(given.first, last + 1), given.last)
        if whole_batches and kept and covered - 1 > kept[-1].last:
            kept += self._core.acquire(now_ms, member, covered - 1 - kept[-1].last, below=covered)
        return Delivery(b"".join(parts), kept)

    def _read(self, first: int, last: int, room: int, *, at_least_one: bool) -> bytes:
        """Batches from the one that holds `first`, none that begins behind `last`."""
        wanted = min(room, (last - first + 1) * self._record_bytes * 2 + 4096)
        data = self._partition.read(Offset(first), max(1, wanted), at_least_one=at_least_one)
        if not data and wanted < room:  # a batch larger than usual
            data = self._partition.read(Offset(first), room, at_least_one=False)
        for position, header in iter_headers(data):
            if header.base_offset > last:
                return data[:position]
        return data


def _next_offset(data: bytes) -> int:
    end = 0
    for _, header in iter_headers(data):
        end = header.next_offset
    return end
