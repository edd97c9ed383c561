"""One partition as the rest of the broker sees it: append, wait until committed, read, watermark.

Handlers and coordinators reach a log only through this interface, so that Raft can stand behind it without their
noticing: `append` puts a batch into the local log under the leader's term, `committed` waits until it can never be lost
(one node: flushed; a cluster: flushed by a majority), `read` gives stored bytes below the high watermark.

Invariants:
 1. high_watermark only grows while this node leads, and never passes what is flushed.
 2. An append is answered as committed only if its (term, last offset) is committed, not when some offset passed.
 3. Readers see no byte at or above the high watermark.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from penstock.batch import BatchHeader
from penstock.config import TopicConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.log import Appended, Log
from penstock.node.clock import Clock
from penstock.node.waiter import FetchWaiter
from penstock.types import Offset, Term, TopicPartition

log = logging.getLogger("penstock.node")


class Partition:
    """A partition that this node leads."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_loop",
        "_mark_dirty",
        "_pending",
        "_pending_sizes",
        "_refusing",
        "_waiters",
        "closed",
        "config",
        "high_watermark",
        "in_sync_replicas",
        "log",
        "name",
        "term",
    )

    def __init__(
        self,
        *,
        name: TopicPartition,
        log: Log,
        config: TopicConfig,
        term: Term,
        clock: Clock,
        mark_dirty: Callable[["Partition"], None],
    ) -> None:
        self.name = name
        self.log = log
        self.config = config
        self.term = term
        self.closed = False
        self.in_sync_replicas = 1
        self._refusing = False
        self.high_watermark: Offset = log.end_offset
        """Exclusive: the first offset that readers may not see yet. What recovery kept is on the disk."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._mark_dirty = mark_dirty
        self._pending: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self._pending_sizes: deque[tuple[Offset, int]] = deque()
        """Last offset and bytes of each batch that is not committed: what waiting fetches are told when it is."""
        self._waiters: dict[FetchWaiter, None] = {}

    # --- writing

    def append(self, batch: bytearray | memoryview, header: BatchHeader) -> Appended:
        """Writes a checked batch to the local log; it is not committed yet. `batch` is stamped in place."""
        if self.closed:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} was deleted")
        try:
            appended = self.log.append(batch, header, self.term, self._clock.wall_ms())
        except StorageError as refused:
            self._note_refusal(refused)
            raise
        if self._refusing:
            self._refusing = False
            log.warning("%s takes writes again", self.name)
        if not appended.duplicate:
            self._pending_sizes.append((appended.last_offset, header.size))
            self._mark_dirty(self)
        return appended

    def _note_refusal(self, refused: StorageError) -> None:
        """One line when it begins, not one per batch: the log of a full disk may lie on that disk."""
        if not self._refusing:
            self._refusing = True
            log.error("%s refuses writes: %s", self.name, refused)

    def check_in_sync(self) -> None:
        """Refuses acks=all where the topic wants more replicas than there are: the promise could not be kept."""
        if self.config.min_insync_replicas > self.in_sync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.name}: min.insync.replicas={self.config.min_insync_replicas}, in sync: {self.in_sync_replicas}",
            )

    def committed(self, appended: Appended) -> asyncio.Future[None] | None:
        """A future for the moment this append can no longer be lost, or None when that has come already."""
        if appended.last_offset < self.high_watermark:
            return None
        future = self._loop.create_future()
        if self.log.failed is not None:
            future.set_exception(self.log.failed)
        else:
            self._pending.append((appended.last_offset, future))
        return future

    def advance(self) -> None:
        """The log flushed further: moves the watermark, answers what is committed, wakes waiting fetches."""
        flushed = self.log.flushed_offset
        if flushed <= self.high_watermark:
            return
        self.high_watermark = flushed
        pending = self._pending
        while pending and pending[0][0] < flushed:
            future = pending.popleft()[1]
            if not future.done():
                future.set_result(None)
        size_bytes = 0
        sizes = self._pending_sizes
        while sizes and sizes[0][0] < flushed:
            size_bytes += sizes.popleft()[1]
        for waiter in self._waiters:
            waiter.committed(size_bytes)

    def fail(self, error: StorageError | CorruptLog) -> None:
        """A flush failed: nothing pending will ever be committed here."""
        log.error("%s takes no more writes until the next start: %s", self.name, error)
        self._end_pending(error)

    # --- reading

    @property
    def start_offset(self) -> Offset:
        return self.log.start_offset

    def read(self, offset: Offset, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Stored batches from the one that holds `offset`, below the watermark."""
        if self.high_watermark <= offset <= self.log.end_offset:
            return b""
        if offset > self.log.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self.log.start_offset} to {self.high_watermark}, not {offset}",
            )
        return self.log.read(offset, max_bytes, limit=self.high_watermark, at_least_one=at_least_one)

    def end_of_term(self, term: Term) -> tuple[Term, Offset]:
        """Where the reign `term` ended, or the nearest before it. This leader's own has not ended: the log's end."""
        if term == self.term:
            return self.term, self.log.end_offset
        return self.log.end_of_term(term)

    def add_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.pop(waiter, None)

    # --- changing

    def check_epoch(self, client_epoch: int) -> None:
        """A client that knows a newer leader, or an older one, must refresh its metadata first."""
        if client_epoch < 0 or client_epoch == self.term:
            return
        if client_epoch < self.term:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{self.name} is at epoch {self.term}")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self.name} is at epoch {self.term}")

    def delete_records(self, before: Offset) -> Offset:
        """Makes `before` the first offset that can be read; -1 means all that is committed."""
        target = self.high_watermark if before == -1 else before
        if not self.log.start_offset <= target <= self.high_watermark:
            if target < self.log.start_offset and target >= 0:
                return self.log.start_offset
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self.log.start_offset} to {self.high_watermark}, not {target}",
            )
        self.log.delete_prefix(target)
        return self.log.start_offset

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        self.log.reconfigure(config)

    def close(self) -> None:
        """No more appends; whoever waits is told so."""
        self.closed = True
        self._end_pending(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} was closed"))
        for waiter in self._waiters:
            waiter.wake()
        self._waiters.clear()

    def _end_pending(self, error: Exception) -> None:
        while self._pending:
            future = self._pending.popleft()[1]
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: an acks=1 producer may have gone away
