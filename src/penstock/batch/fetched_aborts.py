"""Which batches of a Fetch response a reader of committed records must leave out.

The response names the aborted transactions by producer and first offset (Kafka's protocol has no end). A transaction
ends at the next marker of its producer, because a producer has one transaction at a time.
"""

from collections.abc import Iterable

from penstock.batch.header import BatchHeader


class AbortedBatches:
    """Tells of each batch whether its records were aborted. Ask about all batches of one response, in their order."""

    __slots__ = ("_ahead", "_open")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: the producer id and the first offset of each transaction."""
        self._ahead = sorted(
            ((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True
        )
        self._open: set[int] = set()

    def covers(self, header: BatchHeader) -> bool:
        """Whether these are records of an aborted transaction; a marker is not."""
        ahead = self._ahead
        while ahead and ahead[-1][0] <= header.last_offset:
            self._open.add(ahead.pop()[1])
        if header.control:
            self._open.discard(header.producer_id)
            return False
        return header.transactional and header.producer_id in self._open
