"""The status log: events of the broker, as records of a topic.

`tell` puts an event into memory and returns; about twice a second a task collects the waiting events into one batch and
sends it to the leader of the topic. Nothing else in the broker ever waits for it:

1. *Bounded.* At most MAX_WAITING events wait. The oldest are dropped and counted, and an event says how many.
2. *At least once while the node lives.* A batch that could not be written is tried again; a batch whose answer was lost
   may be there twice. Events that wait when the process is killed are lost.
3. *No echo.* The log reports nothing that it causes itself: neither the creation of its topic, nor its leader. Its own
   problems are logged as warnings, and only errors become events. A repeated error becomes an event once a minute.
4. *Connections come in floods.* Of those that open and close within one collection only the first become single events,
   and the others one sum for each protocol (`connection_events`).
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from penstock.batch import Record, build_batch
from penstock.cluster import Topic
from penstock.errors import PenstockError
from penstock.node.calls import BROKER
from penstock.node.scheduling.clock import Clock
from penstock.node.status.connection_events import CONNECTION, Crowds
from penstock.node.status.events import DROPPED, SUMMARY, PendingEvent, encode
from penstock.types import Caller

log = logging.getLogger("penstock.status")

COLLECT_SECONDS = 0.5
RETRY_SECONDS = 1.0
"""After a failure: the forwarder has already retried for a while."""
STOP_SECONDS = 1.0
"""How long a stopping node waits for its last events to be written."""
MAX_WAITING = 5_000
"""Events in memory: about a megabyte, and some minutes of a busy broker whose status topic has no leader."""
MAX_BATCH = 200
"""Events in one record batch: far below the megabyte that a topic accepts, unless every text has the maximal length."""

ECHOES = frozenset({"topic.created", "leader.elected"})
"""Kinds that the log would cause itself."""

SAME_ERROR_SECONDS = 60.0
ERRORS_REMEMBERED = 100

TOPIC_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * 60 * 60 * 1000),
    "retention.bytes": str(64 * 1024 * 1024),
    # Retention deletes whole segments: an eighth of the whole, or a day, is how far it may be off.
    "segment.bytes": str(8 * 1024 * 1024),
    "segment.ms": str(24 * 60 * 60 * 1000),
    "max.message.bytes": str(2 * 1024 * 1024),
}
"""Configs of the topic, if the log creates it. An existing topic is used as it is."""


class Carrier(Protocol):
    """Sends batches to a topic: the RecordForwarder of the node."""

    async def topic(
        self, name: str, *, caller: Caller, partitions: int = ..., configs: Mapping[str, str] | None = ...
    ) -> Topic: ...

    async def append(self, topic: Topic, index: int, batch: bytes, *, caller: Caller) -> int: ...


class StatusLog:
    """Takes events from its node, on the event loop, and writes them."""

    def __init__(self, topic: str, *, node_id: int, clock: Clock, watches_errors: bool = True) -> None:
        """`watches_errors`: whether errors in the broker's log become events."""
        self._topic = topic
        self._node_id = node_id
        self._clock = clock
        self._waiting: deque[PendingEvent] = deque()
        self._dropped = 0
        self._crowds = Crowds()
        self._told = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._errors: ErrorWatch | None = None
        self._watches_errors = watches_errors
        self._is_open = False
        self._in_trouble = False

    # --- telling

    def tell(self, kind: str, /, **facts: object) -> None:
        """EventSink. A microsecond or two; never fails, whatever the facts are."""
        if kind in ECHOES and facts.get("topic") == self._topic:
            return
        wall_ms = self._clock.wall_ms()
        if not kind.startswith(CONNECTION) or self._crowds.is_single(kind, facts.get("protocol"), wall_ms):
            self._waiting.append(PendingEvent(wall_ms, kind, facts))
            self._bound()
        self._told.set()

    def _bound(self) -> None:
        while len(self._waiting) > MAX_WAITING:
            oldest = self._waiting.popleft()
            count = oldest.facts["count"] if oldest.kind == DROPPED else 1
            assert isinstance(count, int)
            self._dropped += count

    # --- life

    def start(self, carrier: Carrier, ready: Callable[[], Awaitable[None]]) -> None:
        """Starts to write when `ready` returns. Earlier events wait until then."""
        loop = asyncio.get_running_loop()
        if self._watches_errors:
            self._errors = ErrorWatch(self, loop)
            logging.getLogger("penstock").addHandler(self._errors)
        self._task = loop.create_task(self._run(carrier, ready))

    async def stop(self) -> None:
        """Writes the waiting events, if that takes only a moment. Called while the node still serves."""
        if self._errors is not None:
            logging.getLogger("penstock").removeHandler(self._errors)
        if self._task is not None:
            self._stopping.set()
            self._told.set()
            if self._is_open:
                await asyncio.wait([self._task], timeout=STOP_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, carrier: Carrier, ready: Callable[[], Awaitable[None]]) -> None:
        try:
            await ready()
        except PenstockError:
            return  # a node that is not admitted has nowhere to write to, and says so itself
        self._is_open = True
        while True:
            await self._told.wait()
            await self._pause(COLLECT_SECONDS)
            is_written = await self._hand_over(carrier)
            if self._stopping.is_set():
                return
            if not is_written:
                await self._pause(RETRY_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Shorter when the node stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # --- writing

    async def _hand_over(self, carrier: Carrier) -> bool:
        """Whether all events are written."""
        while batch := self._take():
            try:
                await self._write(carrier, batch)
            except PenstockError as trouble:
                self._put_back(batch)
                if not self._in_trouble:
                    log.warning(
                        "%s cannot be written, and its events wait in memory: %s", self._topic, trouble
                    )
                self._in_trouble = True
                return False
            except Exception:
                # A second attempt would fail again, and all later events would wait for ever.
                log.exception("a bug in the status log; %d events are lost", len(batch))
            self._in_trouble = False
        self._told.clear()
        return True

    async def _write(self, carrier: Carrier, batch: list[PendingEvent]) -> None:
        rows = self._rows(batch)
        if rows:
            topic = await carrier.topic(self._topic, caller=BROKER, partitions=1, configs=TOPIC_CONFIGS)
            await carrier.append(topic, 0, build_batch(rows), caller=BROKER)

    def _rows(self, batch: list[PendingEvent]) -> list[Record]:
        """Each record's own time is the event's."""
        rows: list[Record] = []
        for told in batch:
            try:
                rows.append(Record(len(rows), told.wall_ms, None, encode(told, self._node_id), ()))
            except TypeError:
                log.exception("a bug: the event %s cannot have the fields %s", told.kind, list(told.facts))
        return rows

    def _take(self) -> list[PendingEvent]:
        batch: list[PendingEvent] = []
        if self._dropped:
            batch.append(PendingEvent(self._clock.wall_ms(), DROPPED, {"count": self._dropped}))
            self._dropped = 0
        while self._waiting and len(batch) < MAX_BATCH:
            batch.append(self._waiting.popleft())
        if not self._waiting:
            batch += [PendingEvent(self._clock.wall_ms(), SUMMARY, facts) for facts in self._crowds.sum_up()]
        return batch

    def _put_back(self, batch: list[PendingEvent]) -> None:
        self._waiting.extendleft(reversed(batch))
        self._bound()


class ErrorWatch(logging.Handler):
    """Turns log records of level error into events, from any thread."""

    def __init__(self, told: StatusLog, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(logging.ERROR)
        self._status_log = told
        self._loop = loop
        self._thread = threading.get_ident()
        self._lately: dict[str, float] = {}
        """When each error last became an event."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == log.name:
            return
        facts = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["exception"] = repr(record.exc_info[1])
        if self._thread == threading.get_ident():
            self._tell(facts)
        else:
            with suppress(RuntimeError):  # the loop may be closed by now
                self._loop.call_soon_threadsafe(self._tell, facts)

    def _tell(self, facts: dict[str, str]) -> None:
        now = self._loop.time()
        text = facts["message"]
        if now - self._lately.get(text, -SAME_ERROR_SECONDS) < SAME_ERROR_SECONDS:
            return
        self._lately.pop(text, None)
        self._lately[text] = now
        if len(self._lately) > ERRORS_REMEMBERED:
            del self._lately[next(iter(self._lately))]
        self._status_log.tell("error", **facts)
