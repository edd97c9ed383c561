"""Pages: records of a partition, decoded once for all subscribers that need them.

Subscribers at the end of a partition get the same page, and the same frame made of it. A page is the result of one
read: up to 64 KiB of stored batches, or a single larger one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from penstock.batch import Record, iter_headers, read_records
from penstock.batch.fetched_aborts import AbortedBatches
from penstock.errors import BatchError
from penstock.node.queues.delivery_headers import most_unpacked, times_of
from penstock.node.subscriptions.values import BatchesRead, ReadOutcome, RecordEncoder
from penstock.queue.subscription import Times
from penstock.types import TopicPartition

UNPACKED_BYTES = 4 * 1024 * 1024
"""The unpacked size of one page, by the headers of its batches, apart from a single batch that is larger: a few
kilobytes can unpack to a hundred megabytes."""
FRAME_BYTES = 64 * 1024
"""One frame, unless a single message is larger: a subscriber that does not read holds the rest of one."""
ROW_BYTES = 120
"""The memory of a message in addition to its body."""


class Page:
    """The records from `first` up to `end`. Rows are numbered from 0."""

    __slots__ = (
        "_cuts",
        "_frame",
        "_span",
        "bodies",
        "data",
        "end",
        "first",
        "key",
        "offsets",
        "size",
        "times",
    )

    def __init__(self, key: TopicPartition, first: int, end: int, data: bytes) -> None:
        self.key = key
        self.first = first
        self.end = end
        self.data = data
        self.offsets: list[int] = []
        self.bodies: list[bytes] = []
        self.times: dict[int, Times] = {}
        self.size = 0
        self._cuts: list[int] = []
        self._span: tuple[int, int] | None = None
        self._frame = b""

    def seal(self) -> None:
        """The page is complete: computes its size, and where frames end."""
        sizes = [len(body) for body in self.bodies]
        self.size = sum(sizes) + len(self.data) + ROW_BYTES * len(self.offsets)
        full = 0
        for row, total in enumerate(accumulate(sizes)):
            if total - full > FRAME_BYTES:
                self._cuts.append(max(row, (self._cuts[-1] if self._cuts else 0) + 1))
                full = total - sizes[row]

    def row_from(self, offset: int) -> int:
        """The first row at or behind this offset."""
        return bisect_left(self.offsets, offset)

    def cut_after(self, row: int) -> int:
        """Where a frame that starts with this row has to end."""
        at = bisect_right(self._cuts, row)
        return self._cuts[at] if at < len(self._cuts) else len(self.offsets)

    def frame(self, encoder: RecordEncoder, rows: Sequence[int]) -> bytes:
        """Keeps the last frame: subscribers at the end of the log need the same one."""
        first, last = rows[0], rows[-1]
        if last - first + 1 != len(rows):
            return encoder.frame(self, rows)
        if self._span != (first, last):
            self._frame = encoder.frame(self, rows)
            self._span = first, last
        return self._frame


def open_page(
    key: TopicPartition, read: BatchesRead, first: int, encoder: RecordEncoder
) -> Page | ReadOutcome:
    """The records that were read, from `first` on, without those of aborted transactions. An unreadable batch ends the
    page before it, or is the outcome if it comes first."""
    data, left_out = read.data, AbortedBatches(read.aborted)
    page = Page(key, first, first, data if encoder.keeps_batches else b"")
    unpacked = 0
    for position, header in iter_headers(data):
        is_left_out = left_out.covers(header) or header.control
        if header.next_offset <= page.end:
            continue
        most = 0 if is_left_out else most_unpacked(data, position, header)
        unpacked += most
        if unpacked > UNPACKED_BYTES and page.end > first:
            break
        try:
            records = [] if is_left_out else read_records(data, position, max_bytes=most)
        except BatchError as trouble:
            if page.end == first:
                return ReadOutcome(unreadable_to=header.next_offset, reason=str(trouble))
            break
        for record in records:
            if record.offset >= first:
                _put(page, record, encoder)
        page.end = header.next_offset
    page.seal()
    return page


def _put(page: Page, record: Record, encoder: RecordEncoder) -> None:
    page.offsets.append(record.offset)
    if not encoder.keeps_batches:
        page.bodies.append(encoder.body(page.key, record))
    if record.headers:
        times = times_of(record)
        if times.due_ms is not None or times.expires_ms is not None:
            page.times[record.offset] = Times(times.due_ms, times.expires_ms)
