"""A worker of a queue on one connection: what it is handed, what it says of it, and where the queue's partitions are.

The leases are the queue's; here only their number is kept, to know how much credit is left. It may be too high for a
while, when leases have run out, and is then counted again once the worker has shown that it is alive: too low would
hand out more than was asked for.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec

from penstock.batch import build_batch, iter_headers, unpacked_total
from penstock.errors import CorruptLog, ErrorCode, KafkaError, PenstockError, StorageError
from penstock.node import Node
from penstock.node.queues import Acknowledgement, Consumer, NotLeased, QueueDriver
from penstock.node.queues.local_queues import held_by_other
from penstock.queue import AckKind
from penstock.types import TopicPartition
from penstock.web.api.jobs import Handed, Opened, OpenedBatches, Range, open_jobs
from penstock.web.api.routing import offloaded
from penstock.web.socket_talk import endpoint_url
from penstock.web.sockets import text_frame
from penstock.web.work_frames import Settle, Work, batch_frame, jobs_frame

PATH = "/v1/work"
UNANSWERED_MAX = 1_000
LOOK_SECONDS = 1.0
"""How often it is looked which partitions this node leads, beside when one is lost."""
LOOK_SOON_SECONDS = 0.1
RECOUNT_SECONDS = 0.25
"""How soon a worker without credit is given the place of jobs whose leases have run out."""
FRAME_BYTES = 256 * 1024
FRAME_JOBS = 5_000
SETTLED_AT_ONCE = 200
"""Ranges in one turn of the loop: some 30 us each."""
WHOLE_FROM = 4
"""Stored batches that hold so many times what is the worker's are not sent as they are: only what is its own, packed
anew. That costs less than what would be sent in vain."""
OPENING_SECONDS = 1.0
"""How long the first word waits for queues that are being opened."""

Notice = Mapping[str, Any]


class Ended(Exception):
    """The worker is to go."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Worker:
    """A consumer of a queue on the partitions that this node leads."""

    def __init__(self, node: Node, wish: Work, peer: str, batches: OpenedBatches) -> None:
        self._node = node
        self._wish = wish
        self._batches = batches
        self.consumer = f"work-{uuid4().hex}"
        self._who = f"{wish.name or self.consumer} at {peer}"
        self._max_credit = node.config.limits.max_credit
        self._credit = min(wish.credit, self._max_credit)
        self._held = 0
        """Jobs in its hands, and those that are being settled: they free their credit when that is durable."""
        self._settling = 0
        """Of these, what is being settled."""
        self._is_awake = True
        """Whether it has said anything since it was last handed something. One that has not may be a process that
        stands still: what it cannot do must not be sent to it again and again, until it has died of it."""
        self._loop = asyncio.get_running_loop()
        self._bell = Consumer()
        self._drivers: dict[TopicPartition, QueueDriver] = {}
        self._opening: dict[TopicPartition, asyncio.Task[QueueDriver]] = {}
        self._look_at = 0.0
        self._notices: list[bytes] = []
        self._answers = asyncio.Semaphore(UNANSWERED_MAX)
        self._unsent_answers = 0
        self._told: Notice | None = None
        self._first = 0
        """Which partition is served first: each time another one."""

    # --- what it says

    async def settle(self, frame: Settle) -> None:
        """Is answered when it is durable."""
        self._is_awake = True
        acknowledgements, returned = frame.acknowledgements(), frame.returned()
        await self._answers.acquire()
        driver = self._drivers.get(frame.place)
        if driver is None:
            message = f"this connection has no jobs of {frame.topic}-{frame.partition}"
            self._settled(frame, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
            return
        self._settling += frame.final_count
        outcomes: list[asyncio.Future[None]] = []
        try:
            for at in range(0, max(1, len(acknowledgements)), SETTLED_AT_ONCE):
                some = acknowledgements[at : at + SETTLED_AT_ONCE]
                outcomes.append(driver.acknowledge(self.consumer, some))
                if at + SETTLED_AT_ONCE < len(acknowledgements):
                    await asyncio.sleep(0)
            refused = await self._hand_back(driver, returned)
        except PenstockError as trouble:
            self._settling -= frame.final_count
            self._settled(frame, trouble)
            return
        asyncio.gather(*outcomes, return_exceptions=True).add_done_callback(
            lambda done: self._durable(frame, _joined([*done.result(), *refused]))
        )

    async def _hand_back(self, driver: QueueDriver, ranges: Sequence[Range]) -> list[NotLeased]:
        """Gives back what nobody has begun, so that it does not count as a delivery; what was refused of it."""
        refused: list[Range] = []
        for at, (first, last) in enumerate(ranges, start=1):
            if not driver.hand_back(self.consumer, first, last):
                refused.append((first, last))
            if at % SETTLED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return [_not_leased(refused)] if refused else []

    def _durable(self, frame: Settle, trouble: BaseException | None) -> None:
        self._settling -= frame.final_count
        self._settled(frame, trouble)

    def _settled(self, frame: Settle, trouble: BaseException | None) -> None:
        notice: dict[str, Any] = {"type": "settled", "number": frame.number}
        refused: frozenset[Range] = frozenset()
        if trouble is not None:
            notice["error"] = _told_of(trouble)
            if isinstance(trouble, NotLeased):
                notice["error"]["refused"] = trouble.ranges
                refused = frozenset(trouble.ranges)
        if trouble is None or refused:
            self._held -= sum(last - first + 1 for first, last in frame.final if (first, last) not in refused)
        self._unsent_answers += 1
        self.tell(notice)

    async def pong(self) -> None:
        """Waits, as a settlement does, while too much is unsent."""
        self._is_awake = True
        await self._answers.acquire()
        self._unsent_answers += 1
        self.tell({"type": "pong"})

    def set_credit(self, credit: int) -> None:
        self._is_awake = True
        self._credit = min(credit, self._max_credit)
        self._bell.set()

    def tell(self, notice: Notice) -> None:
        self._notices.append(text_frame(msgspec.json.encode(notice)))
        self._bell.set()

    def leave(self) -> None:
        """Gives everything back."""
        for task in self._opening.values():
            task.cancel()
        for driver in self._drivers.values():
            driver.forget(self._bell)
            driver.release(self.consumer)

    # --- what it is given

    async def run(self, send: Any) -> None:
        """Hands out and tells, until it is cancelled. Ended says that, and why, the worker must go."""
        while True:
            self._bell.clear()
            await self._look()
            await self._send_notices(send)
            if await self._hand_out(send):
                await asyncio.sleep(0)  # whoever was woken for what is left has its turn first
            elif not self._notices:
                await self._pause()

    async def _send_notices(self, send: Any) -> None:
        if not self._notices:
            return
        notices, self._notices = self._notices, []
        answers, self._unsent_answers = self._unsent_answers, 0
        await send(b"".join(notices))
        for _ in range(answers):
            self._answers.release()

    async def _hand_out(self, send: Any) -> bool:
        """Whether there was something."""
        drivers = list(self._drivers.items())
        self._first += 1
        start = self._first % max(1, len(drivers))
        found = False
        for key, driver in drivers[start:] + drivers[:start]:
            room = self._credit - self._held
            if room <= 0:
                break
            frame = await self._take(key, driver, room)
            if frame:
                await send(frame)
                found = True
        return found

    async def _take(self, key: TopicPartition, driver: QueueDriver, room: int) -> bytes:
        """A frame of jobs; empty if there are none."""
        try:
            delivery = driver.deliver(self.consumer, min(room, FRAME_JOBS), FRAME_BYTES, who=self._who)
        except (KafkaError, StorageError, CorruptLog):
            # Nobody knows when this passes, so nobody rings: it is looked at again after a moment, and not before.
            self._look_at = min(self._look_at, self._loop.time() + LOOK_SOON_SECONDS)
            return b""
        if not delivery.acquired:
            return b""
        acquired = [(one.first, one.last, one.deliveries) for one in delivery.acquired]
        self._held += sum(last - first + 1 for first, last, _ in acquired)
        self._is_awake = False
        if self._wish.encoding == "batch" and not _is_bite(delivery.records, acquired):
            return batch_frame(key, delivery.records, acquired)
        opened, frame = await offloaded(
            unpacked_total(delivery.records), self._framed, key, delivery.records, acquired
        )
        if self._wish.encoding != "batch":
            self._settle_unreadable(driver, AckKind.REJECT, opened.unreadable)
            self._settle_unreadable(driver, AckKind.GAP, opened.missing)
        return frame

    def _framed(self, key: TopicPartition, data: bytes, acquired: list[Handed]) -> tuple[Opened, bytes]:
        """What is in the batches, and a frame of it. In a thread, perhaps."""
        opened = open_jobs(data, acquired, self._batches)
        if self._wish.encoding == "batch":
            return opened, batch_frame(key, _repacked(opened, data), acquired)
        return opened, jobs_frame(key, opened.jobs, self._wish.encoding) if opened.jobs else b""

    def _settle_unreadable(self, driver: QueueDriver, kind: AckKind, ranges: Sequence[Range]) -> None:
        """In the worker's name, who cannot be shown it: it would come again and again."""
        if ranges:
            with suppress(PenstockError):  # the lead has moved meanwhile: the next leader comes upon it, too
                driver.acknowledge(self.consumer, [Acknowledgement(*one, bytes([kind])) for one in ranges])
            self._held -= sum(last - first + 1 for first, last in ranges)

    def _recount(self) -> None:
        """Without what was lost since: leases have run out, partitions have moved. What is being settled is no longer
        leased, and counts until that is durable."""
        leased = sum(driver.held_by(self.consumer) for driver in self._drivers.values())
        self._held = leased + self._settling

    async def _pause(self) -> None:
        """Until something may have changed. Others have their turn in any case: waiting for a bell that has rung
        already would not let them."""
        await asyncio.sleep(0)
        has_room = self._credit > self._held
        if not has_room and self._credit > 0 and self._is_awake:
            self._recount()
            has_room = self._credit > self._held
            if has_room:
                return
        drivers = list(self._drivers.values()) if has_room else []
        for driver in drivers:
            driver.wait(self._bell, self.consumer)
        until = self._look_at if has_room or not self._credit else self._loop.time() + RECOUNT_SECONDS
        try:
            async with asyncio.timeout_at(min(until, self._look_at)):
                await self._bell.wait()
        except TimeoutError:
            pass
        finally:
            for driver in drivers:
                driver.forget(self._bell)

    # --- where the partitions are

    async def _look(self) -> None:
        """Finds the queue on each partition that this node leads, now and then, and when one is lost."""
        now = self._loop.time()
        if now < self._look_at and not any(one.ended for one in self._drivers.values()):
            self._check_seats()
            return
        self._look_at = now + LOOK_SECONDS
        led, elsewhere = self._places()
        for key in led:
            self._open(key)
        if self._told is None and self._opening:
            await asyncio.wait(list(self._opening.values()), timeout=OPENING_SECONDS)
        found = {key: driver for key in led if (driver := self._opened(key)) is not None}
        moved = found != self._drivers
        self._drivers = found
        for driver in found.values():
            driver.attach(self.consumer)
        if moved:
            self._recount()
        self._tell_places(elsewhere)

    def _places(self) -> tuple[list[TopicPartition], list[Notice]]:
        """Partitions that this node leads, and where the others are."""
        led: list[TopicPartition] = []
        elsewhere: list[Notice] = []
        for name in self._wish.topics:
            topic = self._node.metadata.state.topics.get(name)
            if topic is None:
                raise Ended("unknown_topic", f"there is no topic {name!r}")
            if topic.internal:
                raise Ended("invalid_topic", f"{name} is internal: a queue cannot be on it")
            for index in range(topic.partitions):
                leader = self._node.view.partition(topic, index).leader
                if leader == self._node.node_id:
                    led.append(TopicPartition(name, index))
                else:
                    url = endpoint_url(self._node, leader, PATH)
                    elsewhere.append({"topic": name, "partition": index, "node_id": leader, "url": url})
        return led, elsewhere

    def _open(self, key: TopicPartition) -> None:
        """Begins to, unless the queue is there already. Not waited for: one that does not come must not hold up the
        others."""
        driver = self._drivers.get(key)
        config = self._node.group_config(self._wish.queue)
        if key not in self._opening and (driver is None or driver.ended or driver.config != config):
            task = self._opening[key] = asyncio.ensure_future(self._find(key))
            task.add_done_callback(lambda _: self._look_soon(0.0))

    async def _find(self, key: TopicPartition) -> QueueDriver:
        partition = self._node.leader(*key)
        topic = self._node.metadata.state.topics[key.topic]
        return await self._node.queues.manager.driver(self._wish.queue, topic.topic_id, partition)

    def _opened(self, key: TopicPartition) -> QueueDriver | None:
        task = self._opening.get(key)
        driver = self._drivers.get(key)
        if task is not None and task.done():
            del self._opening[key]
            try:
                driver = task.result()
            except KafkaError as refused:
                if refused.code == ErrorCode.POLICY_VIOLATION:
                    raise Ended("refused", refused.message) from None
                self._look_soon(LOOK_SOON_SECONDS)
        return None if driver is None or driver.ended else driver

    def _look_soon(self, seconds: float) -> None:
        self._look_at = min(self._look_at, self._loop.time() + seconds)
        self._bell.set()

    def _check_seats(self) -> None:
        """Tells at once when a seat has become this worker's, or somebody else's."""
        if self._told is not None and any(one.config.exclusive for one in self._drivers.values()):
            self._tell_places(self._told["elsewhere"])

    def _claim_seats(self) -> None:
        """A worker has its seats also while there is nothing to do."""
        for driver in self._drivers.values():
            if driver.config.exclusive:
                with suppress(PenstockError):
                    driver.deliver(self.consumer, 0, 0, who=self._who)

    def _tell_places(self, elsewhere: Sequence[Notice]) -> None:
        self._claim_seats()
        standby: list[Notice] = []
        for key, driver in self._drivers.items():
            other = driver.other_holder(self.consumer)
            if other is None:
                continue
            if not self._wish.standby:
                raise Ended("held", held_by_other(driver, str(other)).message)
            standby.append({"topic": key.topic, "partition": key.partition, "holder": str(other)})
        held = {(one["topic"], one["partition"]) for one in standby}
        partitions = [
            {"topic": key.topic, "partition": key.partition} for key in self._drivers if key not in held
        ]
        config = self._node.group_config(self._wish.queue)
        notice: Notice = {
            "type": "working",
            "queue": self._wish.queue,
            "consumer": self.consumer,
            "lease_ms": config.record_lock_duration_ms,
            "exclusive": config.exclusive,
            "partitions": partitions,
            "standby": standby,
            "elsewhere": list(elsewhere),
        }
        if notice != self._told:
            self._told = notice
            self.tell(notice)


def _is_bite(data: bytes, acquired: Sequence[Handed]) -> bool:
    """Whether these batches hold much more than what is the worker's."""
    count = sum(last - first + 1 for first, last, _ in acquired)
    return sum(header.record_count for _, header in iter_headers(data)) >= WHOLE_FROM * count


def _repacked(opened: Opened, data: bytes) -> bytes:
    """The worker's own records, with their offsets; all that was read if some of it does not unpack."""
    if opened.unreadable or not opened.jobs:
        return data
    records = [job.record for job in opened.jobs]
    return build_batch(records, base_offset=records[0].offset)


def _joined(outcomes: Sequence[object]) -> BaseException | None:
    """What became of a settlement, by what became of its parts."""
    troubles = [one for one in outcomes if isinstance(one, BaseException)]
    refused = [one for one in troubles if isinstance(one, NotLeased)]
    if len(refused) < len(troubles):
        return next(one for one in troubles if not isinstance(one, NotLeased))
    if not refused:
        return None
    ranges = [each for one in refused for each in one.ranges]
    return NotLeased(refused[0].code, refused[0].message, ranges)


def _not_leased(ranges: Sequence[Range]) -> NotLeased:
    first, last = ranges[-1]
    message = f"{first} to {last} are not, or no more, leased to this consumer"
    return NotLeased(ErrorCode.INVALID_RECORD_STATE, message, ranges)


def _told_of(trouble: BaseException) -> dict[str, Any]:
    code = "outcome_unknown"
    if isinstance(trouble, NotLeased):
        code = "lease_over"
    elif isinstance(trouble, KafkaError):
        code = trouble.code.name.lower()
    return {"code": code, "message": str(trouble)}
