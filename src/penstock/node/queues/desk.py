"""Queues for those who do not speak Kafka's share protocol, asked of any node: messages are taken, settled and looked
at where their partitions are led, over the inter-node port if that is elsewhere.

Whoever takes something here is known by a name alone and has no connection, so nothing tells when it goes: what it
holds comes back when its lease ends, and its seat of an exclusive queue some time after its last word (`exclusive`).

A taker that finds nothing waits in the line of every partition at once, on all nodes. The first node that has something
answers; the others are told not to wait any more, and what they hand out meanwhile beyond what was asked for is handed
back as if it had never left.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import UUID

import msgspec

from penstock.batch import iter_headers
from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError, PenstockError, StorageError
from penstock.node.leaders import NO_LEADER
from penstock.node.partitions import PartitionTable
from penstock.node.queues.desk_words import (
    At,
    Look,
    One,
    Returned,
    Seen,
    SeenRun,
    Taken,
    Verdict,
    Verdicts,
    Wish,
)
from penstock.node.queues.driver import Acknowledgement, Consumer, NotLeased, QueueDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.shelf import QueueKey
from penstock.node.view import ClusterView
from penstock.types import NodeId, Offset

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

TAKE, CANCEL, HAND_BACK, SETTLE, PEEK, ACCEPT = 40, 41, 42, 43, 44, 45
"""Methods of the inter-node port."""

ANSWER_MS = 10_000
WAIT_MS_MAX = 5_000
"""One question between nodes waits so long at most; whoever wants to wait longer asks again."""
LOOK_AGAIN_SECONDS = 0.1
PATIENCE_SECONDS = 5.0
"""How long a leader is looked for: an election with the usual settings, and then some."""
OPENING_SECONDS = 1.0
PEEK_BYTES = 1024 * 1024
PEEK_RUNS_MAX = 1_000
OWN_NAME = "penstock"
"""The consumer in whose name the broker itself settles."""

T = TypeVar("T")

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""What passes when an election is over, or when the nodes have heard of a topic."""


class QueueDesk:
    """Asks and answers. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        partitions: PartitionTable,
        queues: QueueManager,
        rpc: "Rpc | None",
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._partitions = partitions
        self._queues = queues
        self._rpc = rpc
        self._tickets = itertools.count(1)
        self._turn = itertools.count()
        self._waiting: dict[tuple[int, int], Consumer] = {}
        """Who waits here for a node's ticket."""
        self._tasks: set[asyncio.Future[object]] = set()
        if rpc is not None:
            rpc.handle(TAKE, _serves(Wish, self._serve_take))
            rpc.handle(CANCEL, self._serve_cancel)
            rpc.handle(HAND_BACK, _serves(Returned, self._serve_hand_back))
            rpc.handle(SETTLE, _serves(Verdicts, self._serve_settle))
            rpc.handle(PEEK, _serves(Look, self._serve_peek))
            rpc.handle(ACCEPT, _serves(One, self._serve_accept))

    # --- taking

    async def take(self, wish: Wish) -> list[Taken]:
        """What there is, up to what is wished for, after waiting for it as long as is wished. KafkaError and
        NodeSilent say why nobody could be asked; POLICY_VIOLATION names who has an exclusive queue."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wish.wait_ms / 1000
        while True:
            homes = self._homes(wish.places)
            taken, troubles = await self._take_round(wish, homes)
            left_ms = int((deadline - loop.time()) * 1000)
            if not taken and left_ms > 0 and len(troubles) < len(homes):
                taken = await self._take_waiting(wish, homes, min(left_ms, WAIT_MS_MAX))
            if taken:
                return taken
            if loop.time() >= deadline:
                if len(troubles) >= len(homes):
                    raise troubles[0] if troubles else _leaderless(wish.group_id)
                return []
            if troubles or not homes:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _homes(self, places: Iterable[At]) -> list[tuple[int, list[At]]]:
        """Partitions by leader; each time another leader first, so that none is always asked before the others."""
        found: dict[int, list[At]] = {}
        for place in places:
            leader = self._leader(place)
            if leader != NO_LEADER:
                found.setdefault(leader, []).append(place)
        homes = list(found.items())
        first = next(self._turn) % max(1, len(homes))
        return homes[first:] + homes[:first]

    def _leader(self, place: At) -> int:
        topic = self._state.topic_by_id(UUID(bytes=place.topic_id))
        if topic is None or place.partition >= topic.partitions:
            return NO_LEADER
        return self._view.partition(topic, place.partition).leader

    async def _take_round(
        self, wish: Wish, homes: Sequence[tuple[int, list[At]]]
    ) -> tuple[list[Taken], list[PenstockError]]:
        taken: list[Taken] = []
        troubles: list[PenstockError] = []
        left, room = wish.max_records, wish.max_bytes
        for node, places in homes:
            if left <= 0 or room <= 0:
                break
            part = _with(wish, places=places, max_records=left, max_bytes=room, wait_ms=0)
            try:
                found = await self._ask_take(node, part)
            except PenstockError as trouble:
                held = isinstance(trouble, KafkaError) and trouble.code == ErrorCode.POLICY_VIOLATION
                if held and not taken:
                    raise
                troubles.append(trouble)
                continue
            taken += found
            left -= sum(one.count for one in found)
            room -= sum(len(one.records) for one in found)
        return taken, troubles

    async def _take_waiting(
        self, wish: Wish, homes: Sequence[tuple[int, list[At]]], wait_ms: int
    ) -> list[Taken]:
        """Waits on all nodes at once. What comes together from several may be more than was asked for."""
        ticket = next(self._tickets)
        asked = {
            asyncio.ensure_future(
                self._ask_take(node, _with(wish, places=places, wait_ms=wait_ms, ticket=ticket))
            ): node
            for node, places in homes
        }
        pending = set(asked)
        taken: list[Taken] = []
        try:
            while pending and not taken:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                taken += [row for task in done for row in _outcome(task)]
            self._cancel(ticket, [asked[task] for task in pending])
            if pending:
                await asyncio.wait(pending)
            late = [row for task in pending for row in _outcome(task)]
            return await self._within(wish, [*taken, *late])
        finally:
            late_ones = [task for task in pending if not task.done()]
            self._cancel(ticket, [asked[task] for task in late_ones])
            for task in late_ones:  # whoever asked has gone
                task.add_done_callback(lambda done: self._return_all(wish, done))

    def _return_all(self, wish: Wish, done: "asyncio.Task[list[Taken]]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._spawn(self._within(_with(wish, max_records=0), done.result()))

    def _spawn(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, ticket: int, nodes: Iterable[int]) -> None:
        """Nobody wants to wait there any more. If this does not arrive, their own time ends it."""
        for node in nodes:
            if node == self._node_id:
                self._stop_waiting(node, ticket)
            elif self._rpc is not None:
                self._spawn(self._tell(node, ticket))

    async def _tell(self, node: int, ticket: int) -> None:
        assert self._rpc is not None
        with suppress(PenstockError):
            await self._rpc.call(NodeId(node), CANCEL, msgspec.msgpack.encode(ticket), ANSWER_MS)

    async def _within(self, wish: Wish, taken: Sequence[Taken]) -> list[Taken]:
        kept: list[Taken] = []
        left = wish.max_records
        for row in taken:
            mine, surplus = _split(row.acquired, left)
            left -= sum(last - first + 1 for first, last, _ in mine)
            if mine:
                kept.append(Taken(row.place, row.records, mine, row.lease_ms))
            if surplus:
                back = Returned(wish.group_id, wish.consumer, row.place, surplus)
                await self._hand_back(back)
        return kept

    async def _hand_back(self, back: Returned) -> None:
        with suppress(PenstockError):  # otherwise its lease will end
            await self._ask(self._leader(back.place), HAND_BACK, back, None, self._serve_hand_back)

    async def _ask_take(self, node: int, wish: Wish) -> list[Taken]:
        return await self._ask(node, TAKE, wish, list[Taken], self._serve_take, wait_ms=wish.wait_ms)

    # --- settling and looking

    async def settle(self, verdicts: Verdicts) -> dict[int, KafkaError]:
        """Returns when all that was taken is durable: what was refused, and why. PenstockError: nobody knows."""
        rows = await self._ask(
            self._leader(verdicts.place),
            SETTLE,
            verdicts,
            list[tuple[int, int, str]],
            self._serve_settle,
        )
        return {offset: KafkaError(ErrorCode(code), message) for offset, code, message in rows}

    async def peek(self, look: Look) -> Seen:
        """What is not done, without taking it."""
        return await self._ask_leader(look.place, PEEK, look, Seen, self._serve_peek)

    async def accept(self, group_id: str, place: At, offset: int) -> None:
        """A message is done that nobody was handed. KafkaError if it was done before."""
        await self._ask_leader(place, ACCEPT, One(group_id, place, offset), None, self._serve_accept)

    async def _ask_leader(
        self,
        place: At,
        method: int,
        question: msgspec.Struct,
        kind: type[T] | None,
        serve: Callable[..., Awaitable[object]],
    ) -> T:
        """Asks whoever leads, and again while that is about to become clear. Only for what may be asked twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._ask(self._leader(place), method, question, kind, serve)
            except KafkaError as refused:
                if refused.code not in _PASSING or loop.time() > deadline:
                    raise
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _ask(
        self,
        node: int,
        method: int,
        question: msgspec.Struct,
        kind: type[T] | None,
        serve: Callable[..., Awaitable[object]],
        *,
        wait_ms: int = 0,
    ) -> T:
        if node == self._node_id:
            return cast(T, await serve(self._node_id, question))
        if node == NO_LEADER or self._rpc is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads this partition now")
        packed = msgspec.msgpack.encode(question)
        told = await self._rpc.call(NodeId(node), method, packed, ANSWER_MS + wait_ms)
        return msgspec.msgpack.decode(told, type=kind or None)

    # --- answering: taking

    async def _serve_take(self, sender: NodeId, wish: Wish) -> list[Taken]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wish.wait_ms, WAIT_MS_MAX) / 1000
        consumer = Consumer()
        if wish.wait_ms > 0:
            self._waiting[sender, wish.ticket] = consumer
        try:
            while True:
                drivers, troubles = await self._drivers(wish)
                taken = self._take_here(wish, drivers)
                if taken or loop.time() >= deadline:
                    return taken
                if not drivers and troubles:
                    raise troubles[0]
                if wish.wait_ms > 0 and (sender, wish.ticket) not in self._waiting:
                    return []
                if not await _woken(consumer, drivers, wish.consumer, deadline):
                    return []
        finally:
            self._waiting.pop((sender, wish.ticket), None)

    async def _drivers(self, wish: Wish) -> tuple[list[tuple[At, QueueDriver]], list[PenstockError]]:
        """POLICY_VIOLATION if somebody else has one of them, and this one is not content to stand by."""
        found: list[tuple[At, QueueDriver]] = []
        absent: list[At] = []
        for place in wish.places:
            driver = self._open_driver(wish.group_id, place)
            if driver is None:
                absent.append(place)
            else:
                found.append((place, driver))
        opened, troubles = await self._opened(wish.group_id, absent)
        found += opened
        for _, driver in found:
            other = driver.other_holder(wish.consumer)
            if other is not None and not wish.standby:
                raise held_by_other(driver, str(other))
        if len(found) > 1:
            first = next(self._turn) % len(found)
            found = found[first:] + found[:first]
        return found, troubles

    def _open_driver(self, group_id: str, place: At) -> QueueDriver | None:
        driver = self._queues.find(QueueKey(group_id, UUID(bytes=place.topic_id), place.partition))
        if driver is None or driver.config != self._state.group_config(group_id):
            return None
        return driver

    async def _opened(
        self, group_id: str, places: Sequence[At]
    ) -> tuple[list[tuple[At, QueueDriver]], list[PenstockError]]:
        """Queues that have to be opened first. One that does not come must not hold up the others for long."""
        found: list[tuple[At, QueueDriver]] = []
        troubles: list[PenstockError] = []
        tasks = {asyncio.ensure_future(self._driver(group_id, place)): place for place in places}
        if not tasks:
            return found, troubles
        done, late = await asyncio.wait(tasks, timeout=OPENING_SECONDS)
        for task in late:
            task.add_done_callback(lambda one: one.cancelled() or one.exception())
            troubles.append(_leaderless(group_id))
        for task in done:
            trouble = task.exception()
            if isinstance(trouble, PenstockError):
                troubles.append(trouble)
            else:
                found.append((tasks[task], task.result()))
        return found, troubles

    def _take_here(self, wish: Wish, drivers: Sequence[tuple[At, QueueDriver]]) -> list[Taken]:
        taken: list[Taken] = []
        left, room = wish.max_records, wish.max_bytes
        for place, driver in drivers:
            if left <= 0 or room <= 0:
                break
            try:
                delivery = driver.deliver(wish.consumer, left, room, who=wish.who, seat_ms=driver.lease_ms)
            except PenstockError:
                continue  # it has just ended: the next look finds who leads now
            if delivery.acquired:
                acquired = [(one.first, one.last, one.deliveries) for one in delivery.acquired]
                taken.append(Taken(place, delivery.records, acquired, driver.lease_ms))
                left -= taken[-1].count
                room -= len(delivery.records)
        return taken

    async def _driver(self, group_id: str, place: At) -> QueueDriver:
        topic_id = UUID(bytes=place.topic_id)
        topic = self._state.topic_by_id(topic_id)
        if topic is None or not 0 <= place.partition < topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic here has the id {topic_id}")
        partition = self._partitions.get(topic.name, place.partition)
        return await self._queues.driver(group_id, topic_id, partition)

    async def _serve_cancel(self, sender: NodeId, question: memoryview) -> bytes:
        self._stop_waiting(sender, msgspec.msgpack.decode(question, type=int))
        return b""

    def _stop_waiting(self, node: int, ticket: int) -> None:
        if (consumer := self._waiting.pop((node, ticket), None)) is not None:
            consumer.set()

    async def _serve_hand_back(self, sender: NodeId, back: Returned) -> None:
        driver = await self._driver(back.group_id, back.place)
        for first, last in back.ranges:
            driver.hand_back(back.consumer, first, last)

    # --- answering: settling and looking

    async def _serve_settle(self, sender: NodeId, verdicts: Verdicts) -> list[tuple[int, int, str]]:
        driver = await self._driver(verdicts.group_id, verdicts.place)
        try:
            await driver.acknowledge(verdicts.consumer, list(_ranges(verdicts.rows)))
        except NotLeased as refused:
            wrong = {offset for first, last in refused.ranges for offset in range(first, last + 1)}
            rows = [row for row in verdicts.rows if row.offset in wrong]
        else:
            return []
        return await self._settle_singly(driver, verdicts.consumer, rows)

    async def _settle_singly(
        self, driver: QueueDriver, consumer: str, rows: Sequence[Verdict]
    ) -> list[tuple[int, int, str]]:
        """A range is taken as a whole or not at all: what of these is the consumer's must be found one by one."""
        single = [_acknowledgement(row, row.offset) for row in rows]
        try:
            await driver.acknowledge(consumer, single)
        except NotLeased as refused:
            message = "it is not, or no more, leased to this consumer"
            return [(first, refused.code, message) for first, _ in refused.ranges]
        return []

    async def _serve_peek(self, sender: NodeId, look: Look) -> Seen:
        topic = self._state.topic_by_id(UUID(bytes=look.place.topic_id))
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no such topic here")
        partition = self._partitions.get(topic.name, look.place.partition)
        partition.check_readable()
        first, end = max(look.first, partition.start_offset), int(partition.high_watermark)
        driver = None if look.is_new else await self._driver(look.group_id, look.place)
        runs = list(_undone(driver, first, end, look.max_records))
        if not runs:
            return Seen([], b"", -1)
        data = bytearray()
        seen: list[SeenRun] = []
        covered = 0
        try:
            for run in runs:
                if run.last >= covered and len(data) < PEEK_BYTES:
                    part = partition.read(
                        Offset(max(run.first, covered)), PEEK_BYTES - len(data), at_least_one=not data
                    )
                    data += part
                    covered = max((head.next_offset for _, head in iter_headers(part)), default=covered)
                if covered <= run.first:
                    break
                last = min(run.last, covered - 1)
                seen.append(SeenRun(run.first, last, *_rest(run)))
        except StorageError as trouble:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)) from trouble
        at = seen[-1].last + 1 if seen else runs[0].first
        return Seen(seen, bytes(data), at if at < end else -1)

    async def _serve_accept(self, sender: NodeId, one: One) -> None:
        driver = await self._driver(one.group_id, one.place)
        await driver.accept_one(OWN_NAME, one.offset)


def held_by_other(driver: QueueDriver, holder: str) -> KafkaError:
    topic, partition = driver.partition.name
    message = (
        f"queue {driver.key.group_id!r} has one consumer at a time on {topic}-{partition} (penstock.queue.exclusive): "
        f"{holder} has it; stand by, or come again when that one has gone"
    )
    return KafkaError(ErrorCode.POLICY_VIOLATION, message)


async def _woken(
    consumer: Consumer, drivers: Sequence[tuple[At, QueueDriver]], member: str, deadline: float
) -> bool:
    """Whether there may be something, before the deadline."""
    consumer.clear()
    for _, driver in drivers:
        driver.wait(consumer, member)
    try:
        async with asyncio.timeout_at(deadline):
            await consumer.wait()
    except TimeoutError:
        return False
    finally:
        for _, driver in drivers:
            driver.forget(consumer)
    return True


def _undone(driver: QueueDriver | None, first: int, end: int, most: int) -> Iterable[SeenRun]:
    """Runs that are not done, no more than so many messages; what nobody has read yet is available."""
    left = most
    known = first
    if driver is not None:
        core = driver.core
        known = max(core.next_offset, first)
        for run in core.peek(first, known - 1, PEEK_RUNS_MAX) if known > first else ():
            if left <= 0:
                return
            last = min(run.last, run.first + left - 1)
            left -= last - run.first + 1
            yield SeenRun(run.first, last, run.state.name.lower(), run.deliveries, run.member, run.until_ms)
        known = max(known, core.start_offset)
    if left > 0 and known < end:
        yield SeenRun(known, min(end - 1, known + left - 1), "available", 0, None, None)


def _rest(run: SeenRun) -> tuple[str, int, str | None, int | None]:
    return run.state, run.deliveries, run.consumer, run.until_ms


def _ranges(rows: Sequence[Verdict]) -> Iterable[Acknowledgement]:
    """Neighbours of which the same is said, as one."""
    ordered = sorted(rows, key=lambda row: row.offset)
    start = 0
    for at in range(1, len(ordered) + 1):
        before = ordered[at - 1]
        if at < len(ordered) and ordered[at] == Verdict(before.offset + 1, before.kind, before.delay_ms):
            continue
        yield _acknowledgement(ordered[start], before.offset)
        start = at


def _acknowledgement(row: Verdict, last: int) -> Acknowledgement:
    return Acknowledgement(row.offset, last, bytes([row.kind]), row.delay_ms)


def _split(
    acquired: Iterable[tuple[int, int, int]], most: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    mine: list[tuple[int, int, int]] = []
    surplus: list[tuple[int, int]] = []
    for first, last, deliveries in acquired:
        stop = min(last, first + most - 1)
        if stop >= first:
            mine.append((first, stop, deliveries))
            most -= stop - first + 1
        if stop < last:
            surplus.append((max(first, stop + 1), last))
    return mine, surplus


def _outcome(task: "asyncio.Task[list[Taken]]") -> list[Taken]:
    """What became of one question; one that failed brought nothing, and the next round will tell why."""
    trouble = task.exception()
    if trouble is not None and not isinstance(trouble, PenstockError):
        raise trouble
    return [] if trouble is not None else task.result()


def _with(wish: Wish, **changes: object) -> Wish:
    return msgspec.structs.replace(wish, **changes)


def _leaderless(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads a partition of {group_id!r} now")


def _serves(
    kind: type[msgspec.Struct], serve: Callable[..., Awaitable[object]]
) -> Callable[[NodeId, memoryview], Awaitable[bytes]]:
    async def answer(sender: NodeId, question: memoryview) -> bytes:
        return msgspec.msgpack.encode(await serve(sender, msgspec.msgpack.decode(question, type=kind)))

    return answer
