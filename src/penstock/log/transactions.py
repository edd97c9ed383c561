"""The transactions of one log: the open ones, those whose end is not committed yet, and the aborted ones.

A transaction begins on a partition with its first batch there, and ends with a marker. All of this follows from the
batches, one after the other; snapshots hold it as of their offset. The rules are Kafka's:

 1. The last stable offset is the least of: the first offset of an open transaction, the first offset of one whose
    marker is at or above the high watermark, the high watermark. Below it every record is decided, and the decision
    cannot be lost: a leader that showed records of a transaction whose marker is not committed might be followed by one
    that lacks the marker, and the transaction might end the other way.
 2. A marker of a producer without an open transaction ends nothing. It is stored all the same, and may raise the
    producer's epoch.
 3. Deletion of the prefix does not end a transaction. The last stable offset is then the log's start until the marker
    comes: `Partition.end_for` is never below the start.

Ended transactions are in memory only, and recovery does not list those that it reads. A replica shows records only when
it leads and an entry of its own term is committed, and by then all that it has recovered is committed too. For the same
reason a log is compacted only when all that it recovered is committed.
"""

from collections import OrderedDict, deque
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.log.aborted import AbortedIndex, AbortedTransaction

MAX_OPEN_TRANSACTIONS = 10_000
"""Per partition. Each keeps its producer in memory, for as long as its coordinator allows; past the limit a leader
refuses the first batch of another one."""
NEVER = 2**63 - 1


class EndedTransaction(NamedTuple):
    """A transaction whose marker may still be lost."""

    marker_offset: int
    first_offset: int


class Transactions:
    """All transactions of one partition that matter for its readers."""

    __slots__ = ("_ended_from", "_max_open", "aborted", "ended", "open")

    def __init__(self, max_open: int = MAX_OPEN_TRANSACTIONS) -> None:
        self.open: OrderedDict[int, int] = OrderedDict()
        """The first offset of each open transaction by producer id, rising: `next(iter())` is the first one. A plain
        dictionary would pass over all deleted entries before it."""
        self.ended: deque[EndedTransaction] = deque()
        """In the order of their markers, until these are committed."""
        self.aborted = AbortedIndex()
        self._ended_from = NEVER
        """The least first offset in `ended`."""
        self._max_open = max_open

    @property
    def first_unstable(self) -> int:
        """The first offset that is not decided, or whose decision may still be lost; NEVER if there is none."""
        return min(self._open_from(), self._ended_from)

    def _open_from(self) -> int:
        return next(iter(self.open.values())) if self.open else NEVER

    def last_stable(self, high_watermark: int) -> int:
        """(1)"""
        return min(self.first_unstable, high_watermark)

    def check_room(self, producer_id: int) -> None:
        """Refuses the first batch of a transaction where too many are open."""
        if producer_id not in self.open and len(self.open) >= self._max_open:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{self._max_open} transactions are open on this partition, the most",
            )

    # --- from the batches

    def begin(self, producer_id: int, offset: int) -> None:
        """The producer has written a transactional batch at this offset. Only the first one matters."""
        if producer_id not in self.open:
            self.open[producer_id] = offset

    def end(self, producer_id: int, marker_offset: int, *, commit: bool, is_committed: bool) -> None:
        """A marker of this producer is in the log. `is_committed`: the marker cannot be lost any more."""
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None:  # (2)
            return
        if not is_committed:
            self.ended.append(EndedTransaction(marker_offset, first_offset))
            self._ended_from = min(self._ended_from, first_offset)
        if not commit:
            stable = min(self._open_from(), marker_offset + 1)
            self.aborted.add(AbortedTransaction(producer_id, first_offset, marker_offset, stable))

    def committed(self, high_watermark: int) -> None:
        """Markers below this offset cannot be lost any more."""
        ended = self.ended
        while ended and ended[0].marker_offset < high_watermark:
            ended.popleft()
        self._ended_from = min((one.first_offset for one in ended), default=NEVER)

    # --- the ends of the log

    def trim(self, start_offset: int) -> None:
        self.aborted.trim(start_offset)

    def truncate(self, offset: int, rebuilt: "Transactions") -> None:
        """Removes markers and beginnings from `offset` on. `rebuilt` is the state that the rest of the log gives: it
        has the transactions that removed markers had ended. If no snapshot covers a deleted prefix, it lacks those that
        began there; the ones that are open here stay."""
        first_offsets = {pid: first for pid, first in self.open.items() if first < offset} | rebuilt.open
        self._set_open(first_offsets)
        self.ended = deque(one for one in self.ended if one.marker_offset < offset)
        self._ended_from = min((one.first_offset for one in self.ended), default=NEVER)
        self.aborted.truncate(offset)

    def _set_open(self, first_offsets: dict[int, int]) -> None:
        self.open.clear()
        self.open.update(sorted(first_offsets.items(), key=lambda item: item[1]))

    # --- in snapshots

    def restore(self, first_offsets: list[tuple[int, int]], aborted: bytes) -> None:
        """(producer id, first offset) of each open transaction, and the encoded index of the aborted ones."""
        self._set_open(dict(first_offsets))
        self.ended.clear()
        self._ended_from = NEVER
        self.aborted.decode(aborted)
