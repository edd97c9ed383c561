"""Reads the log for a queue whose lanes have owners: until the consumer that asks, or one that waits, has messages.

The next messages of one owner may be far behind those of another one that is slow. So the queue reads on while
messages of others are available, up to `QueueSettings.max_ahead`.
"""

from collections.abc import Callable, Iterable, Sequence

from penstock.batch import iter_headers
from penstock.errors import PenstockError
from penstock.node.queues.log_reader import EXTENDS_PER_TURN, HOLES_PER_TURN, Batches, LogReader
from penstock.node.queues.values import NOTHING, LeasedBatches
from penstock.queue.values import AckKind, Acquired

_GAP = bytes([AckKind.GAP])

RECORDS_PER_TURN = 2_000
"""The most records of one delivery: some 10 ms of the event loop's time, from here to the frame that carries them."""
SHARED_BYTES_FACTOR = 4
"""How many times the bytes that the consumer asked for are read at most, to find its records among those of others."""


class LaneReader(LogReader):
    """Reads one partition for the core of one queue with lanes."""

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
        """Leases records of the member's lanes and reads them. Nothing is shared with the `others` that wait: their
        lanes are other ones. Batches hold records of all owners, so their bytes count for all of them."""
        owners = self._core.lanes.owner_count if self._core.lanes is not None else 1
        max_bytes *= min(owners, SHARED_BYTES_FACTOR)
        for _ in range(HOLES_PER_TURN):
            self.read_until(now_ms, lambda: self._core.may_get(member))
            acquired = self._acquire(now_ms, member, max_records, max_bytes)
            if not acquired:
                break
            delivery = self.fetch(
                now_ms, member, acquired, max_bytes, whole_batches=False, max_unpacked=max_unpacked
            )
            if delivery.acquired:
                return delivery
        return NOTHING

    def read_until(self, now_ms: int, is_enough: Callable[[], bool]) -> None:
        """Adds records to the core until that is enough, the log ends, or the limits are reached."""
        core = self._core
        self.is_behind = False
        self.trim(now_ms)
        end = self._partition.end_for(self.isolation)
        for _ in range(EXTENDS_PER_TURN):
            if is_enough() or core.next_offset >= end or not core.wants_more(1):
                return
            self._extend(now_ms, end)
        self.is_behind = core.next_offset < end

    def _acquire(self, now_ms: int, member: str, max_records: int, max_bytes: int) -> list[Acquired]:
        """Only messages whose batches can be expected to fit: each one that does not would be handed back by itself,
        because the messages between them are those of others."""
        core = self._core
        max_records = min(max_records, RECORDS_PER_TURN)
        while max_records > 0 and core.may_get(member):
            first = core.lanes.first_for(member) if core.lanes is not None else None
            below = (first or 0) + max(1, max_bytes // self._record_bytes)
            acquired = core.acquire(now_ms, member, max_records, below=below)
            if acquired:
                return acquired
            # `first` was finished some other way, and is not listed any more
        return []

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
        """As in the base class, with one read for all records: most are single ones, between those of others."""
        batches = Batches(max_bytes, max_unpacked)
        try:
            last, hole_end = self._collect(Acquired(acquired[0].first, acquired[-1].last, 0), batches)
        except PenstockError:
            if not batches.parts:
                self._hand_back(now_ms, member, acquired)
                raise
            last, hole_end = batches.end - 1, 0
        end = max(last + 1, hole_end)
        data = b"".join(batches.parts)
        kept, missing, rest = _split(acquired, _covered(data), end)
        for first, missing_last, _ in missing:
            self._core.acknowledge(now_ms, member, first, missing_last, _GAP)
        self._hand_back(now_ms, member, rest)
        return LeasedBatches(data, kept)

    def _hand_back(self, now_ms: int, member: str, acquired: Iterable[Acquired]) -> None:
        for one in acquired:
            self._core.hand_back(now_ms, member, one.first, one.last)


def _covered(data: bytes) -> list[tuple[int, int]]:
    """The ranges of offsets (first, end) that these batches hold, ascending. Compaction may have removed some between
    them."""
    found: list[tuple[int, int]] = []
    for _, header in iter_headers(data):
        if found and found[-1][1] == header.base_offset:
            found[-1] = found[-1][0], header.next_offset
        else:
            found.append((header.base_offset, header.next_offset))
    return found


def _split(
    acquired: Iterable[Acquired], covered: Sequence[tuple[int, int]], end: int
) -> tuple[list[Acquired], list[Acquired], list[Acquired]]:
    """Those that are in the batches; those before `end` that are in none, because compaction has removed them; and
    those from `end` on, which were not read."""
    kept: list[Acquired] = []
    missing: list[Acquired] = []
    rest: list[Acquired] = []
    at = 0
    for given in acquired:
        while at < len(covered) and covered[at][1] <= given.first:
            at += 1
        start, stop = covered[at] if at < len(covered) else (end, end)
        if start <= given.first and given.last < stop:
            kept.append(given)
            continue
        for offset in range(given.first, given.last + 1):
            one = Acquired(offset, offset, given.deliveries)
            if offset >= end:
                rest.append(one)
            elif any(first <= offset < behind for first, behind in covered):
                kept.append(one)
            else:
                missing.append(one)
    return kept, missing, rest
