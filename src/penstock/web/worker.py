"""A worker of a queue on one connection: delivers jobs to it, settles them, and tells it which nodes lead the queue's
partitions.

The leases belong to the queue; this class keeps only their number, to know how much credit is left. The number may be
too high for a while, when leases have run out, and is counted again once the worker has shown that it is alive. A
number that is too low would deliver more jobs than the worker asked for."""

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
from penstock.node.queues.consumers import ConsumerIdentity, Interface
from penstock.node.queues.failures import Failures
from penstock.node.queues.lane_driver import LaneDriver
from penstock.node.queues.local_receiver import held_by_other
from penstock.node.queues.values import FENCED, ProducerTransaction
from penstock.node.subscriptions.values import FrameSink
from penstock.queue.values import AckKind
from penstock.types import Caller, Operation, ResourceType, TopicPartition
from penstock.web.api.jobs import Handed, Opened, OpenedBatches, Range, open_jobs
from penstock.web.api.problems import Problem, as_problem
from penstock.web.api.routing import offloaded
from penstock.web.clique_worker import CliqueMember, Ended, check_kind
from penstock.web.websocket_frames import endpoint_url
from penstock.web.websocket_protocol import text_frame
from penstock.web.work_frames import NO_CLIQUE, CliqueFacts, Settle, Work, batch_frame, jobs_frame

PATH = "/v1/work"
UNANSWERED_MAX = 1_000
LOOK_SECONDS = 1.0
"""How often the worker checks which partitions this node leads, beside when one is lost."""
LOOK_SOON_SECONDS = 0.1
RECOUNT_SECONDS = 0.25
"""How soon a worker without credit gets the credit of jobs back whose leases have run out."""
FRAME_BYTES_MIN = 64 * 1024
FRAME_BYTES_MAX = 256 * 1024
"""Stored batches in one frame, unless a single one is larger. A larger frame costs less for each job, and a worker that
does not read holds the rest of one in memory."""
FRAMES_BYTES = 64 * 1024 * 1024
"""The most bytes that the frames of up to 1,024 workers of a node hold together: 256 workers get frames of
FRAME_BYTES_MAX, and from 1,024 on all frames are of FRAME_BYTES_MIN."""
FRAME_JOBS = 5_000
SETTLED_AT_ONCE = 1_000
"""Ranges in one turn of the loop: some 5 us each."""
WHOLE_FROM = 4
"""Stored batches with this many times more records than the worker leases are not sent as they are: its records are
packed into a new batch, which costs less than sending the others."""
OPENING_SECONDS = 1.0
"""How long the first notice waits for queues that are being opened."""

Notice = Mapping[str, Any]


class WorkersShare:
    """The memory that the workers on one node share."""

    def __init__(self) -> None:
        self.batches = OpenedBatches()
        self.workers = 0

    @property
    def frame_bytes(self) -> int:
        return max(FRAME_BYTES_MIN, min(FRAME_BYTES_MAX, FRAMES_BYTES // max(1, self.workers)))


class Worker:
    """A consumer of a queue on the partitions that this node leads."""

    def __init__(self, node: Node, request: Work, caller: Caller, peer: str, share: WorkersShare) -> None:
        self._node = node
        self._request = request
        self._caller = caller
        self._share = share
        share.workers += 1
        self.consumer = f"work-{uuid4().hex}"
        self._wakeup = Consumer()
        self.clique: CliqueMember | None = None
        if request.clique is not None:
            self.clique = CliqueMember(node, request, request.clique, self._wakeup.set)
        name = request.clique.worker if request.clique is not None else request.name
        self._client_name = f"{name or self.consumer} at {peer}"
        self._identity = ConsumerIdentity.of(
            Interface.WEBSOCKET,
            self.consumer,
            name=name,
            address=peer,
            since_ms=node.clock.wall_ms(),
        )
        self._max_credit = node.config.limits.max_credit
        self._credit = min(request.credit, self._max_credit)
        self._held = 0
        """Jobs that it leases, and those that are being settled: they free their credit when that is durable."""
        self._settling = 0
        """The jobs among them that are being settled."""
        self._is_awake = True
        """Whether it has sent anything since the last delivery. If not, its process may hang: its jobs must not be
        delivered to it again and again, until they have reached the delivery limit."""
        self._loop = asyncio.get_running_loop()
        self._drivers: dict[TopicPartition, QueueDriver] = {}
        self._opening: dict[TopicPartition, asyncio.Task[QueueDriver]] = {}
        self._look_at = 0.0
        self._notices: list[bytes] = []
        self._answers = asyncio.Semaphore(UNANSWERED_MAX)
        self._unsent_answers = 0
        self._told: Notice | None = None
        self._first = 0
        """The partition that is served first: another one each time."""

    # --- frames of the worker

    async def settle(self, frame: Settle) -> None:
        """The response comes when the settlement is durable."""
        self._is_awake = True
        acknowledgements, returned, reasons = frame.acknowledgements(), frame.returned(), frame.reasons()
        announced, transaction = frame.announced(), frame.producer_transaction()
        if announced and self.clique is None:
            raise Problem(400, "no_clique", "`announce` is for workers of a clique: name it in `work`")
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
                outcomes.append(self._acknowledge(driver, some, reasons, frame.epoch, transaction))
                if at + SETTLED_AT_ONCE < len(acknowledgements):
                    await asyncio.sleep(0)
            refused = await self._return(driver, returned)
            refused += await self._announce(driver, announced)
        except PenstockError as trouble:
            self._settling -= frame.final_count
            self._settled(frame, trouble)
            return
        asyncio.gather(*outcomes, return_exceptions=True).add_done_callback(
            lambda done: self._durable(frame, _joined([*done.result(), *refused]))
        )

    def _acknowledge(
        self,
        driver: QueueDriver,
        acknowledgements: Sequence[Acknowledgement],
        reasons: Failures,
        epoch: int | None,
        transaction: ProducerTransaction | None,
    ) -> asyncio.Future[None]:
        if transaction is None:
            return driver.acknowledge(self.consumer, acknowledgements, reasons, epoch)
        self._node.resources.check(
            self._caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
        )
        return driver.settle_in_transaction(
            self.consumer, acknowledgements, reasons, transaction, caller=self._caller
        )

    async def _return(self, driver: QueueDriver, ranges: Sequence[Range]) -> list[NotLeased]:
        """Returns jobs that the worker has not begun, so that they do not count as deliveries. The result is the
        refusals."""
        refused: list[Range] = []
        for at in range(0, len(ranges), SETTLED_AT_ONCE):
            refused += driver.hand_back(self.consumer, ranges[at : at + SETTLED_AT_ONCE])
            if at + SETTLED_AT_ONCE < len(ranges):
                await asyncio.sleep(0)
        return [_not_leased(refused)] if refused else []

    async def _announce(self, driver: QueueDriver, ranges: Sequence[Range]) -> list[NotLeased]:
        """The worker is about to begin these jobs. The result is the refusals."""
        refused: list[Range] = []
        for at in range(0, len(ranges), SETTLED_AT_ONCE):
            if isinstance(driver, LaneDriver):
                refused += driver.announce(self.consumer, ranges[at : at + SETTLED_AT_ONCE])
            if at + SETTLED_AT_ONCE < len(ranges):
                await asyncio.sleep(0)
        return [_not_leased(refused)] if refused else []

    def _durable(self, frame: Settle, trouble: BaseException | None) -> None:
        self._settling -= frame.final_count
        self._settled(frame, trouble)

    def _settled(self, frame: Settle, trouble: BaseException | None) -> None:
        notice: dict[str, Any] = {"type": "settled", "number": frame.number}
        refused: frozenset[Range] = frozenset()
        if trouble is not None:
            notice["error"] = _error_facts(trouble)
            if isinstance(trouble, NotLeased):
                notice["error"]["refused"] = trouble.ranges
                refused = frozenset(trouble.ranges)
                self._node.cliques.fenced += trouble.code == FENCED
        if trouble is None or refused:
            self._held -= sum(last - first + 1 for first, last in frame.final if (first, last) not in refused)
        self._unsent_answers += 1
        self.tell(notice)

    async def pong(self) -> None:
        """Waits, as a settlement does, while too many responses are unsent."""
        self._is_awake = True
        await self._answers.acquire()
        self._unsent_answers += 1
        self.tell({"type": "pong"})

    def set_credit(self, credit: int) -> None:
        self._is_awake = True
        self._credit = min(credit, self._max_credit)
        self._wakeup.set()

    def learn_epoch(self, epoch: int) -> None:
        """The worker knows this table of its clique."""
        self._is_awake = True
        if self.clique is None:
            raise Problem(400, "no_clique", "an epoch frame is for workers of a clique: name it in `work`")
        self.clique.learn(epoch)

    def tell(self, notice: Notice) -> None:
        self._notices.append(text_frame(msgspec.json.encode(notice)))
        self._wakeup.set()

    def leave(self) -> None:
        """Returns all jobs to the queue. Called once."""
        self._share.workers -= 1
        for task in self._opening.values():
            task.cancel()
        for driver in self._drivers.values():
            driver.forget(self._wakeup)
            driver.release(self.consumer)
        if self.clique is not None:
            self.clique.leave()

    # --- frames to the worker

    async def run(self, sink: FrameSink) -> None:
        """Delivers jobs and sends notices, until it is cancelled. Ended says why the connection must be closed."""
        check_kind(self._node, self._request)
        if self.clique is not None:
            await self.clique.wait_for_queue()
        while True:
            self._wakeup.clear()
            if self.clique is not None:
                self.clique.check()
            await self._look()
            await self._send_notices(sink)
            if await self._deliver(sink):
                await asyncio.sleep(0)  # another consumer that was woken for the rest runs first
            elif not self._notices:
                await self._pause()

    async def _send_notices(self, sink: FrameSink) -> None:
        if not self._notices:
            return
        notices, self._notices = self._notices, []
        answers, self._unsent_answers = self._unsent_answers, 0
        await sink.send(b"".join(notices))
        for _ in range(answers):
            self._answers.release()

    async def _deliver(self, sink: FrameSink) -> bool:
        """Whether there were jobs."""
        if self.clique is not None and not self.clique.is_served:
            return False
        drivers = list(self._drivers.items())
        self._first += 1
        start = self._first % max(1, len(drivers))
        found = False
        for key, driver in drivers[start:] + drivers[:start]:
            credit = self._credit - self._held
            if credit <= 0:
                break
            await sink.wait_for_room()  # so that jobs are leased, and frames made, for workers that read
            frame = await self._receive(key, driver, credit)
            if frame:
                await sink.send(frame)
                found = True
        return found

    async def _receive(self, key: TopicPartition, driver: QueueDriver, credit: int) -> bytes:
        """A frame of jobs; empty if there are none."""
        try:
            delivery = driver.deliver(
                self.consumer, min(credit, FRAME_JOBS), self._share.frame_bytes, client=self._client_name
            )
        except (KafkaError, StorageError, CorruptLog):
            # No event tells when this passes, so it is tried again after a moment.
            self._look_at = min(self._look_at, self._loop.time() + LOOK_SOON_SECONDS)
            return b""
        if not delivery.acquired:
            return b""
        acquired = [(one.first, one.last, one.deliveries) for one in delivery.acquired]
        self._held += sum(last - first + 1 for first, last, _ in acquired)
        self._is_awake = False
        facts = NO_CLIQUE
        if isinstance(driver, LaneDriver):
            suspects = driver.suspects_among((first, last) for first, last, _ in acquired)
            facts = CliqueFacts(suspects, driver.lane_epoch)
        if self._request.encoding == "batch" and not _is_small_part(delivery.records, acquired):
            return batch_frame(key, delivery.records, acquired, facts)
        opened, frame = await offloaded(
            unpacked_total(delivery.records), self._framed, key, delivery.records, acquired, facts
        )
        if self._request.encoding != "batch":
            self._settle_unreadable(driver, AckKind.REJECT, opened.unreadable)
            self._settle_unreadable(driver, AckKind.GAP, opened.missing)
        return frame

    def _framed(
        self, key: TopicPartition, data: bytes, acquired: list[Handed], facts: CliqueFacts
    ) -> tuple[Opened, bytes]:
        """The jobs in the batches, and a frame with them. May run in a thread."""
        opened = open_jobs(data, acquired, self._share.batches)
        if self._request.encoding == "batch":
            return opened, batch_frame(key, _repacked(opened, data), acquired, facts)
        frame = jobs_frame(key, opened.jobs, self._request.encoding, facts) if opened.jobs else b""
        return opened, frame

    def _settle_unreadable(self, driver: QueueDriver, kind: AckKind, ranges: Sequence[Range]) -> None:
        """Settles jobs that the worker cannot be sent: else they would be delivered again and again."""
        if ranges:
            with suppress(PenstockError):  # the leader has changed: the next one finds them, too
                driver.acknowledge(self.consumer, [Acknowledgement(*one, bytes([kind])) for one in ranges])
            self._held -= sum(last - first + 1 for first, last in ranges)

    def _recount(self) -> None:
        """Counts the leases again: some jobs were lost, because leases ran out or partitions moved. Jobs that are being
        settled are not leased any more, and count until that is durable."""
        leased = sum(driver.held_by(self.consumer) for driver in self._drivers.values())
        self._held = leased + self._settling

    async def _pause(self) -> None:
        """Waits until something may have changed. Other tasks run in any case: an event that is set already would not
        let them."""
        await asyncio.sleep(0)
        has_credit = self._credit > self._held
        if not has_credit and self._credit > 0 and self._is_awake:
            self._recount()
            has_credit = self._credit > self._held
            if has_credit:
                return
        drivers = list(self._drivers.values()) if has_credit else []
        for driver in drivers:
            driver.wait(self._wakeup, self.consumer)
        until = self._look_at if has_credit or not self._credit else self._loop.time() + RECOUNT_SECONDS
        try:
            async with asyncio.timeout_at(min(until, self._look_at)):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        finally:
            for driver in drivers:
                driver.forget(self._wakeup)

    # --- partitions

    async def _look(self) -> None:
        """Opens the queue on each partition that this node leads, every LOOK_SECONDS and when one is lost."""
        now = self._loop.time()
        if now < self._look_at and not any(one.ended for one in self._drivers.values()):
            self._check_holders()
            return
        self._look_at = now + LOOK_SECONDS
        led, elsewhere = self._partitions()
        for key in led:
            self._open(key)
        if self._told is None and self._opening:
            await asyncio.wait(list(self._opening.values()), timeout=OPENING_SECONDS)
        found = {key: driver for key in led if (driver := self._opened(key)) is not None}
        moved = found != self._drivers
        self._drivers = found
        for driver in found.values():
            driver.consumers.attach(self._identity)
            if self.clique is not None:
                self.clique.attach(driver, self.consumer)
        if moved:
            self._recount()
        self._tell_partitions(elsewhere)

    def _partitions(self) -> tuple[list[TopicPartition], list[Notice]]:
        """Partitions that this node leads, and the addresses of the leaders of the others."""
        led: list[TopicPartition] = []
        elsewhere: list[Notice] = []
        for name in self._request.topics:
            try:
                topic = self._node.resources.topic(self._caller, name, Operation.READ)
            except KafkaError as refusal:
                if refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise Ended("unknown_topic", refusal.message) from None
                # The permission was lost, which `lost_permission` may notice later: both say the same.
                lost = as_problem(refusal)
                raise Ended(lost.code, lost.message) from None
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
        """Begins to open the queue on a partition, unless it is open. Not awaited: one that takes long must not hold up
        the others."""
        driver = self._drivers.get(key)
        config = self._node.resources.queue_config(self._request.queue)
        if key not in self._opening and (driver is None or driver.ended or driver.config != config):
            task = self._opening[key] = asyncio.ensure_future(self._find(key))
            task.add_done_callback(lambda _: self._look_soon(0.0))

    async def _find(self, key: TopicPartition) -> QueueDriver:
        partition = self._node.resources.led_partition(self._caller, *key, Operation.READ)
        topic = self._node.resources.topic(self._caller, key.topic, Operation.READ)
        return await self._node.queues.manager.driver(self._request.queue, topic.topic_id, partition)

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
        self._wakeup.set()

    def _check_holders(self) -> None:
        """Tells at once when this worker, or another consumer, has become the holder of an exclusive queue."""
        if self._told is not None and any(one.config.exclusive for one in self._drivers.values()):
            self._tell_partitions(self._told["elsewhere"])

    def _claim_exclusive(self) -> None:
        """A worker holds an exclusive queue also while there are no jobs."""
        for driver in self._drivers.values():
            if driver.config.exclusive:
                with suppress(PenstockError):
                    driver.deliver(self.consumer, 0, 0, client=self._client_name)

    def _tell_partitions(self, elsewhere: Sequence[Notice]) -> None:
        self._claim_exclusive()
        standby: list[Notice] = []
        for key, driver in self._drivers.items():
            other = driver.other_holder(self.consumer)
            if other is None:
                continue
            if not self._request.standby:
                raise Ended("held", held_by_other(driver, str(other)).message)
            standby.append({"topic": key.topic, "partition": key.partition, "holder": str(other)})
        held = {(one["topic"], one["partition"]) for one in standby}
        partitions = [
            {"topic": key.topic, "partition": key.partition} for key in self._drivers if key not in held
        ]
        config = self._node.resources.queue_config(self._request.queue)
        notice: Notice = {
            "type": "working",
            "queue": self._request.queue,
            "consumer": self.consumer,
            "lease_ms": config.record_lock_duration_ms,
            "exclusive": config.exclusive,
            "delivery_limit": config.delivery_count_limit,
            "transactions": not config.owner_ordered,
            "partitions": partitions,
            "standby": standby,
            "elsewhere": list(elsewhere),
        }
        if notice != self._told:
            self._told = notice
            self.tell(notice)


def _is_small_part(data: bytes, acquired: Sequence[Handed]) -> bool:
    """Whether these batches hold many more records than the worker leases."""
    count = sum(last - first + 1 for first, last, _ in acquired)
    return sum(header.record_count for _, header in iter_headers(data)) >= WHOLE_FROM * count


def _repacked(opened: Opened, data: bytes) -> bytes:
    """The worker's records in a new batch, with their offsets; the stored batches if one does not unpack."""
    if opened.unreadable or not opened.jobs:
        return data
    records = [job.record for job in opened.jobs]
    return build_batch(records, base_offset=records[0].offset)


def _joined(outcomes: Sequence[object]) -> BaseException | None:
    """The error of a settlement, from the results of its parts; None if there is none."""
    troubles = [one for one in outcomes if isinstance(one, BaseException)]
    refused = [one for one in troubles if isinstance(one, NotLeased)]
    if len(refused) < len(troubles):
        return next(one for one in troubles if not isinstance(one, NotLeased))
    if not refused:
        return None
    ranges = [each for one in refused for each in one.ranges]
    worst = next((one for one in refused if one.code == FENCED), refused[0])
    return NotLeased(worst.code, worst.message, ranges)


def _not_leased(ranges: Sequence[Range]) -> NotLeased:
    first, last = ranges[-1]
    message = f"{first} to {last} are not, or no longer, leased to this consumer"
    return NotLeased(ErrorCode.INVALID_RECORD_STATE, message, ranges)


def _error_facts(trouble: BaseException) -> dict[str, Any]:
    code = "outcome_unknown"
    if isinstance(trouble, NotLeased):
        code = "fenced" if trouble.code == FENCED else "lease_over"
    elif isinstance(trouble, KafkaError):
        code = trouble.code.name.lower()
    return {"code": code, "message": str(trouble)}
