"""Reading the log for a queue: ahead, to learn which records there are, and what a consumer is handed."""

from penstock.batch import iter_headers, unpacked_bytes
from penstock.errors import PenstockError
from penstock.node.queues.delivery_headers import scan_batches
from penstock.node.queues.values import Delivery
from penstock.node.replication.partition import Partition
from penstock.queue import AckKind, Acquired, QueuePartition, ScanResult
from penstock.types import Isolation, Offset

READ_AHEAD_BYTES = 1024 * 1024
"""What is read from the log at once to learn which records there are."""
EXTENDS_PER_TURN = 16
"""Reads in one turn of the loop: a long stretch of deferred or deleted records must not hold up everybody else."""

_GAP = bytes([AckKind.GAP])


class LogReader:
    """Reads one partition for the core of one queue."""

    def __init__(
        self, core: QueuePartition, partition: Partition, isolation: Isolation, *, with_keys: bool
    ) -> None:
        self._core = core
        self._partition = partition
        self._with_keys = with_keys
        self.isolation = isolation
        self.is_behind = False
        """Whether there is more than could be looked at in one turn."""
        self._record_bytes = 1024
        """The usual size of a record here, so that no more is read than will be sent."""

    def ahead(self, now_ms: int, wanted: int, *, reads: int = EXTENDS_PER_TURN) -> None:
        """The core learns of more records, as long as there are some and too few are available; and of what the log
        has deleted, which nobody can be handed any more."""
        core, partition = self._core, self._partition
        self.is_behind = False
        if core.start_offset < partition.start_offset:
            core.trimmed(now_ms, partition.start_offset)
        end = partition.end_for(self.isolation)
        for _ in range(reads):
            if core.available_count >= wanted or not core.wants_more(wanted):
                return
            if core.next_offset >= end:
                return
            self._extend(now_ms, end)
        self.is_behind = core.next_offset < end

    def _extend(self, now_ms: int, end: int) -> None:
        core = self._core
        data = self._partition.read(
            Offset(core.next_offset), READ_AHEAD_BYTES, end=Offset(end), at_least_one=True
        )
        if not data:  # compaction took all that was left
            first = core.next_offset
            keys = [None] * (end - first) if self._with_keys else ()
            core.extend(now_ms, end, ScanResult(gaps=[(first, end - 1)], keys=keys))
            return
        end, scan = scan_batches(data, core.next_offset, keys=self._with_keys)
        records = max(1, end - core.next_offset)
        self._record_bytes = max(32, len(data) // records)
        core.extend(now_ms, end, scan)

    def fetch(
        self,
        now_ms: int,
        member: str,
        acquired: list[Acquired],
        max_bytes: int,
        *,
        whole_batches: bool,
        max_unpacked: int | None,
    ) -> Delivery:
        """The batches that hold what was acquired. What does not fit, or cannot be read now, goes back as if it had not
        been handed out; what compaction has taken since is done. An error is raised if nothing could be read."""
        taken = _Taken(max_bytes, max_unpacked)
        kept: list[Acquired] = []
        for number, given in enumerate(acquired):
            try:
                last, hole_end = self._collect(given, taken)
            except PenstockError:
                for one in acquired[number:]:
                    self._core.hand_back(now_ms, member, one.first, one.last)
                if not kept:
                    raise
                break
            if last >= given.first:
                kept.append(Acquired(given.first, last, given.deliveries))
            if hole_end > last + 1:
                self._fill_hole(now_ms, member, last + 1, given.last, hole_end)
                last = given.last
            if last < given.last:
                self._core.hand_back(now_ms, member, last + 1, given.last)
        if whole_batches and kept and taken.end - 1 > kept[-1].last:
            kept += self._core.acquire(now_ms, member, taken.end - 1 - kept[-1].last, below=taken.end)
        return Delivery(b"".join(taken.parts), kept)

    def _collect(self, given: Acquired, taken: "_Taken") -> tuple[int, int]:
        """The last offset that is in what was taken; and where a hole of the log ends that has all the rest of the
        range, or 0."""
        at = max(given.first, taken.end)
        while at <= given.last and (taken.has_room or not taken.parts):
            data, hole_end = self._read(at, given.last, taken)
            if not data:
                return at - 1, hole_end
            taken.take(data)
            at = taken.end
        return min(given.last, at - 1), 0

    def _read(self, first: int, last: int, taken: "_Taken") -> tuple[bytes, int]:
        """Batches from the one that holds `first`, none that begins behind `last`; or where the hole ends in which
        there are none."""
        must = not taken.parts
        wanted = min(taken.room, (last - first + 1) * self._record_bytes * 2 + 4096)
        end = self._partition.end_for(self.isolation)
        data = self._partition.read(Offset(first), max(1, wanted), end=end, at_least_one=must)
        if not data and wanted < taken.room:  # a batch larger than usual
            data = self._partition.read(Offset(first), taken.room, end=end, at_least_one=False)
        if not data:
            return b"", self._core.next_offset if must else 0
        for position, header in iter_headers(data):
            if header.base_offset > last:
                return data[:position], 0 if position else header.base_offset
            if not taken.bears(unpacked_bytes(data, position, header)) and (position or taken.parts):
                return data[:position], 0
        return data, 0

    def _fill_hole(self, now_ms: int, member: str, first: int, last: int, end: int) -> None:
        """Compaction has taken all from `first` to `end`, of which this member holds what is up to `last`. All that the
        core knows there is done, so that those who take few at a time do not find it again and again."""
        core = self._core
        core.acknowledge(now_ms, member, first, last, _GAP)
        for one in core.acquire(now_ms, member, end - last, below=end):
            if one.first > last:
                core.acknowledge(now_ms, member, one.first, one.last, _GAP)
            else:  # it is in the log, and was put back a moment ago because it did not fit
                core.hand_back(now_ms, member, one.first, one.last)


class _Taken:
    """Stored batches that go to a consumer, and how much more may."""

    def __init__(self, room: int, unpacked_room: int | None) -> None:
        self.parts: list[bytes] = []
        self.room = room
        self.end = 0
        """Behind the last one."""
        self._unpacked_room = unpacked_room

    @property
    def has_room(self) -> bool:
        return self.room > 0 and (self._unpacked_room is None or self._unpacked_room > 0)

    def bears(self, unpacked: int) -> bool:
        """Whether so much more may be unpacked. It is counted in any case: what does not fit ends the delivery."""
        if self._unpacked_room is None:
            return True
        self._unpacked_room -= unpacked
        return self._unpacked_room >= 0

    def take(self, data: bytes) -> None:
        self.parts.append(data)
        self.room -= len(data)
        self.end = _next_offset(data)


def _next_offset(data: bytes) -> int:
    end = 0
    for _, header in iter_headers(data):
        end = header.next_offset
    return end
