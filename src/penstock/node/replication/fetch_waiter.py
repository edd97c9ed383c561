"""Fetches that wait for a partition's commits, and others that want to be told of each."""

import asyncio

from penstock.types import Isolation


class CommitWatcher:
    """Told of the commits of a partition. `isolation`: a reader of committed records is told of bytes when their
    transactions have ended."""

    __slots__ = ("isolation",)

    def __init__(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> None:
        self.isolation = isolation

    def committed(self, size_bytes: int) -> None:
        """Readers may see so many bytes more."""
        raise NotImplementedError

    def wake(self) -> None:
        """Something changed that bytes do not count: a deletion, a truncation, another leader, the end of a
        transaction."""
        raise NotImplementedError


class FetchWaiter(CommitWatcher):
    """A fetch that waits until enough bytes are committed on any of its partitions. Counts committed bytes down from
    what is still missing; the future is done at zero.

    Counting instead of reading again on every commit keeps a waiting fetch free of charge: a thousand waiting
    partitions cost one subtraction for the one that moved. A reader of committed records is woken when a transaction
    ends, however many bytes that are.
    """

    __slots__ = ("_missing_bytes", "future")

    def __init__(
        self,
        missing_bytes: int,
        future: asyncio.Future[None],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> None:
        super().__init__(isolation)
        self._missing_bytes = missing_bytes
        self.future = future

    def committed(self, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Ends the wait at once."""
        if not self.future.done():
            self.future.set_result(None)
