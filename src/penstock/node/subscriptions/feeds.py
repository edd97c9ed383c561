"""Reading for many: whoever wants the same page of the same partition waits for one read of it.

A want is a position in a partition and those who are to be told. One task reads for it: at once if there is something,
else as a long poll at the partition's leader, again and again until there is, or until nobody wants it any more. Pages
stay for a while, in a cache of bounded size, for those who are only a little behind.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from penstock.batch import iter_headers, unpacked_total
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.subscriptions.pages import Page, open_page
from penstock.node.subscriptions.values import FAILED, GONE, Encoder, Outcome, Reader
from penstock.types import NO_TERM, TopicPartition

PAGE_BYTES = 64 * 1024
"""One read: some 100 us of the event loop, and what a subscriber that lags behind holds in memory."""
CACHE_BYTES = 32 * 1024 * 1024
CACHE_SECONDS = 10.0
"""What was deleted from the log is not pushed for longer than this."""
BATCHES_MAX = 32
WAIT_MS = 10_000
"""One long poll. It ends earlier when the leader moves, so this only bounds how long a mistake would last."""
READS_AT_ONCE = 16
"""Reads that do not wait for anything: a subscriber of a thousand partitions must not load a page of each at once."""
ASIDE_FROM_BYTES = 16 * 1024
"""More than this is opened in a thread: as JSON it takes a millisecond."""
RETRY_SECONDS = 0.2

log = logging.getLogger("penstock.subscriptions")

Told = Callable[[Page | Outcome], None]


class Source(NamedTuple):
    """A partition as a subscriber knows it; a topic of the same name that comes later is another one. So is the
    log of a topic in memory under a later leader: it may have begun anew, with other messages at the same offsets."""

    key: TopicPartition
    topic_id: UUID
    term: int = NO_TERM


class Spot(NamedTuple):
    """What is wanted. `alone`: only the message at that offset, with the batch that it is in."""

    source: Source
    encoder: Encoder
    offset: int
    alone: bool = False


class _Kept(NamedTuple):
    page: Page
    since: float


class Want:
    """One who waits. `cancel` when it does not any more."""

    __slots__ = ("_reading", "_told")

    def __init__(self, reading: "_Reading", told: Told) -> None:
        self._reading = reading
        self._told = told
        reading.wants[self] = None

    def tell(self, outcome: Page | Outcome) -> None:
        self._told(outcome)

    def cancel(self) -> None:
        wants = self._reading.wants
        wants.pop(self, None)
        if not wants:
            self._reading.stop()


class _Reading:
    """A task, and those whom it reads for."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self.wants: dict[Want, None] = {}
        self.stop = stop


class Feeds:
    """All reading for subscribers of one node. Lives on its event loop."""

    def __init__(
        self,
        reader: Reader,
        topic_id: Callable[[str], UUID | None],
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._reader = reader
        self._topic_id = topic_id
        self._cache_bytes = cache_bytes
        self._pages: OrderedDict[Spot, _Kept] = OrderedDict()
        self._batches: deque[Spot] = deque(maxlen=BATCHES_MAX)
        """The last ones that were read for a single message."""
        self.cached_bytes = 0
        self._readings: dict[Spot, _Reading] = {}
        self._tasks: dict[Spot, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self.reads = 0
        """Pages that were read and opened, for those who want to know what sharing saves."""

    def get(self, spot: Spot) -> Page | None:
        """The page, if it is at hand."""
        spot = self._same_batch(spot) if spot.alone else spot
        kept = self._pages.get(spot)
        if kept is None:
            return None
        if asyncio.get_running_loop().time() - kept.since >= CACHE_SECONDS:
            self._drop(spot)
            return None
        self._pages.move_to_end(spot)
        return kept.page

    def _same_batch(self, spot: Spot) -> Spot:
        """Messages that were sent together are often due together: the batch of another one may be at hand."""
        for known in self._batches:
            kept = self._pages.get(known) if known[:2] == spot[:2] else None
            if kept is not None and kept.page.first <= spot.offset < kept.page.end:
                return known
        return spot

    def want(self, spot: Spot, told: Told) -> Want:
        """Tells when it has been read, or what came up."""
        reading = self._readings.get(spot)
        if reading is None:
            task = asyncio.get_running_loop().create_task(self._read(spot))
            reading = self._readings[spot] = _Reading(lambda: self._stop(spot, task))
            self._tasks[spot] = task
        return Want(reading, told)

    # --- inside

    def _stop(self, spot: Spot, task: "asyncio.Task[None]") -> None:
        task.cancel()
        if self._tasks.get(spot) is task:
            del self._tasks[spot], self._readings[spot]

    async def _read(self, spot: Spot) -> None:
        try:
            outcome = await self._outcome(spot)
        except Exception:  # whoever waits must hear of it
            log.exception("%s cannot be read for subscribers", spot.source.key)
            outcome = FAILED
        self.reads += 1
        if isinstance(outcome, Page):
            self._keep(spot, outcome)
        reading = self._readings.pop(spot)
        del self._tasks[spot]
        reading.stop = lambda: None
        for want in list(reading.wants):
            want.tell(outcome)

    async def _outcome(self, spot: Spot) -> Page | Outcome:
        """Reading goes by the topic's name. So what comes counts only if that still is the topic's when it has come: it
        may be of another one that was made meanwhile."""
        wait_ms = 0
        while self._is_there(spot):
            try:
                data = await self._bytes(spot, wait_ms)
                if data and (opened := await self._opened(spot, data)) is not None:
                    return opened if self._is_there(spot) else GONE
                wait_ms = WAIT_MS
            except PenstockError as trouble:
                if _is_out_of_range(trouble) and (start := await self._start(spot)) > spot.offset:
                    return Outcome(start=start) if self._is_there(spot) else GONE
                # An election, a leader that does not answer, an offset that was set beyond the end: it may pass.
                await asyncio.sleep(RETRY_SECONDS)
                wait_ms = 0
        return GONE

    def _is_there(self, spot: Spot) -> bool:
        return self._topic_id(spot.source.key.topic) == spot.source.topic_id

    async def _bytes(self, spot: Spot, wait_ms: int) -> bytes:
        max_bytes = 1 if spot.alone else PAGE_BYTES
        if wait_ms:
            return await self._reader.read(spot.source.key, spot.offset, max_bytes=max_bytes, wait_ms=wait_ms)
        async with self._turns:
            return await self._reader.read(spot.source.key, spot.offset, max_bytes=max_bytes, wait_ms=0)

    async def _start(self, spot: Spot) -> int:
        topic, partition = spot.source.key
        return (await self._reader.bounds(topic, [partition]))[partition].start

    async def _opened(self, spot: Spot, data: bytes) -> Page | Outcome | None:
        first = next(iter_headers(data))[1].base_offset if spot.alone else spot.offset
        work = (spot.source.key, data, first, spot.encoder)
        if unpacked_total(data) < ASIDE_FROM_BYTES:
            opened = open_page(*work)
        else:
            opened = await asyncio.get_running_loop().run_in_executor(None, open_page, *work)
        return None if isinstance(opened, Page) and opened.end <= spot.offset else opened

    def _keep(self, spot: Spot, page: Page) -> None:
        if spot in self._pages:
            self._drop(spot)
        self._pages[spot] = _Kept(page, asyncio.get_running_loop().time())
        if spot.alone:
            self._batches.append(spot)
        self.cached_bytes += page.size
        while self.cached_bytes > self._cache_bytes:
            self._drop(next(iter(self._pages)))

    def _drop(self, spot: Spot) -> None:
        self.cached_bytes -= self._pages.pop(spot).page.size


def _is_out_of_range(trouble: PenstockError) -> bool:
    return isinstance(trouble, KafkaError) and trouble.code == ErrorCode.OFFSET_OUT_OF_RANGE
