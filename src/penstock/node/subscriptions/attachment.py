"""One subscriber at work: pages come in, frames go out, positions are written down.

Everything is decided by the core (`penstock.queue.subscription`). Here its lanes are supplied with pages, its timers
run, and what changed is committed: one write at a time, with all that was acked meanwhile.

A lane is *hungry* (its next page has to be asked for), *waiting* (it has been), or *ready* (its page is here). Ready
lanes take turns, a frame each. What the pages of one subscriber hold is bounded: past HELD_BYTES a page that comes is
put down again, and its lane is hungry until there is room. A subscriber that does not read what it is sent stops its
own pump, in `send`, and costs the others nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from penstock.errors import KafkaError, PenstockError
from penstock.node.subscriptions.feeds import Feeds, Source, Spot, Want
from penstock.node.subscriptions.pages import Page
from penstock.node.subscriptions.stats import PushCounts
from penstock.node.subscriptions.store import SubscriptionStore
from penstock.node.subscriptions.values import FAILED, Ending, Notice, Outcome, Refused, Send, Wish
from penstock.queue.subscription import ANY_TIME, Ack, Position, Subscriber
from penstock.types import NO_TERM, TopicPartition

HELD_BYTES = 256 * 1024
"""Pages that one subscriber holds; one page may be larger."""
BURST_FRAMES = 4
"""Sending need not wait for anything, and others have frames, too: so many, then it is their turn."""
DUE_AT_ONCE = 16
"""Messages whose time has come that are read again at once."""
SAVE_SECONDS = 0.05
"""Between two commits of one subscriber: a thousand subscribers that ack each message are not a thousand times as many
writes as there are messages."""
TOUCHES_PER_TTL = 3
TOUCH_MS_MAX = 3_600_000
SLACK_MS = 5_000
"""How late a busy node may be to renew a TTL."""

RANGES_TOLD = 100
"""Ranges beyond the offset that an `acked` frame names: as many fit into what is stored, however large the numbers."""

INACTIVE = "inactive"
MOVED = "unavailable"


class Attachment:
    """A subscriber that is connected. `run` serves it until it is told why it has to end."""

    def __init__(
        self,
        wish: Wish,
        positions: Iterable[Position],
        topic_ids: dict[str, UUID],
        *,
        terms: dict[TopicPartition, int],
        feeds: Feeds,
        store: SubscriptionStore,
        now_ms: Callable[[], int],
        counts: PushCounts,
    ) -> None:
        self.wish = wish
        self.core = Subscriber(wish.settings, positions)
        self.topic_ids = topic_ids
        self.terms = terms
        """Of the leaders in whose logs its positions are, of topics whose logs may begin anew: those in memory."""
        self.ending: Ending | None = None
        self.touch_ms = min(max(wish.ttl_ms // TOUCHES_PER_TTL, 1), TOUCH_MS_MAX)
        self.keep_ms = wish.ttl_ms + 2 * self.touch_ms + SLACK_MS
        """While it is attached. Should the node die, the TTL is longer by that; it is never shorter."""
        self._feeds = feeds
        self._store = store
        self._now_ms = now_ms
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._hungry: deque[TopicPartition] = deque(self.core.keys)
        self._waiting: dict[TopicPartition, Want] = {}
        self._ready: deque[TopicPartition] = deque()
        self._pages: dict[TopicPartition, Page] = {}
        self._held_bytes = 0
        self._fetching: dict[tuple[TopicPartition, int], Want] = {}
        self._due: deque[tuple[TopicPartition, int, Page]] = deque()
        self._notices: deque[Notice] = deque()
        self._awake = asyncio.Event()
        self._due_timer: asyncio.TimerHandle | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._touching = False
        self._told = asyncio.Event()
        self._ended = asyncio.Event()
        self.since_ms = self.touched_ms = now_ms()

    # --- life

    async def run(self, send: Send) -> Ending:
        """Pushes until it ends; says why it does."""
        burst = 0
        while self.ending is None:
            self._awake.clear()
            frame = self._next()
            if frame is not None:
                await send(frame)
                burst += 1
                if burst % BURST_FRAMES == 0:
                    await asyncio.sleep(0)
            elif self.ending is None:
                self._set_due_timer()
                if self._awake.is_set():
                    await asyncio.sleep(
                        0
                    )  # a page of which nothing is to be sent; there may be many in a row
                await self._awake.wait()
        return self.ending

    def end(self, ending: Ending) -> None:
        """The first reason counts."""
        if self.ending is None:
            self.ending = ending
            self._awake.set()
            self._told.set()

    async def told_to_end(self) -> None:
        """Returns when it has to end, whatever the pump is doing."""
        await self._told.wait()

    async def close(self) -> None:
        """Lets go of everything, after what was acked is written down. The TTL counts from here."""
        self.end(Ending("closed", "the connection has ended"))
        assert self.ending is not None
        self._let_go()
        try:
            if self._saving is not None:
                await asyncio.wait([self._saving])
            if self.ending.is_home:
                await self._write(self.core.positions(), keep_ms=self.wish.ttl_ms)
        finally:
            self._ended.set()

    async def closed(self) -> None:
        """Returns when `close` has."""
        await self._ended.wait()

    def _let_go(self) -> None:
        for want in (*self._waiting.values(), *self._fetching.values()):
            want.cancel()
        for timer in (self._due_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._fetching.clear()
        self._pages.clear()

    # --- what the subscriber says

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

    # --- what the cluster says

    def add_partition(self, key: TopicPartition) -> None:
        """A partition that was not there before: all of it is new."""
        self.core.add(Position(key, 0))
        self._hungry.append(key)
        self._awake.set()

    def drop_topic(self, topic: str) -> None:
        """It was deleted. The others go on."""
        self.topic_ids.pop(topic, None)
        for key in [key for key in self.core.keys if key.topic == topic]:
            self.core.drop(key)
            want = self._waiting.pop(key, None)
            if want is not None:
                want.cancel()
            self._put_down(key)
        self.tell({"type": "gone", "topic": topic})
        if not self.topic_ids:
            self.end(Ending("unknown_topic", "all topics of this subscription were deleted"))

    def tell(self, notice: Notice) -> None:
        self._notices.append(notice)
        self._awake.set()

    # --- sending

    def _next(self) -> bytes | Notice | None:
        """What is to be sent now, if anything."""
        if self._notices:
            return self._notices.popleft()
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
                self._put_down(key)
                self._hungry.append(key)
            else:
                self._ready.append(key)
            if rows:
                self._counts.pushed += len(rows)
                return page.frame(self.wish.encoder, rows)
        self._feed()
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

    def _put_down(self, key: TopicPartition) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self._held_bytes -= page.size

    # --- supplying the lanes

    def _feed(self) -> None:
        """Asks for pages as long as there is credit to send, and room to hold them."""
        while self._hungry and self.core.credit_left and self._held_bytes < HELD_BYTES:
            key = self._hungry.popleft()
            position = self.core.next_offset(key)
            if position is None:
                continue
            spot = Spot(self._source(key), self.wish.encoder, position)
            page = self._feeds.get(spot)
            if page is not None:
                self._hold(key, page)
            else:
                self._waiting[key] = self._feeds.want(spot, partial(self._came, key))

    def _source(self, key: TopicPartition) -> Source:
        return Source(key, self.topic_ids[key.topic], self.terms.get(key, NO_TERM))

    def _came(self, key: TopicPartition, outcome: Page | Outcome) -> None:
        if self._waiting.pop(key, None) is None or self.ending is not None:
            return
        if isinstance(outcome, Page):
            if self._held_bytes < HELD_BYTES:
                self._hold(key, outcome)
            else:
                self._hungry.append(key)
        else:
            self._came_otherwise(key, outcome)
        self._awake.set()

    def _hold(self, key: TopicPartition, page: Page) -> None:
        self._pages[key] = page
        self._held_bytes += page.size
        self._ready.append(key)
        self._awake.set()

    def _came_otherwise(self, key: TopicPartition, outcome: Outcome) -> None:
        if outcome is FAILED:
            self.end(Ending("internal_error", outcome.reason))
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
        self._hungry.append(key)

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

    # --- what is due

    def _fetch_due(self) -> None:
        now_ms = self._now_ms()
        while len(self._fetching) + len(self._due) < DUE_AT_ONCE:
            found = self.core.pop_due(now_ms)
            if found is None:
                return
            key, offset = found
            spot = Spot(self._source(key), self.wish.encoder, offset, alone=True)
            page = self._feeds.get(spot)
            if page is not None:
                self._due.append((key, offset, page))
            else:
                self._fetching[found] = self._feeds.want(spot, partial(self._due_came, key, offset))

    def _due_came(self, key: TopicPartition, offset: int, outcome: Page | Outcome) -> None:
        if self._fetching.pop((key, offset), None) is None or self.ending is not None:
            return
        if isinstance(outcome, Page):
            self._due.append((key, offset, outcome))
        elif outcome is FAILED:
            self.end(Ending("internal_error", outcome.reason))
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
                return page.frame(self.wish.encoder, [row])
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
        self.end(Ending(INACTIVE, message))

    # --- writing down

    def touch(self) -> None:
        """The subscription is in use: its TTL begins anew."""
        self.touched_ms = self._now_ms()
        self._touching = True
        self._start_saving()

    def _start_saving(self) -> None:
        if (self.core.has_changes or self._touching) and self._saving is None and self.ending is None:
            self._saving = self._loop.create_task(self._save())

    async def _save(self) -> None:
        while (self.core.has_changes or self._touching) and self.ending is None:
            changes = self.core.take_changes()
            positions = self.core.positions() if self._touching else changes
            self._touching = False
            if not await self._write(positions, keep_ms=self.keep_ms):
                return
            stored = [place_told(position) for position in changes if position.key.topic in self.topic_ids]
            if stored:
                self.tell({"type": "acked", "positions": stored})
            await asyncio.sleep(SAVE_SECONDS)
        self._saving = None

    async def _write(self, positions: Iterable[Position], *, keep_ms: int) -> bool:
        try:
            gone = await self._store.save(
                self.wish.name,
                positions,
                topic_ids=self.topic_ids,
                ttl_ms=self.wish.ttl_ms,
                keep_ms=keep_ms,
                terms=self.terms,
            )
        except KafkaError as moved:
            self.end(Ending(MOVED, f"{moved.message}; subscribe again", is_home=False))
            return False
        except Refused as refused:
            self.end(Ending(refused.code, refused.message, is_home=False))
            return False
        except PenstockError as trouble:
            self.end(Ending(MOVED, f"{trouble}; subscribe again", is_home=False))
            return False
        if self.ending is None:
            for topic in dict.fromkeys(key.topic for key in gone):
                self.drop_topic(topic)
        return True


def place_told(position: Position) -> dict[str, object]:
    told: dict[str, object] = {
        "topic": position.key.topic,
        "partition": position.key.partition,
        "offset": position.offset,
    }
    if position.done:
        told["done"] = [(first, end - 1) for first, end in position.done[:RANGES_TOLD]]
    return told
