"""The session of one connected subscriber: it reads pages, sends frames, and commits positions.

The core (`penstock.queue.subscription`) decides everything. The session gets pages for its partitions, runs its timers,
and commits its changes: one write at a time, with all acks that arrived meanwhile.

The next page of a partition is *wanted*, *waited for* (requested), or *ready*. Ready partitions take turns, a frame
each. The pages of one subscriber are bounded: beyond PAGE_BYTES_MAX a page that arrives is dropped, and is wanted again
when there is space. A frame is made when the connection takes it. A subscriber that does not read its frames costs the
others nothing, and after a moment it holds no pages: only the rest of its last frame.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from penstock.errors import KafkaError, PenstockError
from penstock.node.subscriptions.page_reader import PageKey, PageReader, PageWaiter, Source
from penstock.node.subscriptions.pages import Page
from penstock.node.subscriptions.stats import PushCounts
from penstock.node.subscriptions.store import SubscriptionStore
from penstock.node.subscriptions.values import (
    FAILED,
    ControlFrame,
    EndReason,
    FrameSink,
    ReadOutcome,
    SubscribeRefused,
    SubscribeRequest,
)
from penstock.queue.subscription import ANY_TIME, Ack, Position, Subscriber
from penstock.types import NO_TERM, TopicPartition

PAGE_BYTES_MAX = 256 * 1024
"""Pages that one subscriber holds; a single page may be larger."""
KEEP_PAGES_SECONDS = 1.0
"""How long a subscriber that does not read keeps its pages: thousands of them must not fill the memory."""
BURST_FRAMES = 4
"""Frames before other subscribers get their turn: sending may complete without waiting."""
DUE_READS_MAX = 16
"""Due messages that are read again at the same time."""
SAVE_SECONDS = 0.05
"""Between two commits of one subscriber: a thousand subscribers that ack each message must not cause a thousand writes
per message."""
RENEWALS_PER_TTL = 3
RENEW_MS_MAX = 3_600_000
SLACK_MS = 5_000
"""How late a busy node may be to renew a TTL."""

MAX_LISTED_RANGES = 100
"""Ranges of one position in an `acked` frame: as many fit into the stored metadata, however large the numbers."""

INACTIVE = "inactive"
MOVED = "unavailable"


class SubscriberSession:
    """A connected subscriber. `run` serves it until there is a reason to end."""

    def __init__(
        self,
        request: SubscribeRequest,
        positions: Iterable[Position],
        topic_ids: dict[str, UUID],
        *,
        terms: dict[TopicPartition, int],
        reader: PageReader,
        store: SubscriptionStore,
        now_ms: Callable[[], int],
        counts: PushCounts,
    ) -> None:
        self.request = request
        self.core = Subscriber(request.settings, positions)
        self.topic_ids = topic_ids
        self.terms = terms
        """The terms of the leaders in whose logs the positions are; only for topics in memory, whose logs may be
        replaced."""
        self.ending: EndReason | None = None
        self.renew_ms = min(max(request.ttl_ms // RENEWALS_PER_TTL, 1), RENEW_MS_MAX)
        self.retention_ms = request.ttl_ms + 2 * self.renew_ms + SLACK_MS
        """How long positions are kept while it is attached. If the node dies, the TTL is longer by the difference,
        never shorter."""
        self._reader = reader
        self._store = store
        self._now_ms = now_ms
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._wanted: deque[TopicPartition] = deque(self.core.keys)
        self._waiting: dict[TopicPartition, PageWaiter] = {}
        self._ready: deque[TopicPartition] = deque()
        self._pages: dict[TopicPartition, Page] = {}
        self._page_bytes = 0
        self._is_stuck = False
        """The subscriber does not read, and holds no pages."""
        self._fetching: dict[tuple[TopicPartition, int], PageWaiter] = {}
        self._due: deque[tuple[TopicPartition, int, Page]] = deque()
        self._due_again: deque[tuple[TopicPartition, int]] = deque()
        """Due messages whose pages were dropped."""
        self._notices: deque[ControlFrame] = deque()
        self._pongs = 0
        """Pings to answer. A number takes no memory, however many a subscriber sends that does not read."""
        self._awake = asyncio.Event()
        self._due_timer: asyncio.TimerHandle | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._renewing = False
        self._told = asyncio.Event()
        self._ended = asyncio.Event()
        self.since_ms = self.renewed_ms = now_ms()

    # --- running and ending

    async def run(self, sink: FrameSink) -> EndReason:
        """Pushes messages until it ends; returns the reason."""
        burst = 0
        while self.ending is None:
            self._awake.clear()
            await self._wait_for_room(sink)
            frame = self._next()
            if frame is not None:
                await sink.send(frame)
                burst += 1
                if burst % BURST_FRAMES == 0:
                    await asyncio.sleep(0)
            elif self.ending is None:
                self._set_due_timer()
                if self._awake.is_set():
                    await asyncio.sleep(0)  # no message of this page is sent now; many such pages may follow
                await self._awake.wait()
        return self.ending

    async def _wait_for_room(self, sink: FrameSink) -> None:
        if not await sink.has_room(KEEP_PAGES_SECONDS):
            self._drop_pages()
            self._is_stuck = True
            await sink.wait_for_room()
            self._is_stuck = False

    def _drop_pages(self) -> None:
        """They are read again when the subscriber goes on to read."""
        self._ready.clear()
        self._wanted.extend(self._pages)
        for key in list(self._pages):
            self._drop_page(key)
        self._due_again.extend((key, offset) for key, offset, _ in self._due)
        self._due.clear()

    def end(self, ending: EndReason) -> None:
        """The first reason counts."""
        if self.ending is None:
            self.ending = ending
            self._awake.set()
            self._told.set()

    async def told_to_end(self) -> None:
        """Returns when it has to end, whatever `run` is doing."""
        await self._told.wait()

    async def close(self) -> None:
        """Cancels everything, and commits the acked positions. The TTL starts now."""
        self.end(EndReason("closed", "the connection has ended"))
        assert self.ending is not None
        self._cancel_all()
        try:
            if self._saving is not None:
                await asyncio.wait([self._saving])
            if self.ending.may_save:
                await self._write(self.core.positions(), retention_ms=self.request.ttl_ms)
        finally:
            self._ended.set()

    async def closed(self) -> None:
        """Returns when `close` has returned."""
        await self._ended.wait()

    def _cancel_all(self) -> None:
        for waiter in (*self._waiting.values(), *self._fetching.values()):
            waiter.cancel()
        for timer in (self._due_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._fetching.clear()
        self._pages.clear()

    # --- frames of the subscriber

    def ack(self, key: TopicPartition, offset: int) -> Ack:
        outcome = self.core.ack(key, offset)
        if outcome is Ack.NEW:
            self._counts.acks += 1
            self._start_saving()
            self._awake.set()
        return outcome

    def set_credit(self, credit: int) -> None:
        self.core.set_credit(credit)
        self._awake.set()

    # --- changes of the cluster

    def add_partition(self, key: TopicPartition) -> None:
        """A partition that was added to its topic: all of it is new."""
        self.core.add(Position(key, 0))
        self._wanted.append(key)
        self._awake.set()

    def drop_topic(self, topic: str) -> None:
        """The topic was deleted. The subscription continues with the others."""
        self.topic_ids.pop(topic, None)
        for key in [key for key in self.core.keys if key.topic == topic]:
            self.core.drop(key)
            waiter = self._waiting.pop(key, None)
            if waiter is not None:
                waiter.cancel()
            self._drop_page(key)
        self._due_again = deque(due for due in self._due_again if due[0].topic != topic)
        self.tell({"type": "gone", "topic": topic})
        if not self.topic_ids:
            self.end(EndReason("unknown_topic", "all topics of this subscription were deleted"))

    def tell(self, notice: ControlFrame) -> None:
        self._notices.append(notice)
        self._awake.set()

    def pong(self) -> None:
        """Answers a ping, in turn."""
        self._pongs += 1
        self._awake.set()

    # --- sending

    def _next(self) -> bytes | ControlFrame | None:
        """The next frame to send, if there is one."""
        if self._notices:
            return self._notices.popleft()
        if self._pongs:
            self._pongs -= 1
            return {"type": "pong"}
        self._fetch_due()
        frame = self._next_due() or self._next_ready()
        if frame is not None:
            self._watch_acks()
        self._start_saving()
        return frame

    def _next_ready(self) -> bytes | None:
        for _ in range(len(self._ready)):
            if not self.core.credit_left:
                break
            key = self._ready.popleft()
            if (page := self._pages.get(key)) is None:
                continue
            rows = self._offer(key, page)
            if self._position(key) >= page.end:
                self._drop_page(key)
                self._wanted.append(key)
            else:
                self._ready.append(key)
            if rows:
                self._counts.pushed += len(rows)
                return page.frame(self.request.encoder, rows)
        self._request_pages()
        return None

    def _offer(self, key: TopicPartition, page: Page) -> list[int]:
        first = page.row_from(self._position(key))
        return self.core.offer(
            self._now_ms(), key, page.offsets, page.times, stop=page.cut_after(first), end=page.end
        )

    def _position(self, key: TopicPartition) -> int:
        position = self.core.next_offset(key)
        assert position is not None, "a lane that was dropped has no page"
        return position

    def _drop_page(self, key: TopicPartition) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self._page_bytes -= page.size

    # --- reading pages

    def _request_pages(self) -> None:
        """Requests pages as long as there is credit for messages and space for pages."""
        while self._wanted and self.core.credit_left and self._page_bytes < PAGE_BYTES_MAX:
            key = self._wanted.popleft()
            position = self.core.next_offset(key)
            if position is None:
                continue
            page_key = PageKey(self._source(key), self.request.encoder, position)
            page = self._reader.get(page_key)
            if page is not None:
                self._add_page(key, page)
            else:
                self._waiting[key] = self._reader.request(page_key, partial(self._page_read, key))

    def _source(self, key: TopicPartition) -> Source:
        term = self.terms.get(key, NO_TERM)
        return Source(key, self.topic_ids[key.topic], term, self.request.isolation)

    def _page_read(self, key: TopicPartition, outcome: Page | ReadOutcome) -> None:
        if self._waiting.pop(key, None) is None or self.ending is not None:
            return
        if isinstance(outcome, Page):
            if self._page_bytes < PAGE_BYTES_MAX and not self._is_stuck:
                self._add_page(key, outcome)
            else:
                self._wanted.append(key)
        else:
            self._page_missing(key, outcome)
        self._awake.set()

    def _add_page(self, key: TopicPartition, page: Page) -> None:
        self._pages[key] = page
        self._page_bytes += page.size
        self._ready.append(key)
        self._awake.set()

    def _page_missing(self, key: TopicPartition, outcome: ReadOutcome) -> None:
        if outcome is FAILED:
            self.end(EndReason("internal_error", outcome.reason))
            return
        first = self._position(key)
        if outcome.start is not None:
            self.core.trimmed(key, outcome.start)
            self._tell_skipped(key, first, outcome.start, "deleted before it was sent")
        elif outcome.unreadable_to is not None:
            self.core.unreadable(key, outcome.unreadable_to)
            self._tell_skipped(key, first, outcome.unreadable_to, outcome.reason)
        else:
            self.drop_topic(key.topic)
            return
        self._wanted.append(key)

    def _tell_skipped(self, key: TopicPartition, first: int, end: int, reason: str) -> None:
        topic, partition = key
        self.tell(
            {
                "type": "skipped",
                "topic": topic,
                "partition": partition,
                "first": first,
                "last": end - 1,
                "reason": reason,
            }
        )

    # --- due messages

    def _fetch_due(self) -> None:
        now_ms = self._now_ms()
        while len(self._fetching) + len(self._due) < DUE_READS_MAX:
            found = self._due_again.popleft() if self._due_again else self.core.pop_due(now_ms)
            if found is None:
                return
            key, offset = found
            page_key = PageKey(self._source(key), self.request.encoder, offset, single=True)
            page = self._reader.get(page_key)
            if page is not None:
                self._due.append((key, offset, page))
            else:
                self._fetching[found] = self._reader.request(page_key, partial(self._due_read, key, offset))

    def _due_read(self, key: TopicPartition, offset: int, outcome: Page | ReadOutcome) -> None:
        if self._fetching.pop((key, offset), None) is None or self.ending is not None:
            return
        if isinstance(outcome, Page) and self._is_stuck:
            self._due_again.append((key, offset))
        elif isinstance(outcome, Page):
            self._due.append((key, offset, outcome))
        elif outcome is FAILED:
            self.end(EndReason("internal_error", outcome.reason))
        else:
            self.core.skip(key, offset)
        self._awake.set()

    def _next_due(self) -> bytes | None:
        while self._due:
            key, offset, page = self._due.popleft()
            row = page.row_from(offset)
            is_there = row < len(page.offsets) and page.offsets[row] == offset
            if not is_there or page.times.get(offset, ANY_TIME).is_over(self._now_ms()):
                self.core.skip(key, offset)
            elif self.core.send_due(self._now_ms(), key, offset):
                self._counts.pushed += 1
                return page.frame(self.request.encoder, [row])
        return None

    def _set_due_timer(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        due_ms = self.core.next_due_ms
        if due_ms is not None:
            wait = max(0.0, (due_ms - self._now_ms()) / 1000)
            self._due_timer = self._loop.call_later(wait, self._awake.set)

    # --- acks

    def _watch_acks(self) -> None:
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(
                self.core.settings.ack_timeout_ms / 1000, self._check_acks
            )

    def _check_acks(self) -> None:
        self._ack_timer = None
        due_ms, now_ms = self.core.ack_due_ms, self._now_ms()
        if due_ms is None or self.ending is not None:
            return
        if due_ms > now_ms:
            self._ack_timer = self._loop.call_later((due_ms - now_ms) / 1000, self._check_acks)
            return
        waited = self.core.settings.ack_timeout_ms
        message = f"a message was not acked within {waited} ms: subscribe again to go on where the acks ended"
        self.end(EndReason(INACTIVE, message))

    # --- committing positions

    def renew_ttl(self) -> None:
        """The subscription is in use: its TTL starts again."""
        self.renewed_ms = self._now_ms()
        self._renewing = True
        self._start_saving()

    def _start_saving(self) -> None:
        if (self.core.has_changes or self._renewing) and self._saving is None and self.ending is None:
            self._saving = self._loop.create_task(self._save())

    async def _save(self) -> None:
        while (self.core.has_changes or self._renewing) and self.ending is None:
            changes = self.core.take_changes()
            positions = self.core.positions() if self._renewing else changes
            self._renewing = False
            if not await self._write(positions, retention_ms=self.retention_ms):
                return
            stored = [position_json(position) for position in changes if position.key.topic in self.topic_ids]
            if stored:
                self.tell({"type": "acked", "positions": stored})
            await asyncio.sleep(SAVE_SECONDS)
        self._saving = None

    async def _write(self, positions: Iterable[Position], *, retention_ms: int) -> bool:
        try:
            gone = await self._store.save(
                self.request.name,
                positions,
                topic_ids=self.topic_ids,
                ttl_ms=self.request.ttl_ms,
                retention_ms=retention_ms,
                terms=self.terms,
            )
        except KafkaError as moved:
            self.end(EndReason(MOVED, f"{moved.message}; subscribe again", may_save=False))
            return False
        except SubscribeRefused as refused:
            self.end(EndReason(refused.code, refused.message, may_save=False))
            return False
        except PenstockError as trouble:
            self.end(EndReason(MOVED, f"{trouble}; subscribe again", may_save=False))
            return False
        if self.ending is None:
            for topic in dict.fromkeys(key.topic for key in gone):
                self.drop_topic(topic)
        return True


def position_json(position: Position) -> dict[str, object]:
    told: dict[str, object] = {
        "topic": position.key.topic,
        "partition": position.key.partition,
        "offset": position.offset,
    }
    if position.done:
        told["done"] = [(first, end - 1) for first, end in position.done[:MAX_LISTED_RANGES]]
    return told
