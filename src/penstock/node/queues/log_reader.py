"""Reads the log for a queue: ahead, to find out which records exist, and for deliveries."""

from penstock.batch import iter_headers, unpacked_bytes
from penstock.errors import PenstockError
from penstock.log.aborted import NOTHING_ABORTED, AbortedRanges
from penstock.node.queues.delivery_headers import scan_batches
from penstock.node.queues.record_marks import marks_for
from penstock.node.queues.retention_notices import RetentionNotices
from penstock.node.queues.values import NOTHING, LeasedBatches
from penstock.node.replication.partition import Partition
from penstock.queue.partition import QueuePartition
from penstock.queue.values import AckKind, Acquired, ScanResult
from penstock.types import Isolation, Offset

READ_AHEAD_BYTES = 1024 * 1024
"""Bytes per read when reading ahead."""
EXTENDS_PER_TURN = 16
"""Reads in one turn of the event loop: a long range of deferred or deleted records must not delay other work."""

HOLES_PER_TURN = 16
"""How often a delivery is tried again at once if compaction has removed the acquired records."""

_GAP = bytes([AckKind.GAP])


class LogReader:
    """Reads one partition for the core of one queue."""

    def __init__(
        self,
        core: QueuePartition,
        partition: Partition,
        isolation: Isolation,
        *,
        notices: RetentionNotices,
    ) -> None:
        self._core = core
        self._notices = notices
        self._partition = partition
        self.isolation = isolation
        self.is_behind = False
        """Whether the log has more than could be read in one turn."""
        self._record_bytes = 1024
        """The usual size of a record, so that not more is read than will be sent."""

    def read_ahead(self, now_ms: int, wanted: int, *, reads: int = EXTENDS_PER_TURN) -> None:
        """Adds records to the core until enough are available or the log ends, and tells it which records retention has
        deleted."""
        core, partition = self._core, self._partition
        self.is_behind = False
        self.trim(now_ms)
        end = partition.end_for(self.isolation)
        for _ in range(reads):
            if core.available_count >= wanted or not core.wants_more(wanted):
                return
            if core.next_offset >= end:
                return
            self._extend(now_ms, end)
        self.is_behind = core.next_offset < end

    def trim(self, now_ms: int) -> None:
        """Tells the core where the log starts."""
        if self._core.start_offset < self._partition.start_offset:
            deleted = self._core.trimmed(now_ms, self._partition.start_offset)
            if deleted:
                self._notices.deleted(deleted)

    def _extend(self, now_ms: int, end: int) -> None:
        core = self._core
        marks = marks_for(core.settings)
        data = self._partition.read(
            Offset(core.next_offset), READ_AHEAD_BYTES, end=Offset(end), at_least_one=True
        )
        if not data:  # compaction removed everything up to the end
            first = core.next_offset
            marks.skip(end - first)
            core.extend(now_ms, end, ScanResult(gaps=[(first, end - 1)], keys=marks.keys, lanes=marks.lanes))
            return
        end, scan = scan_batches(data, core.next_offset, marks, self._aborted_in(data))
        records = max(1, end - core.next_offset)
        self._record_bytes = max(32, len(data) // records)
        core.extend(now_ms, end, scan)
        self._notices.read(now_ms, scan)

    def _aborted_in(self, data: bytes) -> AbortedRanges:
        """Transactions whose records a queue of committed records does not deliver."""
        if self.isolation is Isolation.READ_UNCOMMITTED:
            return NOTHING_ABORTED
        return AbortedRanges(self._partition.aborted_in(Offset(self._core.next_offset), data))

    def deliver(
        self,
        now_ms: int,
        member: str,
        max_records: int,
        max_bytes: int,
        *,
        others: int,
        whole_batches: bool,
        max_unpacked: int | None,
    ) -> LeasedBatches:
        """Leases records and reads them, sharing with so many `others` that wait. Tries again if compaction has removed
        all acquired records."""
        for _ in range(HOLES_PER_TURN):
            self.read_ahead(now_ms, max_records * (others + 1))
            fair = max(1, -(-self._core.available_count // (others + 1)))
            acquired = self._core.acquire(now_ms, member, min(max_records, fair))
            if not acquired:
                break
            delivery = self.fetch(
                now_ms,
                member,
                acquired,
                max_bytes,
                whole_batches=whole_batches and not others,
                max_unpacked=max_unpacked,
            )
            if delivery.acquired:
                return delivery
        return NOTHING

    def fetch(
        self,
        now_ms: int,
        member: str,
        acquired: list[Acquired],
        max_bytes: int,
        *,
        whole_batches: bool,
        max_unpacked: int | None,
    ) -> LeasedBatches:
        """The batches that hold the acquired records. Records that do not fit or cannot be read now are handed back as
        if they had not been delivered; records that compaction has removed are done. Raises an error if nothing could
        be read."""
        batches = Batches(max_bytes, max_unpacked)
        kept: list[Acquired] = []
        for number, given in enumerate(acquired):
            try:
                last, hole_end = self._collect(given, batches)
            except PenstockError:
                for one in acquired[number:]:
                    self._core.hand_back(now_ms, member, one.first, one.last)
                if not kept:
                    raise
                break
            if last >= given.first:
                kept.append(Acquired(given.first, last, given.deliveries))
            if hole_end > last + 1:
                self._finish_hole(now_ms, member, last + 1, given.last, hole_end)
                last = given.last
            if last < given.last:
                self._core.hand_back(now_ms, member, last + 1, given.last)
        if whole_batches and kept and batches.end - 1 > kept[-1].last:
            kept += self._core.acquire(now_ms, member, batches.end - 1 - kept[-1].last, below=batches.end)
        return LeasedBatches(b"".join(batches.parts), kept)

    def _collect(self, given: Acquired, batches: "Batches") -> tuple[int, int]:
        """The last offset of the range that was collected; and, if a gap of the log contains all the rest of the range,
        the end of the gap, otherwise 0."""
        at = max(given.first, batches.end)
        while at <= given.last and (batches.has_space or not batches.parts):
            data, hole_end = self._read(at, given.last, batches)
            if not data:
                return at - 1, hole_end
            batches.take(data)
            at = batches.end
        return min(given.last, at - 1), 0

    def _read(self, first: int, last: int, batches: "Batches") -> tuple[bytes, int]:
        """Batches from the one that holds `first`, none that starts behind `last`; or, if there are none, the end of
        the gap."""
        must = not batches.parts
        wanted = min(batches.bytes_left, (last - first + 1) * self._record_bytes * 2 + 4096)
        end = self._partition.end_for(self.isolation)
        data = self._partition.read(Offset(first), max(1, wanted), end=end, at_least_one=must)
        if not data and wanted < batches.bytes_left:  # a batch larger than usual
            data = self._partition.read(Offset(first), batches.bytes_left, end=end, at_least_one=False)
        if not data:
            return b"", self._core.next_offset if must else 0
        for position, header in iter_headers(data):
            if header.base_offset > last:
                return data[:position], 0 if position else header.base_offset
            if not batches.fits(unpacked_bytes(data, position, header)) and (position or batches.parts):
                return data[:position], 0
        return data, 0

    def _finish_hole(self, now_ms: int, member: str, first: int, last: int, end: int) -> None:
        """Compaction has removed everything from `first` to `end`; this member holds the offsets up to `last`. All of
        it is done, so that consumers that take few messages at a time do not find the same gap again and again."""
        core = self._core
        core.acknowledge(now_ms, member, first, last, _GAP)
        for one in core.acquire(now_ms, member, end - last, below=end):
            if one.first > last:
                core.acknowledge(now_ms, member, one.first, one.last, _GAP)
            else:  # it exists, and was handed back a moment ago because it did not fit
                core.hand_back(now_ms, member, one.first, one.last)


class Batches:
    """Stored batches for one delivery, and how much more may be added."""

    def __init__(self, bytes_left: int, unpacked_left: int | None) -> None:
        self.parts: list[bytes] = []
        self.bytes_left = bytes_left
        self.end = 0
        """The offset behind the last batch."""
        self._unpacked_left = unpacked_left

    @property
    def has_space(self) -> bool:
        return self.bytes_left > 0 and (self._unpacked_left is None or self._unpacked_left > 0)

    def fits(self, unpacked: int) -> bool:
        """Whether a batch of this unpacked size may be added. It is counted in any case: a batch that does not fit ends
        the delivery."""
        if self._unpacked_left is None:
            return True
        self._unpacked_left -= unpacked
        return self._unpacked_left >= 0

    def take(self, data: bytes) -> None:
        self.parts.append(data)
        self.bytes_left -= len(data)
        self.end = _next_offset(data)


def _next_offset(data: bytes) -> int:
    end = 0
    for _, header in iter_headers(data):
        end = header.next_offset
    return end
