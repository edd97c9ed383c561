"""Reads pages for many subscribers: all that need the same page of the same partition share one read.

One task reads each requested page: at once if there are records, otherwise by long polls at the partition's leader,
until there are some or no subscriber waits any more. A leader that cannot be read from is asked again after the pauses
of the one retry policy, for as long as a subscriber waits: a subscription outlives any election. Each attempt is one
request, because a request that looked for its leader would keep its slot (READS_AT_ONCE) from other reads.

Pages stay in a bounded cache for a while, for subscribers that are only a little behind.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from penstock.batch import iter_headers, unpacked_total
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls.retry import CallRetry
from penstock.node.subscriptions.pages import Page, open_page
from penstock.node.subscriptions.values import (
    FAILED,
    GONE,
    BatchesRead,
    PartitionReader,
    ReadOutcome,
    RecordEncoder,
)
from penstock.types import NO_TERM, Isolation, TopicPartition

PAGE_BYTES = 64 * 1024
"""One read: some 100 us of the event loop, and the memory of a subscriber that lags behind."""
CACHE_BYTES = 32 * 1024 * 1024
CACHE_SECONDS = 10.0
"""Records that were deleted from the log are pushed for at most this long."""
BATCHES_MAX = 32
WAIT_MS = 10_000
"""One long poll. It ends earlier when the leader changes, so this only bounds how long a mistake would last."""
READS_AT_ONCE = 16
"""Reads without waiting: a subscriber of a thousand partitions must not load a page of each at once."""
THREAD_FROM_BYTES = 16 * 1024
"""Larger pages are decoded in a thread: as JSON it takes a millisecond."""

log = logging.getLogger("penstock.subscriptions")

OnRead = Callable[[Page | ReadOutcome], None]


class Source(NamedTuple):
    """A partition of a topic with this id: a later topic of the same name is another source. So is the log of a topic
    in memory under a later leader: it may be a new log, with other messages at the same offsets. Readers of committed
    records share no pages with others."""

    key: TopicPartition
    topic_id: UUID
    term: int = NO_TERM
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class PageKey(NamedTuple):
    """A page from an offset on. `single`: only the message at that offset, with its batch."""

    source: Source
    encoder: RecordEncoder
    offset: int
    single: bool = False


class _CachedPage(NamedTuple):
    page: Page
    since: float


class PageWaiter:
    """A subscriber that waits for a page, until `cancel`."""

    __slots__ = ("_on_read", "_reading")

    def __init__(self, reading: "_SharedRead", on_read: OnRead) -> None:
        self._reading = reading
        self._on_read = on_read
        reading.waiters[self] = None

    def tell(self, outcome: Page | ReadOutcome) -> None:
        self._on_read(outcome)

    def cancel(self) -> None:
        waiters = self._reading.waiters
        waiters.pop(self, None)
        if not waiters:
            self._reading.stop()


class _SharedRead:
    """A task that reads a page, and its waiters."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self.waiters: dict[PageWaiter, None] = {}
        self.stop = stop


class PageReader:
    """Reads for all subscribers of one node. Lives on its event loop."""

    def __init__(
        self,
        reader: PartitionReader,
        topic_id: Callable[[str], UUID | None],
        retry: Callable[[], CallRetry],
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._reader = reader
        self._retry = retry
        self._topic_id = topic_id
        self._cache_bytes = cache_bytes
        self._pages: OrderedDict[PageKey, _CachedPage] = OrderedDict()
        self._batches: deque[PageKey] = deque(maxlen=BATCHES_MAX)
        """The last ones that were read for a single message."""
        self.cached_bytes = 0
        self._readings: dict[PageKey, _SharedRead] = {}
        self._tasks: dict[PageKey, asyncio.Task[None]] = {}
        self._read_slots = asyncio.Semaphore(READS_AT_ONCE)
        self.reads = 0
        """How many pages were read and decoded; shows what sharing saves."""

    def get(self, key: PageKey) -> Page | None:
        """The page, if it is in the cache."""
        key = self._same_batch(key) if key.single else key
        kept = self._pages.get(key)
        if kept is None:
            return None
        if asyncio.get_running_loop().time() - kept.since >= CACHE_SECONDS:
            self._drop(key)
            return None
        self._pages.move_to_end(key)
        return kept.page

    def _same_batch(self, key: PageKey) -> PageKey:
        """Messages that were sent together are often due together: the batch of another one may be in the cache."""
        for known in self._batches:
            kept = self._pages.get(known) if known[:2] == key[:2] else None
            if kept is not None and kept.page.first <= key.offset < kept.page.end:
                return known
        return key

    def request(self, key: PageKey, on_read: OnRead) -> PageWaiter:
        """Calls `on_read` with the page, or with the reason why there is none."""
        reading = self._readings.get(key)
        if reading is None:
            task = asyncio.get_running_loop().create_task(self._read(key))
            reading = self._readings[key] = _SharedRead(lambda: self._stop(key, task))
            self._tasks[key] = task
        return PageWaiter(reading, on_read)

    # --- inside

    def _stop(self, key: PageKey, task: "asyncio.Task[None]") -> None:
        task.cancel()
        if self._tasks.get(key) is task:
            del self._tasks[key], self._readings[key]

    async def _read(self, key: PageKey) -> None:
        try:
            outcome = await self._outcome(key)
        except Exception:  # waiters must be told of any error
            log.exception("%s cannot be read for subscribers", key.source.key)
            outcome = FAILED
        self.reads += 1
        if isinstance(outcome, Page):
            self._keep(key, outcome)
        reading = self._readings.pop(key)
        del self._tasks[key]
        reading.stop = lambda: None
        for waiter in list(reading.waiters):
            waiter.tell(outcome)

    async def _outcome(self, key: PageKey) -> Page | ReadOutcome:
        """Reads use the topic's name. So a page counts only if the name still belongs to the same topic afterwards:
        otherwise it may be of another topic that was created meanwhile."""
        wait_ms = 0
        retry = self._retry()
        while self._exists(key):
            try:
                read = await self._batches_from(key, wait_ms)
                if isinstance(read, ReadOutcome):
                    return read if self._exists(key) else GONE
                if read.data and (opened := await self._opened(key, read)) is not None:
                    return opened if self._exists(key) else GONE
                wait_ms = WAIT_MS
            except KafkaError:
                await retry.pause()
                wait_ms = 0
        return GONE

    def _exists(self, key: PageKey) -> bool:
        return self._topic_id(key.source.key.topic) == key.source.topic_id

    async def _batches_from(self, key: PageKey, wait_ms: int) -> BatchesRead | ReadOutcome:
        """Stored batches, or where the log starts if that is after the page's offset. KafkaError also if the offset is
        beyond the end."""
        source, max_bytes = key.source, 1 if key.single else PAGE_BYTES
        read = partial(
            self._reader.read, source.key, key.offset, max_bytes=max_bytes, isolation=source.isolation
        )
        try:
            if wait_ms:
                return await read(wait_ms=wait_ms)
            async with self._read_slots:
                return await read(wait_ms=0)
        except KafkaError as problem:
            if (
                problem.code != ErrorCode.OFFSET_OUT_OF_RANGE
                or (start := await self._start(key)) <= key.offset
            ):
                raise
            return ReadOutcome(start=start)

    async def _start(self, key: PageKey) -> int:
        topic, partition = key.source.key
        return (await self._reader.bounds(topic, [partition]))[partition].start

    async def _opened(self, key: PageKey, read: BatchesRead) -> Page | ReadOutcome | None:
        first = next(iter_headers(read.data))[1].base_offset if key.single else key.offset
        work = (key.source.key, read, first, key.encoder)
        if unpacked_total(read.data) < THREAD_FROM_BYTES:
            opened = open_page(*work)
        else:
            opened = await asyncio.get_running_loop().run_in_executor(None, open_page, *work)
        return None if isinstance(opened, Page) and opened.end <= key.offset else opened

    def _keep(self, key: PageKey, page: Page) -> None:
        if key in self._pages:
            self._drop(key)
        self._pages[key] = _CachedPage(page, asyncio.get_running_loop().time())
        if key.single:
            self._batches.append(key)
        self.cached_bytes += page.size
        while self.cached_bytes > self._cache_bytes:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: PageKey) -> None:
        self.cached_bytes -= self._pages.pop(key).page.size
