"""Requests that wait for a partition: producers for their acknowledgement, fetches for committed bytes, and others for
the next flush."""

import asyncio
from collections import deque

from penstock.node.replication.fetch_waiter import CommitWatcher
from penstock.types import Isolation, Offset

EVERYTHING = Offset(2**63 - 1)


class PendingRequests:
    """Acknowledgements in the order of their offsets, fetches, and waits for a flush."""

    __slots__ = ("_acks", "_flushes", "fetches", "stable_fetches", "uncommitted")

    def __init__(self) -> None:
        self._acks: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self.uncommitted: deque[tuple[Offset, int]] = deque()
        """Last offset and size in bytes of each uncommitted batch: when it is committed, waiting fetches count it."""
        self.fetches: dict[CommitWatcher, None] = {}
        self.stable_fetches: dict[CommitWatcher, None] = {}
        """Those that read committed records only: up to the last stable offset."""
        self._flushes: list[asyncio.Future[None]] = []

    def add(self, last_offset: Offset, future: asyncio.Future[None]) -> None:
        self._acks.append((last_offset, future))

    def acknowledge(self, below: Offset) -> None:
        """Completes every append that ends below this offset."""
        acks = self._acks
        while acks and acks[0][0] < below:
            future = acks.popleft()[1]
            if not future.done():
                future.set_result(None)

    # --- fetches

    def add_fetch(self, fetch: CommitWatcher) -> None:
        self._waiting(fetch)[fetch] = None

    def remove_fetch(self, fetch: CommitWatcher) -> None:
        self._waiting(fetch).pop(fetch, None)

    def _waiting(self, fetch: CommitWatcher) -> dict[CommitWatcher, None]:
        return self.stable_fetches if fetch.isolation is Isolation.READ_COMMITTED else self.fetches

    def clear_fetches(self) -> None:
        self.fetches.clear()
        self.stable_fetches.clear()

    def committed(self, watermark: Offset, is_stable: bool) -> None:
        """Tells fetches how many bytes more they can read, and wakes the waits for a flush. `is_stable`: no transaction
        keeps these bytes from readers of committed records."""
        size_bytes, uncommitted = 0, self.uncommitted
        while uncommitted and uncommitted[0][0] < watermark:
            size_bytes += uncommitted.popleft()[1]
        for fetch in self.fetches:
            fetch.committed(size_bytes)
        if is_stable:
            for fetch in self.stable_fetches:
                fetch.committed(size_bytes)
        self.flushed()

    def wake_stable(self) -> None:
        """A transaction has ended: its records were committed before, and not counted for these fetches."""
        for fetch in self.stable_fetches:
            fetch.wake()

    # --- flushes, and the end of a term

    def next_flush(self) -> asyncio.Future[None]:
        """A future for the next flush, commit, change of leader, or failure of the log."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append(future)
        return future

    def flushed(self) -> None:
        if not self._flushes:
            return
        waiting, self._flushes = self._flushes, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception, below: Offset = EVERYTHING) -> None:
        """Fails the appends that end below this offset: this leader will not acknowledge them."""
        acks = self._acks
        while acks and acks[0][0] < below:
            future = acks.popleft()[1]
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: an acks=1 producer may have disconnected

    def end_term(self, error: Exception) -> None:
        """The leader or the term has changed: appends fail, and fetches look again."""
        self.fail(error)
        self.uncommitted.clear()
        self.wake()

    def wake(self) -> None:
        self.flushed()
        for fetch in self.fetches:
            fetch.wake()
        self.wake_stable()
