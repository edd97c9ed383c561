"""A fetch that waits until enough bytes are committed on any of its partitions."""

import asyncio

from penstock.types import Isolation


class FetchWaiter:
    """Counts committed bytes down from what is still missing; the future is done at zero.

    Counting instead of reading again on every commit keeps a waiting fetch free of charge: a thousand waiting
    partitions cost one subtraction for the one that moved. A reader of committed records is told of bytes when their
    transactions have ended; then it is woken, however many bytes that are.
    """

    __slots__ = ("_missing_bytes", "future", "isolation")

    def __init__(
        self,
        missing_bytes: int,
        future: asyncio.Future[None],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> None:
        self._missing_bytes = missing_bytes
        self.future = future
        self.isolation = isolation

    def committed(self, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Ends the wait at once: the answer changed in a way that bytes do not count (deletion, truncation)."""
        if not self.future.done():
            self.future.set_result(None)
